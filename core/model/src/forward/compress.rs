//! KV sources: compressed entries and index keys for this layer and the ones after it.

use deepinfer_ops::args::{CompressAndUpdateState, StoreKvCache};
use deepinfer_ops::traits::CacheOps;
use deepinfer_ops::{Format, OpError, Tensor};

use super::Run;
use crate::state::SourceCache;
use crate::step::RatioStep;
use crate::weights::CompressorWeights;

impl Run<'_> {
    /// Writes the entries of the groups that end in this step. `x` is the attention's input.
    pub(super) fn publish(
        &self,
        ratio: usize,
        weights: &CompressorWeights,
        source: &SourceCache,
        x: &Tensor,
    ) -> Result<(), OpError> {
        let step = &self.step.ratios[&ratio];
        let groups = step.group_row.dim(0);
        let latent = self.latent(ratio, weights, source, step, x)?;
        if groups == 0 {
            return Ok(());
        }
        let latent = self.rms_norm(&latent, &weights.norm)?;
        let freqs = &self.model.compressed_frequencies;

        // The key is made before the latent is rotated in place.
        let key = self.linear_plain(&latent, &weights.key_projection, self.model.numerics.stream)?;
        let key = self.rms_norm(&key, &weights.key_norm)?;
        self.rope(&key, 1, &step.group_position, freqs, false)?;
        self.rope(&latent, 1, &step.group_position, freqs, false)?;
        for (rows, cache, format) in
            [(&key, &source.keys, source.keys_format), (&latent, &source.main, source.main_format)]
        {
            self.device.store_kv_cache(&StoreKvCache {
                kv: rows,
                slots: &step.group_slot,
                cache,
                format: format as u32,
                entries_per_page: source.entries as u32,
                rounded: None,
            })?;
        }
        Ok(())
    }

    /// One row per group that ends in this step: at ratio 1 a projection, else a gated mean of the group's tokens.
    fn latent(
        &self,
        ratio: usize,
        weights: &CompressorWeights,
        source: &SourceCache,
        step: &RatioStep,
        x: &Tensor,
    ) -> Result<Tensor, OpError> {
        let (Some(wgate), Some(state)) = (&weights.wgate, &source.open_groups) else {
            return self.linear_plain(x, &weights.wkv, self.model.numerics.stream);
        };
        let latent = self.linear_plain(x, &weights.wkv, Format::F32)?;
        let score = self.linear_plain(x, wgate, Format::F32)?;
        let out = self.activation(&[step.group_row.dim(0), self.model.config.head_dim])?;
        // Runs without a group, too: the open one is kept.
        self.device.compress_and_update_state(&CompressAndUpdateState {
            latent: &latent,
            score: &score,
            state,
            group_row: &step.group_row,
            positions: &self.step.positions,
            row_request: &self.step.row_request,
            request_start: &self.step.request_start,
            state_slot: &self.step.state_slot,
            ratio: ratio as u32,
            out: &out,
        })?;
        Ok(out)
    }
}
