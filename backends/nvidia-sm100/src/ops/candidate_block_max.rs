//! `candidate_block_max`: the best visible score of each block of entries.

use deepinfer_plugin_api::generated::CandidateBlockMaxArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(CandidateBlockMax, candidate_block_max, flags = super::FLAGS);

static QUADS: Function = Function::new(&images::CANDIDATE_BLOCK_MAX, c"candidate_block_max_quads");
static ANY: Function = Function::new(&images::CANDIDATE_BLOCK_MAX, c"candidate_block_max");
const THREADS: u32 = 256;
const WARP: i64 = 32;
/// Columns that a block of threads takes in quads.
const COLUMNS: i64 = 4096;

fn candidate_block_max(cx: &Cx<'_>, a: CandidateBlockMaxArgs<'_>) -> Result<(), Fault> {
    if a.block_size == 0 {
        return Err(Fault::invalid("block_size is 0, but must be at least 1"));
    }
    let (scores, visible, out) = (a.scores.view()?, a.visible.view()?, a.out.view()?);
    let (rows, blocks) = (out.rows(), out.columns());
    // Quads of four scores on their boundary, one to 32 of them per block.
    let is_on_16 = scores.data.addr() % 16 == 0 && (scores.strides[2] % 4 == 0 || rows == 1);
    if is_on_16 && a.block_size.is_power_of_two() && (4..=128).contains(&a.block_size) {
        let lanes_log2 = (a.block_size / 4).ilog2();
        let pieces = (scores.columns() as u64).div_ceil(COLUMNS as u64) as i64;
        let grid = Grid::of_items(rows * pieces * i64::from(THREADS), THREADS)?;
        return launch!(stream(cx)?, QUADS, grid, scores, visible, out, lanes_log2, pieces as u32);
    }
    launch!(stream(cx)?, ANY, Grid::of_items(rows * blocks * WARP, THREADS)?, scores, visible, out, a.block_size)
}
