//! `rms_norm`: rows divided by their root mean square, times a weight.

use deepinfer_plugin_api::Format;
use deepinfer_plugin_api::generated::RmsNormArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(RmsNorm, rms_norm, flags = super::FLAGS);

static RMS_NORM: Function = Function::new(&images::RMS_NORM, c"rms_norm");
static RMS_NORM_FEW: Function = Function::new(&images::RMS_NORM, c"rms_norm_few");
static RMS_NORM_512: Function = Function::new(&images::RMS_NORM, c"rms_norm_512");
static RMS_NORM_1024: Function = Function::new(&images::RMS_NORM, c"rms_norm_1024");
const THREADS: u32 = 128;
const WARP: i64 = 32;
const OCTET: i64 = 8;
/// Rows of `rms_norm_512` that a warp takes, of BF16 and of F32.
const SHARES: (i64, i64) = (4, 2);
/// Threads of a block of `rms_norm_few`, one for each octet.
const MOST_FEW_THREADS: i64 = 1024;
/// Blocks of `rms_norm` for each multiprocessor, which has half of them at once: the others go to those that are done first.
const BLOCKS: i64 = 8;

fn rms_norm(cx: &Cx<'_>, a: RmsNormArgs<'_>) -> Result<(), Fault> {
    let (x, weight, out) = (a.x.view()?, a.weight.view()?, a.out.view()?);
    let (stream, rows, columns) = (stream(cx)?, x.rows(), x.columns());
    let multiprocessors = i64::from(stream.device().multiprocessors());
    let threads = (columns + WARP * OCTET - 1) / (WARP * OCTET) * WARP;
    // The order of a sum follows from the columns alone: which form takes a row does not show.
    let (function, grid) = if columns <= 512 {
        let share = if x.format == Format::Bf16 as i32 { SHARES.0 } else { SHARES.1 };
        (&RMS_NORM_512, Grid::of_warps((rows + share - 1) / share, THREADS)?)
    } else if columns <= 1024 {
        (&RMS_NORM_1024, Grid::of_warps(rows, THREADS)?)
    } else if rows <= multiprocessors && threads <= MOST_FEW_THREADS {
        (&RMS_NORM_FEW, Grid::new(rows as u32, threads as u32))
    } else {
        (&RMS_NORM, Grid::new(rows.min(BLOCKS * multiprocessors) as u32, THREADS))
    };
    launch!(stream, *function, grid, x, weight, out, a.eps)
}
