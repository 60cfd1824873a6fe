//! The operators, one method each, in traits by what they are about.
//!
//! A method checks what shapes cannot say and dispatches. The traits are implemented once, for everything that
//! dispatches; whether a loaded plugin has a kernel is known when it is selected. Semantics: the documentation of the
//! argument structs, which is the catalogue's.

use deepinfer_plugin_api::CacheFormat;

use crate::args;
use crate::device::Dispatch;
use crate::error::OpError;
use crate::tensor::Tensor;

/// Copies of rows.
pub trait CopyOps: Dispatch {
    /// Rows of a table, by index. See [`args::Gather`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn gather(&self, args: &args::Gather<'_>) -> Result<(), OpError> {
        at_least_one("gather", "repeat", args.repeat)?;
        self.dispatch(args)
    }
}

impl<T: Dispatch + ?Sized> CopyOps for T {}

/// Root-mean-square statistics and normalisation.
pub trait NormOps: Dispatch {
    /// Rows scaled to unit root mean square, times a weight. See [`args::RmsNorm`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn rms_norm(&self, args: &args::RmsNorm<'_>) -> Result<(), OpError> {
        self.dispatch(args)
    }

    /// Reciprocal root mean square of rows. See [`args::Rstd`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn rstd(&self, args: &args::Rstd<'_>) -> Result<(), OpError> {
        self.dispatch(args)
    }
}

impl<T: Dispatch + ?Sized> NormOps for T {}

/// Products with weights in their stored formats.
pub trait LinearOps: Dispatch {
    /// Product with a transposed weight matrix. See [`args::Linear`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn linear(&self, args: &args::Linear<'_>) -> Result<(), OpError> {
        at_least_one("linear", "groups", args.groups)?;
        self.dispatch(args)
    }

    /// Row ranges, each with its own weight matrix. See [`args::GroupedLinear`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn grouped_linear(&self, args: &args::GroupedLinear<'_>) -> Result<(), OpError> {
        self.dispatch(args)
    }
}

impl<T: Dispatch + ?Sized> LinearOps for T {}

/// Conversions to scaled formats.
pub trait QuantizeOps: Dispatch {
    /// Rounds rows to a scaled 8- or 4-bit format. See [`args::Quantize`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn quantize(&self, args: &args::Quantize<'_>) -> Result<(), OpError> {
        self.dispatch(args)
    }
}

impl<T: Dispatch + ?Sized> QuantizeOps for T {}

/// Rotary position embedding.
pub trait RopeOps: Dispatch {
    /// Rotates the last channels of each vector, in place. See [`args::Rope`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn rope(&self, args: &args::Rope<'_>) -> Result<(), OpError> {
        self.dispatch(args)
    }
}

impl<T: Dispatch + ?Sized> RopeOps for T {}

/// Hyper-connections: several copies of the residual stream, mixed at every sublayer.
pub trait HyperConnectionOps: Dispatch {
    /// Mixing coefficients from raw projections. See [`args::HcMix`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn hc_mix(&self, args: &args::HcMix<'_>) -> Result<(), OpError> {
        self.dispatch(args)
    }

    /// Weighted sum of the copies. See [`args::HcCollapse`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn hc_collapse(&self, args: &args::HcCollapse<'_>) -> Result<(), OpError> {
        self.dispatch(args)
    }

    /// Adds a sublayer's output and mixes the copies, in place. See [`args::HcExpand`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn hc_expand(&self, args: &args::HcExpand<'_>) -> Result<(), OpError> {
        self.dispatch(args)
    }
}

impl<T: Dispatch + ?Sized> HyperConnectionOps for T {}

