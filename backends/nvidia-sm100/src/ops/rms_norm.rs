//! `rms_norm`: rows divided by their root mean square, times a weight.

use deepinfer_plugin_api::generated::RmsNormArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(RmsNorm, rms_norm, flags = super::FLAGS);

static RMS_NORM: Function = Function::new(&images::RMS_NORM, c"rms_norm");
/// Columns that an octet of each thread of a warp covers.
const WARP_COLUMNS: i64 = 256;
const WARP: i64 = 32;
const MOST_THREADS: i64 = 1024;
/// Rows of a block, if there are rows enough for all blocks of a device.
const MOST_ROWS: i64 = 8;
const MANY_ROWS: i64 = 4096;

fn rms_norm(cx: &Cx<'_>, a: RmsNormArgs<'_>) -> Result<(), Fault> {
    let (x, weight, out) = (a.x.view()?, a.weight.view()?, a.out.view()?);
    // The order of the sum follows from the threads, and these from the columns.
    let threads = ((x.columns() + WARP_COLUMNS - 1) / WARP_COLUMNS * WARP).clamp(WARP, MOST_THREADS);
    let share = (x.rows() / MANY_ROWS).clamp(1, MOST_ROWS);
    let grid = Grid::of_items((x.rows() + share - 1) / share * threads, threads as u32)?;
    launch!(stream(cx)?, RMS_NORM, grid, x, weight, out, a.eps, share as u32)
}
