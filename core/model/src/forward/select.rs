//! Index sources: which compressed entries each row attends to, for this layer and the ones after it.

use std::collections::BTreeMap;

use deepinfer_ops::args::{CandidateBlockMax, ConvertKvIndex, IndexScores, RestoreCandidateIndicesInplace, TopkSelect};
use deepinfer_ops::traits::{CacheOps, SelectOps};
use deepinfer_ops::{Format, OpError, Tensor};

use super::Run;
use crate::state::SourceCache;
use crate::weights::IndexerWeights;

/// The selections that are open in a step. Their memory outlives the layers that make them.
pub(super) struct Selections {
    /// By ratio; absent while no row sees an entry.
    open: BTreeMap<usize, Selection>,
    /// Blocks that later index sources choose from, `[T, blocks]`.
    candidates: Option<Tensor>,
    /// The index source that wrote each ratio's selection last.
    written_by: BTreeMap<usize, usize>,
}

struct Selection {
    /// Chosen entries of the request, ascending, -1 padded.
    positions: Tensor,
    /// The same as cache slots.
    slots: Tensor,
}

impl Selections {
    /// Takes memory for every ratio that has entries in this step.
    pub(super) fn new(run: &Run<'_>) -> Result<Self, OpError> {
        let (config, rows) = (&run.model.config, run.step.rows);
        let mut open = BTreeMap::new();
        for (&ratio, step) in run.step.ratios.iter().filter(|(_, step)| step.entries > 0) {
            let chosen = config.index_topk.min(step.entries);
            let table = || run.arena.tensor(Format::I32, &[rows, chosen]);
            open.insert(ratio, Selection { positions: table()?, slots: table()? });
        }
        let candidates = match config.candidate_source_layer_id {
            None => None,
            Some(layer) => match run.step.ratios.get(&config.compress_ratios[layer]).map(|step| step.entries) {
                None | Some(0) => None,
                Some(entries) => {
                    let blocks = config.candidate_topk_blocks.min(entries.div_ceil(config.candidate_block_size));
                    Some(run.arena.tensor(Format::I32, &[rows, blocks])?)
                }
            },
        };
        Ok(Self { open, candidates, written_by: BTreeMap::new() })
    }

    /// Entries that index source `layer` chose in this step, if it was the last of its ratio.
    pub(super) fn positions(&self, layer: usize) -> Option<&Tensor> {
        let (ratio, _) = self.written_by.iter().find(|(_, by)| **by == layer)?;
        self.open.get(ratio).map(|selection| &selection.positions)
    }

    /// Cache slots that a layer of this ratio attends to.
    pub(super) fn slots(&self, ratio: usize) -> Option<&Tensor> {
        self.open.get(&ratio).map(|selection| &selection.slots)
    }
}

impl Run<'_> {
    /// Scores the entries that each row sees and keeps the best. `x` is the attention's input, `latent` its query latent.
    pub(super) fn select(
        &self,
        layer: usize,
        weights: &IndexerWeights,
        source: &SourceCache,
        x: &Tensor,
        latent: &Tensor,
        selections: &mut Selections,
    ) -> Result<(), OpError> {
        let config = &self.model.config;
        let ratio = config.compress_ratios[layer];
        let step = &self.step.ratios[&ratio];
        let Some(selection) = selections.open.get(&ratio) else {
            return Ok(());
        };
        let (heads, dim) = (config.index_n_heads, config.index_head_dim);
        let q = self.linear(latent, &weights.wq_b)?;
        self.rope(&q, heads, &self.step.positions, &self.model.compressed_frequencies, false)?;
        let q = if self.model.numerics.stored_caches { self.quantize(&q, Format::Fp4Row32)? } else { q };
        let head_weight = self.linear_plain(x, &weights.head_weights, self.model.numerics.stream)?;

        // Later index sources score only inside the blocks that the candidate source kept.
        let candidates = selections.candidates.as_ref().filter(|_| config.selects_among_candidates(layer));
        // A single block needs no more columns than there are entries.
        let block = config.candidate_block_size.min(step.entries);
        let columns = candidates.map_or(step.entries, |blocks| blocks.dim(1) * block);
        let scores = self.arena.tensor(Format::F32, &[self.step.rows, columns])?;
        self.device.index_scores(&IndexScores {
            q: &q,
            head_weight: &head_weight,
            scale: ((dim as f64).powf(-0.5) * (heads as f64).powf(-0.5)) as f32,
            keys: &source.keys,
            format: source.keys_format as u32,
            entries_per_page: source.entries as u32,
            row_request: &self.step.row_request,
            block_table: &self.step.block_table,
            visible: &step.visible,
            candidates,
            block_size: block as u32,
            out: &scores,
        })?;
        self.device.topk_select(&TopkSelect { scores: &scores, out: &selection.positions })?;
        if let Some(candidates) = candidates {
            self.device.restore_candidate_indices_inplace(&RestoreCandidateIndicesInplace {
                columns: &selection.positions,
                candidates,
                block_size: block as u32,
            })?;
        }
        if config.candidate_source_layer_id == Some(layer)
            && let Some(candidates) = &selections.candidates
        {
            let best = self.arena.tensor(Format::F32, &[self.step.rows, step.entries.div_ceil(block)])?;
            self.device.candidate_block_max(&CandidateBlockMax {
                scores: &scores,
                visible: &step.visible,
                block_size: block as u32,
                out: &best,
            })?;
            self.device.topk_select(&TopkSelect { scores: &best, out: candidates })?;
        }
        self.device.convert_kv_index(&ConvertKvIndex {
            positions: &selection.positions,
            row_request: &self.step.row_request,
            block_table: &self.step.block_table,
            entries_per_page: source.entries as u32,
            slots: &selection.slots,
        })?;
        selections.written_by.insert(ratio, layer);
        Ok(())
    }
}
