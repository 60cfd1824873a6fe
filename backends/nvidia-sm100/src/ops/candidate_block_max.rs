//! `candidate_block_max`: the best visible score of each block of entries.

use deepinfer_plugin_api::generated::CandidateBlockMaxArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(CandidateBlockMax, candidate_block_max);

static CANDIDATE_BLOCK_MAX: Function = Function::new(&images::CANDIDATE_BLOCK_MAX, c"candidate_block_max");
const THREADS: u32 = 256;
const WARP: i64 = 32;

fn candidate_block_max(cx: &Cx<'_>, a: CandidateBlockMaxArgs<'_>) -> Result<(), Fault> {
    if a.block_size == 0 {
        return Err(Fault::invalid("block_size is 0, but must be at least 1"));
    }
    let out = a.out.view()?;
    let grid = Grid::of_items(out.rows() * out.columns() * WARP, THREADS)?;
    launch!(stream(cx)?, CANDIDATE_BLOCK_MAX, grid, a.scores.view()?, a.visible.view()?, out, a.block_size)
}
