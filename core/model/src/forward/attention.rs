//! Attention: every row reads its window and the compressed entries that its group selected, under one softmax.

use deepinfer_ops::args::{Linear, LoadPagedKvCache, SparseAttention, StoreKvCache};
use deepinfer_ops::traits::{AttentionOps, CacheOps, LinearOps};
use deepinfer_ops::{CacheFormat, Format, OpError, Part, Scope, Tensor};

use super::Run;
use super::select::Selections;
use crate::step::WindowSource;
use crate::weights::AttentionWeights;

/// Where `sparse_attention` finds window entries.
struct Window {
    cache: Tensor,
    format: CacheFormat,
    entries_per_page: usize,
}

impl Run<'_> {
    /// `x` is the normalised input; returns the sublayer's output.
    pub(super) fn attention(
        &self,
        layer: usize,
        weights: &AttentionWeights,
        x: &Tensor,
        selections: &mut Selections,
    ) -> Result<Tensor, OpError> {
        let config = &self.model.config;
        let (rows, heads, dim) = (self.step.rows, config.num_attention_heads, config.head_dim);
        let ratio = config.compress_ratios[layer];
        let freqs = if ratio == 0 { &self.model.window_frequencies } else { &self.model.compressed_frequencies };
        let positions = &self.step.positions;

        let input = self.linear_input(x)?;
        let stream = self.model.numerics.stream;
        let latent = self.linear_plain(&input, &weights.wq_a, stream)?;
        let latent = self.rms_norm(&latent, &weights.q_norm)?;
        let q = self.linear(&latent, &weights.wq_b)?;
        self.rope(&q, heads, positions, freqs, false)?;
        let kv = self.linear_plain(&input, &weights.wkv, stream)?;
        let kv = self.rms_norm(&kv, &weights.kv_norm)?;
        self.rope(&kv, 1, positions, freqs, false)?;
        let window = self.store_window(layer, &kv)?;

        let source = config.kv_source_of(layer).and_then(|source| self.cache.sources[source].as_ref());
        if let (Some(compressor), Some(source)) = (&weights.compressor, source) {
            self.device.scope(Scope::in_layer(layer, Part::Compress));
            self.publish(ratio, compressor, source, x)?;
        }
        if let (Some(indexer), Some(source)) = (&weights.indexer, source) {
            self.device.scope(Scope::in_layer(layer, Part::Select));
            self.select(layer, indexer, source, x, &latent, selections)?;
        }
        self.device.scope(Scope::in_layer(layer, Part::Attention));

        // A layer that reads only its window, or a step in which no row sees a compressed entry, has no second cache.
        let global = source.zip(selections.slots(ratio));
        let out = self.activation(&[rows, heads, dim])?;
        self.device.sparse_attention(&SparseAttention {
            q: &q.reshape(&[rows, heads, dim]),
            window: &window.cache,
            window_format: window.format as u32,
            window_entries_per_page: window.entries_per_page as u32,
            window_slots: &self.step.window_slots,
            global: global.map(|(source, _)| &source.main),
            global_format: global.map_or(0, |(source, _)| source.main_format as u32),
            global_entries_per_page: global.map_or(1, |(source, _)| source.entries as u32),
            global_slots: global.map(|(_, slots)| slots),
            sink: &weights.sink,
            scale: (dim as f64).powf(-0.5) as f32,
            round_probs: u32::from(self.model.numerics.bf16_probs),
            out: &out,
        })?;
        self.project(weights, &out.reshape(&[rows, heads * dim]), freqs)
    }

    /// Stores the window entries of the step and says where rows find theirs.
    fn store_window(&self, layer: usize, kv: &Tensor) -> Result<Window, OpError> {
        let ring = &self.cache.windows[layer];
        let (format, ring_entries) = (self.cache.formats.window, self.cache.ring);
        let dim = self.model.config.head_dim;
        let store = |rounded: Option<&Tensor>| {
            self.device.store_kv_cache(&StoreKvCache {
                kv,
                slots: &self.step.ring_slots,
                cache: ring,
                format: format as u32,
                entries_per_page: ring_entries as u32,
                rounded,
            })
        };
        match &self.step.window {
            WindowSource::Ring => {
                store(None)?;
                Ok(Window { cache: ring.clone(), format, entries_per_page: ring_entries })
            }
            WindowSource::Dense { history_slots, rows } => {
                let dense = self.activation(&[*rows, dim])?;
                let history = history_slots.dim(0);
                // Before the chunk overwrites them.
                self.device.load_paged_kv_cache(&LoadPagedKvCache {
                    cache: ring,
                    slots: history_slots,
                    format: format as u32,
                    entries_per_page: ring_entries as u32,
                    out: &dense.rows(0, history),
                })?;
                // The chunk's own entries as a reader of the ring would see them, so that chunks of any size agree.
                store(Some(&dense.rows(history, rows - history)))?;
                let bytes = dense.bytes();
                let cache = Tensor::plain(&dense.memory(), 0, Format::U8, &[1, bytes]);
                Ok(Window { cache, format: self.model.numerics.dense_format(), entries_per_page: *rows })
            }
        }
    }

    /// Rotates the attended values back and projects them, group by group and then together.
    fn project(&self, weights: &AttentionWeights, attended: &Tensor, freqs: &Tensor) -> Result<Tensor, OpError> {
        let config = &self.model.config;
        self.rope(attended, config.num_attention_heads, &self.step.positions, freqs, true)?;
        let attended =
            if self.model.numerics.wo_a_fp8 { self.quantize(attended, Format::Fp8Row32)? } else { attended.clone() };
        let low_rank = self.activation(&[self.step.rows, config.o_groups * config.o_lora_rank])?;
        self.device.linear(&Linear {
            x: &attended,
            weight: &weights.wo_a,
            groups: config.o_groups as u32,
            out: &low_rank,
        })?;
        self.linear(&low_rank, &weights.wo_b)
    }
}
