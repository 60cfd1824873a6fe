//! One file per op: what cannot be checked on the device, the blocks, and the launch. An op without a file is missing.

// Kernel functions have the signature of the SDK.
#![allow(clippy::needless_pass_by_value)]

mod adjust_logits;
mod apply_token_mask;
mod candidate_block_max;
mod convert_kv_index;
mod fused_sample;
mod gather;
mod moe_combine;
mod moe_dispatch;
mod restore_candidate_indices_inplace;
mod rms_norm;
mod rstd;
mod topk_select;
