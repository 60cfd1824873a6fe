//! `rms_norm`: rows divided by their root mean square, times a weight.

use deepinfer_plugin_api::generated::RmsNormArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(RmsNorm, rms_norm);

static RMS_NORM: Function = Function::new(&images::RMS_NORM, c"rms_norm");
const THREADS: u32 = 256;

fn rms_norm(cx: &Cx<'_>, a: RmsNormArgs<'_>) -> Result<(), Fault> {
    let (x, weight, out) = (a.x.view()?, a.weight.view()?, a.out.view()?);
    let grid = Grid::of_items(x.rows() * i64::from(THREADS), THREADS)?;
    launch!(stream(cx)?, RMS_NORM, grid, x, weight, out, a.eps)
}
