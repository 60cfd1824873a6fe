//! `candidate_block_max`: the best visible score of each block of entries.

use deepinfer_plugin_api::generated::CandidateBlockMaxArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(CandidateBlockMax, candidate_block_max, flags = PROMISES);

static CANDIDATE_BLOCK_MAX: Function = Function::new(&images::CANDIDATE_BLOCK_MAX, c"candidate_block_max");
/// Blocks of entries that a core takes at a time.
const PIECE: u64 = 128;

tiling! {
    struct CandidateBlockMaxTiling: 48 {
        rows: i64, columns: i64, score_stride: i64, blocks: i64, out_stride: i64, block_size: i64,
    }
}

fn candidate_block_max(cx: &Cx<'_>, a: CandidateBlockMaxArgs<'_>) -> Result<(), Fault> {
    if a.block_size == 0 {
        return Err(Fault::invalid("block_size is 0, but must be at least 1"));
    }
    let (scores, visible, out, stream) = (a.scores.view()?, a.visible.view()?, a.out.view()?, stream(cx)?);
    let tiling = CandidateBlockMaxTiling {
        rows: out.rows(),
        columns: scores.columns(),
        score_stride: scores.strides[2],
        blocks: out.columns(),
        out_stride: out.strides[2],
        block_size: i64::from(a.block_size),
    };
    let pieces = tiling.blocks.unsigned_abs().div_ceil(PIECE) as i64;
    let blocks = blocks(stream, tiling.rows.saturating_mul(pieces));
    launch!(stream, CANDIDATE_BLOCK_MAX, blocks, [scores.data, visible.data, out.data], tiling)
}
