//! `sparse_attention`: attention of each row over listed cache entries, with a sink.

use deepinfer_plugin_api::generated::SparseAttentionArgs;
use deepinfer_plugin_api::sdk::tensor::View;
use deepinfer_plugin_api::sdk::{Cx, Fault, cache_format};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(SparseAttention, sparse_attention, flags = PROMISES);

static SPARSE_ATTENTION: Function = Function::new(&images::SPARSE_ATTENTION, c"sparse_attention");
const OP: &str = "sparse_attention";
/// Channels of a piece, pieces of all entries at once, and of all heads; most entries and heads.
const PIECE: usize = 128;
const ENTRY_PIECES: usize = 128;
const HEAD_PIECES: usize = 64;
const MOST_ENTRIES: usize = 32;
const MOST_HEADS: usize = 8;

tiling! {
    struct SourceTiling: 40 { slot_stride: i64, listed: i64, page_stride: i64, pages: i64, entries: u32, format: u32 }
}

tiling! {
    struct SparseAttentionTiling: 160 {
        window: SourceTiling, global: SourceTiling, rows: i64, heads: i64, dim: i64, q_row_stride: i64, q_stride: i64,
        out_row_stride: i64, out_stride: i64, heads_at_once: i64, scale: f32, q_format: i32, rounds: u32,
        entries_at_once: i32,
    }
}

fn source(cache: &View, slots: &View, entries: u32, format: u32) -> SourceTiling {
    let (slot_stride, listed) = (slots.strides[2], slots.columns());
    SourceTiling { slot_stride, listed, page_stride: cache.strides[2], pages: cache.rows(), entries, format }
}

fn sparse_attention(cx: &Cx<'_>, a: SparseAttentionArgs<'_>) -> Result<(), Fault> {
    let d = a.dims;
    if a.round_probs > 1 {
        return Err(Fault::invalid(format!("round_probs is {}, but must be 0 or 1", a.round_probs)));
    }
    // A cache without pages has entries of any size.
    let page_bytes = |pages: usize, bytes: usize| if pages == 0 { usize::MAX } else { bytes };
    let (format, entries) = (a.window_format, a.window_entries_per_page);
    cache_format((OP, "window"), format, entries, d.d, page_bytes(d.p, d.b))?;
    let (window_pages, window_slots) = (a.window.view()?, a.window_slots.view()?);
    let window = source(&window_pages, &window_slots, entries, format);
    let (global_pages, global_slots, global) = match (&a.global, &a.global_slots) {
        (Some(pages), Some(slots)) => {
            let (format, entries) = (a.global_format, a.global_entries_per_page);
            cache_format((OP, "global"), format, entries, d.d, page_bytes(d.g, d.a))?;
            let (pages, slots) = (pages.view()?, slots.view()?);
            (pages, slots, source(&pages, &slots, entries, format))
        }
        (None, None) => (View::ABSENT, View::ABSENT, SourceTiling { listed: 0, entries: 1, ..window }),
        _ => return Err(Fault::invalid("global and global_slots must be present together")),
    };
    let pieces = d.d.div_ceil(PIECE).max(1);
    if pieces > HEAD_PIECES {
        return Err(Fault::unsupported(format!("heads of {} channels; {} are possible", d.d, HEAD_PIECES * PIECE)));
    }
    let heads_at_once = (HEAD_PIECES / pieces).min(MOST_HEADS);
    let (q, sink, out, stream) = (a.q.view()?, a.sink.view()?, a.out.view()?, stream(cx)?);
    let tiling = SparseAttentionTiling {
        window,
        global,
        rows: d.t as i64,
        heads: d.h as i64,
        dim: d.d as i64,
        q_row_stride: q.strides[1],
        q_stride: q.strides[2],
        out_row_stride: out.strides[1],
        out_stride: out.strides[2],
        heads_at_once: heads_at_once as i64,
        scale: a.scale,
        q_format: q.format,
        rounds: a.round_probs,
        entries_at_once: (ENTRY_PIECES / pieces).min(MOST_ENTRIES) as i32,
    };
    // Without heads a slot can still be wrong: every row has a piece.
    let blocks = blocks(stream, (d.t * d.h.div_ceil(heads_at_once).max(1)) as i64);
    launch!(
        stream,
        SPARSE_ATTENTION,
        blocks,
        [
            q.data,
            window_pages.data,
            window_slots.data,
            global_pages.data,
            global_slots.data,
            sink.data,
            out.data,
            stream.fault_word(),
        ],
        tiling
    )
}