/// Paged caches.
pub trait CacheOps: Dispatch {
    /// Encodes rows into cache entries. See [`args::StoreKvCache`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn store_kv_cache(&self, args: &args::StoreKvCache<'_>) -> Result<(), OpError> {
        cache_format("store_kv_cache", "", args.format, args.cache, args.entries_per_page, args.kv.dim(1))?;
        self.dispatch(args)
    }

    /// Decodes cache entries into rows. See [`args::LoadPagedKvCache`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn load_paged_kv_cache(&self, args: &args::LoadPagedKvCache<'_>) -> Result<(), OpError> {
        cache_format("load_paged_kv_cache", "", args.format, args.cache, args.entries_per_page, args.out.dim(1))?;
        self.dispatch(args)
    }

    /// Turns entry positions of a request into cache slots. See [`args::ConvertKvIndex`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn convert_kv_index(&self, args: &args::ConvertKvIndex<'_>) -> Result<(), OpError> {
        at_least_one("convert_kv_index", "entries_per_page", args.entries_per_page)?;
        self.dispatch(args)
    }

    /// Pools groups of consecutive tokens and keeps the open group. See [`args::CompressAndUpdateState`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn compress_and_update_state(&self, args: &args::CompressAndUpdateState<'_>) -> Result<(), OpError> {
        let ring = args.state.dim(1);
        if !(2..=ring).contains(&(args.ratio as usize)) {
            let problem = format!("is {}, but must lie between 2 and the ring of {ring} rows", args.ratio);
            return Err(argument("compress_and_update_state", "ratio", problem));
        }
        self.dispatch(args)
    }
}

impl<T: Dispatch + ?Sized> CacheOps for T {}

/// Choice of the cache entries that a row attends to.
pub trait SelectOps: Dispatch {
    /// Scores of cached index keys. See [`args::IndexScores`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn index_scores(&self, args: &args::IndexScores<'_>) -> Result<(), OpError> {
        let dim = args.q.dim(1) / args.head_weight.dim(1).max(1);
        cache_format("index_scores", "", args.format, args.keys, args.entries_per_page, dim)?;
        if args.candidates.is_some() {
            at_least_one("index_scores", "block_size", args.block_size)?;
        }
        self.dispatch(args)
    }

    /// Best score of each block of entries. See [`args::CandidateBlockMax`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn candidate_block_max(&self, args: &args::CandidateBlockMax<'_>) -> Result<(), OpError> {
        at_least_one("candidate_block_max", "block_size", args.block_size)?;
        self.dispatch(args)
    }

    /// Columns of the largest scores, ascending. See [`args::TopkSelect`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn topk_select(&self, args: &args::TopkSelect<'_>) -> Result<(), OpError> {
        self.dispatch(args)
    }

    /// Columns of a candidate-restricted row to entries. See [`args::RestoreCandidateIndicesInplace`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn restore_candidate_indices_inplace(
        &self,
        args: &args::RestoreCandidateIndicesInplace<'_>,
    ) -> Result<(), OpError> {
        at_least_one("restore_candidate_indices_inplace", "block_size", args.block_size)?;
        self.dispatch(args)
    }
}

impl<T: Dispatch + ?Sized> SelectOps for T {}

/// Attention.
pub trait AttentionOps: Dispatch {
    /// Attention over listed cache entries, with a sink. See [`args::SparseAttention`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn sparse_attention(&self, args: &args::SparseAttention<'_>) -> Result<(), OpError> {
        let (op, dim) = ("sparse_attention", args.q.dim(2));
        cache_format(op, "window_", args.window_format, args.window, args.window_entries_per_page, dim)?;
        if args.global.is_some() != args.global_slots.is_some() {
            return Err(argument(op, "global_slots", "must be present exactly when global is".to_owned()));
        }
        if let Some(global) = args.global {
            cache_format(op, "global_", args.global_format, global, args.global_entries_per_page, dim)?;
        }
        self.dispatch(args)
    }
}

impl<T: Dispatch + ?Sized> AttentionOps for T {}

/// Mixture of experts.
pub trait MoeOps: Dispatch {
    /// Chooses experts and their weights. See [`args::MoeGate`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn moe_gate(&self, args: &args::MoeGate<'_>) -> Result<(), OpError> {
        if args.experts.dim(1) > args.logits.dim(1) {
            let problem = format!("asks for {} of {} experts", args.experts.dim(1), args.logits.dim(1));
            return Err(argument("moe_gate", "experts", problem));
        }
        self.dispatch(args)
    }

    /// Copies rows to their experts, sorted by expert. See [`args::MoeDispatch`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn moe_dispatch(&self, args: &args::MoeDispatch<'_>) -> Result<(), OpError> {
        self.dispatch(args)
    }

    /// The gated activation of an expert. See [`args::SwigluQuantize`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn swiglu_quantize(&self, args: &args::SwigluQuantize<'_>) -> Result<(), OpError> {
        self.dispatch(args)
    }

    /// Sums expert outputs and the shared expert's. See [`args::MoeCombine`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn moe_combine(&self, args: &args::MoeCombine<'_>) -> Result<(), OpError> {
        self.dispatch(args)
    }
}

