//! One file per op: what cannot be checked on the device, the grid, and the launch.

// Kernel functions have the signature of the SDK.
#![allow(clippy::needless_pass_by_value)]

use deepinfer_plugin_api::abi::{DI_PF_BATCH_INVARIANT, DI_PF_CAPTURABLE, DI_PF_DETERMINISTIC};

/// What every kernel promises: a row's bits are its own and repeat, and a launch can be captured, since nothing is
/// allocated, copied from the host, or waited for in it.
const FLAGS: u32 = DI_PF_BATCH_INVARIANT | DI_PF_DETERMINISTIC | DI_PF_CAPTURABLE;

mod adjust_logits;
mod apply_token_mask;
mod candidate_block_max;
mod compress_and_update_state;
mod convert_kv_index;
mod engram_gate;
mod engram_gather;
mod engram_hash;
mod few_rows;
mod fused_sample;
mod gather;
mod grouped_linear;
mod hc_collapse;
mod hc_expand;
mod hc_mix;
mod index_scores;
mod linear;
mod linear_f32;
mod linear_many;
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
