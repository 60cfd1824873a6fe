//! One file per op: what cannot be checked on the device, the grid, and the launch.

// Kernel functions have the signature of the SDK.
#![allow(clippy::needless_pass_by_value)]

mod adjust_logits;
mod apply_token_mask;
mod fused_sample;
mod gather;
mod rstd;
