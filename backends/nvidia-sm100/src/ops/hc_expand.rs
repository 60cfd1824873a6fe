//! `hc_expand`: a sublayer's output added to the stream and the copies mixed, in place.

use deepinfer_plugin_api::generated::HcExpandArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};
use crate::ops::hc_collapse::pieces;

deepinfer_plugin_api::kernel!(HcExpand, hc_expand, flags = super::FLAGS);

/// For a stream of four copies.
static FOUR: Function = Function::new(&images::HC_EXPAND_FOUR, c"hc_expand_four");
const FOUR_THREADS: u32 = 256;
/// For any stream.
static HC_EXPAND: Function = Function::new(&images::HC_EXPAND, c"hc_expand");
/// Shared memory that a block gets without asking.
const SHARED_BYTES: usize = 48 * 1024;

fn hc_expand(cx: &Cx<'_>, a: HcExpandArgs<'_>) -> Result<(), Fault> {
    let (x, y, post, comb) = (a.x.view()?, a.y.view()?, a.post.view()?, a.comb.view()?);
    let items = y.rows() * y.columns();
    if items == 0 || a.dims.c == 0 {
        return Ok(());
    }
    if a.dims.c == 4 {
        let pieces = pieces(y.rows(), y.columns(), FOUR_THREADS);
        let grid = Grid::of_items(y.rows() * pieces * i64::from(FOUR_THREADS), FOUR_THREADS)?;
        return launch!(stream(cx)?, FOUR, grid, x, y, post, comb, pieces as u32);
    }
    // A thread keeps a value of each copy: the more copies, the fewer threads.
    let fit = SHARED_BYTES / (4 * a.dims.c);
    let threads = [256, 128, 64, 32].into_iter().find(|&threads| threads as usize <= fit);
    let threads = threads.ok_or_else(|| {
        Fault::unsupported(format!(
            "hc_expand: a stream of {} copies; the kernel takes at most {}",
            a.dims.c,
            SHARED_BYTES / (4 * 32)
        ))
    })?;
    let mut grid = Grid::of_items(items, threads)?;
    grid.shared_bytes = threads * 4 * a.dims.c as u32;
    launch!(stream(cx)?, HC_EXPAND, grid, x, y, post, comb)
}
