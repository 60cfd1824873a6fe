//! `hc_collapse`: the weighted sum of the copies of the stream.

use deepinfer_plugin_api::generated::HcCollapseArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(HcCollapse, hc_collapse, flags = super::FLAGS);

static HC_COLLAPSE: Function = Function::new(&images::HC_COLLAPSE, c"hc_collapse");
const THREADS: u32 = 256;

fn hc_collapse(cx: &Cx<'_>, a: HcCollapseArgs<'_>) -> Result<(), Fault> {
    let (x, pre, out) = (a.x.view()?, a.pre.view()?, a.out.view()?);
    let pieces = pieces(out.rows(), out.columns(), THREADS);
    let grid = Grid::of_items(out.rows() * pieces * i64::from(THREADS), THREADS)?;
    launch!(stream(cx)?, HC_COLLAPSE, grid, x, pre, out, pieces as u32)
}

/// Blocks that a row of quads is cut into: one where there are many rows, and otherwise one for `threads` quads. Channels do not
/// depend on each other.
pub(super) fn pieces(rows: i64, columns: i64, threads: u32) -> i64 {
    /// With so many rows the device is busy.
    const BUSY: i64 = 512;
    let quads = (columns + 3) / 4;
    if rows >= BUSY { 1 } else { ((quads + i64::from(threads) - 1) / i64::from(threads)).max(1) }
}
