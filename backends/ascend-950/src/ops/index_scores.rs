//! `index_scores`: scores of cached index keys against the index queries of each row.

use deepinfer_plugin_api::Format;
use deepinfer_plugin_api::generated::IndexScoresArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault, cache_format};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, optional, stream, tiling};

deepinfer_plugin_api::kernel!(IndexScores, index_scores, flags = PROMISES);

static INDEX_SCORES: Function = Function::new(&images::INDEX_SCORES, c"index_scores");
/// Columns that a block takes at a time.
const COLUMNS: usize = 32;
/// Channels of FP4 queries under one scale.
const GROUP: usize = 32;

tiling! {
    struct IndexScoresTiling: 152 {
        rows: i64, heads: i64, dim: i64, columns: i64, candidates: i64, q_stride: i64, q_scale_stride: i64,
        weight_stride: i64, table_stride: i64, candidate_stride: i64, out_stride: i64, page_stride: i64, pages: i64,
        requests: i64, listed: i64, scale: f32, format: u32, entries: u32, block_size: u32, has_candidates: u32,
        q_format: i32, weight_format: i32, reserved: i32,
    }
}

fn index_scores(cx: &Cx<'_>, a: IndexScoresArgs<'_>) -> Result<(), Fault> {
    let d = a.dims;
    if a.candidates.is_some() && a.block_size == 0 {
        return Err(Fault::invalid("block_size is 0, but must be at least 1 with candidates"));
    }
    // A cache without pages has entries of any size.
    let page_bytes = if d.p == 0 { usize::MAX } else { d.b };
    cache_format(("index_scores", "keys"), a.format, a.entries_per_page, d.d, page_bytes)?;
    let (q, weight, keys) = (a.q.view()?, a.head_weight.view()?, a.keys.view()?);
    if q.format() == Some(Format::Fp4Row32) && !d.d.is_multiple_of(GROUP) {
        return Err(Fault::unsupported(format!("FP4_ROW32 queries of {} channels", d.d)));
    }
    let (requests, table, visible) = (a.row_request.view()?, a.block_table.view()?, a.visible.view()?);
    let (candidates, out, stream) = (optional(&a.candidates)?, a.out.view()?, stream(cx)?);
    let tiling = IndexScoresTiling {
        rows: d.t as i64,
        heads: d.h as i64,
        dim: d.d as i64,
        columns: d.n as i64,
        candidates: candidates.columns(),
        q_stride: q.strides[2],
        q_scale_stride: q.scale_strides[2],
        weight_stride: weight.strides[2],
        table_stride: table.strides[2],
        candidate_stride: candidates.strides[2],
        out_stride: out.strides[2],
        page_stride: keys.strides[2],
        pages: keys.rows(),
        requests: d.q as i64,
        listed: table.columns(),
        scale: a.scale,
        format: a.format,
        entries: a.entries_per_page,
        block_size: a.block_size,
        has_candidates: u32::from(a.candidates.is_some()),
        q_format: q.format,
        weight_format: weight.format,
        reserved: 0,
    };
    // Without columns a request can still be wrong: every row has a piece.
    let blocks = blocks(stream, (d.t * d.n.div_ceil(COLUMNS).max(1)) as i64);
    launch!(
        stream,
        INDEX_SCORES,
        blocks,
        [
            q.data,
            q.scale,
            weight.data,
            keys.data,
            requests.data,
            table.data,
            visible.data,
            candidates.data,
            out.data,
            stream.fault_word(),
        ],
        tiling
    )
}
