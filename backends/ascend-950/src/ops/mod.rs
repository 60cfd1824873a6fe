//! One file per op: what cannot be checked on the device, the blocks, and the launch. An op without a file is missing.

// Kernel functions have the signature of the SDK.
#![allow(clippy::needless_pass_by_value)]

mod compress_and_update_state;
mod engram_gate;
mod engram_gather;
mod engram_hash;
mod gather;
mod hc_collapse;
mod hc_expand;
mod hc_mix;
mod rms_norm;
mod rstd;
mod store_kv_cache;
