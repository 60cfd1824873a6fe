//! One file per op: what cannot be checked on the device, the blocks, and the launch. An op without a file is missing.

// Kernel functions have the signature of the SDK.
#![allow(clippy::needless_pass_by_value)]

mod adjust_logits;
mod apply_token_mask;
mod candidate_block_max;
mod compress_and_update_state;
mod convert_kv_index;
mod engram_gate;
mod engram_gather;
mod engram_hash;
mod fused_sample;
mod gather;
mod grouped_linear;
mod hc_collapse;
mod hc_expand;
mod hc_mix;
mod index_scores;
mod linear;
mod load_paged_kv_cache;
mod moe_combine;
mod moe_dispatch;
mod moe_gate;
mod quantize;
mod restore_candidate_indices_inplace;
mod rms_norm;
mod rope;
mod rstd;
mod sparse_attention;
mod store_kv_cache;
mod swiglu_quantize;
mod topk_select;
