//! One file per op: what cannot be checked on the device, the blocks, and the launch. An op without a file is missing.

// Kernel functions have the signature of the SDK.
#![allow(clippy::needless_pass_by_value)]

mod gather;
mod grouped_linear;
mod index_scores;
mod linear;
mod load_paged_kv_cache;
mod moe_gate;
mod quantize;
mod rms_norm;
mod rope;
mod rstd;
mod sparse_attention;
mod swiglu_quantize;