impl<T: Dispatch + ?Sized> MoeOps for T {}

/// N-gram memory.
pub trait EngramOps: Dispatch {
    /// Table rows for each token, and the id history. See [`args::EngramHash`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn engram_hash(&self, args: &args::EngramHash<'_>) -> Result<(), OpError> {
        self.dispatch(args)
    }

    /// Looked-up rows, side by side. See [`args::EngramGather`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn engram_gather(&self, args: &args::EngramGather<'_>) -> Result<(), OpError> {
        self.dispatch(args)
    }

    /// Adds the gated value to the stream, in place. See [`args::EngramGate`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn engram_gate(&self, args: &args::EngramGate<'_>) -> Result<(), OpError> {
        self.dispatch(args)
    }
}

impl<T: Dispatch + ?Sized> EngramOps for T {}

/// Choice of the next token.
pub trait SampleOps: Dispatch {
    /// Biases and penalties, in place. See [`args::AdjustLogits`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn adjust_logits(&self, args: &args::AdjustLogits<'_>) -> Result<(), OpError> {
        self.dispatch(args)
    }

    /// Bans what a bit mask lacks, in place. See [`args::ApplyTokenMask`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn apply_token_mask(&self, args: &args::ApplyTokenMask<'_>) -> Result<(), OpError> {
        self.dispatch(args)
    }

    /// Draws one token per row. See [`args::FusedSample`].
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    fn fused_sample(&self, args: &args::FusedSample<'_>) -> Result<(), OpError> {
        self.dispatch(args)
    }
}

impl<T: Dispatch + ?Sized> SampleOps for T {}

/// Every op.
pub trait Ops:
    CopyOps
    + NormOps
    + LinearOps
    + QuantizeOps
    + RopeOps
    + HyperConnectionOps
    + CacheOps
    + SelectOps
    + AttentionOps
    + MoeOps
    + EngramOps
    + SampleOps
{
}

impl<T: Dispatch + ?Sized> Ops for T {}

fn argument(op: &'static str, arg: &str, problem: String) -> OpError {
    OpError::Argument(crate::ArgError { op, arg: arg.to_owned(), problem })
}

fn at_least_one(op: &'static str, arg: &str, value: u32) -> Result<(), OpError> {
    if value > 0 { Ok(()) } else { Err(argument(op, arg, "is 0, but must be at least 1".to_owned())) }
}

/// The format exists, divides the channels, and a page of it fits into the pages of `cache`. `prefix` is what the op puts
/// before the names `format` and `entries_per_page`.
fn cache_format(
    op: &'static str,
    prefix: &str,
    format: u32,
    cache: &Tensor,
    entries_per_page: u32,
    dim: usize,
) -> Result<(), OpError> {
    let wrong = |what: &str, problem: String| Err(argument(op, &format!("{prefix}{what}"), problem));
    if entries_per_page == 0 {
        return wrong("entries_per_page", "is 0, but must be at least 1".to_owned());
    }
    let Some(known) = CacheFormat::from_u32(format) else {
        return wrong("format", format!("is {format}, which is no cache format"));
    };
    if known.group() > 0 && !dim.is_multiple_of(known.group()) {
        let problem = format!("scales groups of {} channels, which do not divide {dim}", known.group());
        return wrong("format", problem);
    }
    let (needed, page) = (entries_per_page as usize * known.entry_bytes(dim), cache.dim(1));
    if needed > page {
        let problem = format!("needs pages of {needed} bytes for {entries_per_page} entries, but they have {page}");
        return wrong("format", problem);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_op_of_the_catalogue_has_a_method() {
        let source = include_str!("traits.rs");
        for op in deepinfer_plugin_api::generated::OPS {
            assert!(source.contains(&format!("    fn {}(", op.name)), "{} has no trait method", op.name);
        }
    }
}
