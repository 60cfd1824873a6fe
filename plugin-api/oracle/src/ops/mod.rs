//! The oracles, by the family of the op.

mod cache;
mod dense;
mod engram;
mod moe;
mod sample;
mod select;

use deepinfer_plugin_api::op_by_id;

use crate::bound::Bound;
use crate::call::Call;
use crate::want::Wants;

/// What the outputs of a call must be within a bound, in the order of the op's written arguments; optional ones that are absent have none.
///
/// # Panics
/// If the call lacks an argument of the op, or its extents or indices break a rule of the op's semantics.
pub type Oracle = fn(&Call, Bound) -> Wants;

/// The oracle of an op by its name; `None` if the catalogue has no such op.
pub fn oracle_of(op: &str) -> Option<Oracle> {
    ORACLES.iter().find(|(name, _)| *name == op).map(|(_, oracle)| *oracle)
}

/// The oracle of an op by its id; `None` for ops that are not of the catalogue.
pub fn oracle_of_id(id: u32) -> Option<Oracle> {
    op_by_id(id).and_then(|op| oracle_of(op.name))
}

/// Every op of the catalogue.
const ORACLES: &[(&str, Oracle)] = &[
    ("gather", dense::gather),
    ("rms_norm", dense::rms_norm),
    ("rstd", dense::rstd),
    ("linear", dense::linear),
    ("grouped_linear", dense::grouped_linear),
    ("quantize", dense::quantize),
    ("rope", dense::rope),
    ("hc_mix", dense::hc_mix),
    ("hc_collapse", dense::hc_collapse),
    ("hc_expand", dense::hc_expand),
    ("store_kv_cache", cache::store_kv_cache),
    ("load_paged_kv_cache", cache::load_paged_kv_cache),
    ("convert_kv_index", cache::convert_kv_index),
    ("compress_and_update_state", cache::compress_and_update_state),
    ("index_scores", select::index_scores),
    ("candidate_block_max", select::candidate_block_max),
    ("topk_select", select::topk_select),
    ("restore_candidate_indices_inplace", select::restore_candidate_indices_inplace),
    ("sparse_attention", select::sparse_attention),
    ("moe_gate", moe::moe_gate),
    ("moe_dispatch", moe::moe_dispatch),
    ("swiglu_quantize", moe::swiglu_quantize),
    ("moe_combine", moe::moe_combine),
    ("engram_hash", engram::engram_hash),
    ("engram_gather", engram::engram_gather),
    ("engram_gate", engram::engram_gate),
    ("fused_sample", sample::fused_sample),
    ("adjust_logits", sample::adjust_logits),
    ("apply_token_mask", sample::apply_token_mask),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_of_the_catalogue_has_an_oracle_and_nothing_else_has() {
        let mut known: Vec<&str> = ORACLES.iter().map(|(name, _)| *name).collect();
        let mut ops: Vec<&str> = deepinfer_plugin_api::generated::OPS.iter().map(|op| op.name).collect();
        known.sort_unstable();
        ops.sort_unstable();
        assert_eq!(known, ops);
        assert!(oracle_of_id(1).is_some() && oracle_of_id(0x8000_0000).is_none());
    }
}
