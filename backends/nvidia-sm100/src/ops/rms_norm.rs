//! `rms_norm`: rows divided by their root mean square, times a weight.

use deepinfer_plugin_api::Format;
use deepinfer_plugin_api::generated::RmsNormArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(RmsNorm, rms_norm, flags = super::FLAGS);

static RMS_NORM: Function = Function::new(&images::RMS_NORM, c"rms_norm");
static RMS_NORM_512: Function = Function::new(&images::RMS_NORM, c"rms_norm_512");
static RMS_NORM_1280: Function = Function::new(&images::RMS_NORM, c"rms_norm_1280");
const THREADS: u32 = 128;
/// Rows of `rms_norm_512` that a warp takes, of BF16 and of F32.
const SHARES: (i64, i64) = (4, 2);
/// Blocks of `rms_norm` for each multiprocessor, which has four at once: the others go to those that are done first.
const BLOCKS: i64 = 24;

fn rms_norm(cx: &Cx<'_>, a: RmsNormArgs<'_>) -> Result<(), Fault> {
    let (x, weight, out) = (a.x.view()?, a.weight.view()?, a.out.view()?);
    let (stream, rows, columns) = (stream(cx)?, x.rows(), x.columns());
    // The order of a sum follows from the columns alone: which form takes a row does not show.
    let (function, grid) = if columns <= 512 {
        let share = if x.format == Format::Bf16 as i32 { SHARES.0 } else { SHARES.1 };
        (&RMS_NORM_512, Grid::of_warps((rows + share - 1) / share, THREADS)?)
    } else if columns <= 1280 {
        (&RMS_NORM_1280, Grid::of_warps(rows, THREADS)?)
    } else {
        let blocks = BLOCKS * i64::from(stream.device().multiprocessors());
        (&RMS_NORM, Grid::new(rows.min(blocks) as u32, THREADS))
    };
    launch!(stream, *function, grid, x, weight, out, a.eps)
}
