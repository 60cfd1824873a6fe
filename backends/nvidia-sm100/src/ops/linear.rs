//! `linear`: product with a transposed weight matrix, optionally block-diagonal.

use deepinfer_plugin_api::generated::LinearArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};
use crate::ops::linear_f32;

deepinfer_plugin_api::kernel!(Linear, linear);

static LINEAR: Function = Function::new(&images::LINEAR, c"linear");
const THREADS: u32 = 256;
/// Rows that a block takes.
const ROWS: i64 = 4;
/// Outputs that a block takes.
const OUTPUTS: i64 = 32;

fn linear(cx: &Cx<'_>, a: LinearArgs<'_>) -> Result<(), Fault> {
    if a.groups == 0 {
        return Err(Fault::invalid("groups is 0, but must be at least 1"));
    }
    let (x, weight, out) = (a.x.view()?, a.weight.view()?, a.out.view()?);
    if linear_f32::takes(&x, &weight) {
        return linear_f32::launch(stream(cx)?, x, weight, out, a.groups);
    }
    let tiles = out.shape[2].unsigned_abs().div_ceil(ROWS as u64) as i64;
    let blocks = i64::from(a.groups) * a.dims.o.div_ceil(OUTPUTS as usize) as i64;
    let grid = Grid::of_items(tiles * blocks * i64::from(THREADS), THREADS)?;
    launch!(stream(cx)?, LINEAR, grid, x, weight, out, a.groups, tiles)
}
