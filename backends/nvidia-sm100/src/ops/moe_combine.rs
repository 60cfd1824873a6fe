//! `moe_combine`: the sum of the expert outputs of each row and of the shared expert's.

use deepinfer_plugin_api::generated::MoeCombineArgs;
use deepinfer_plugin_api::sdk::tensor::{In, View};
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(MoeCombine, moe_combine, flags = super::FLAGS);

static MOE_COMBINE: Function = Function::new(&images::MOE_COMBINE, c"moe_combine");
const THREADS: u32 = 128;
/// Columns that a warp takes.
const COLUMNS: usize = 512;

fn moe_combine(cx: &Cx<'_>, a: MoeCombineArgs<'_>) -> Result<(), Fault> {
    let out = a.out.view()?;
    // Without columns a place can still be wrong: every row has a warp.
    let pieces = a.dims.n.div_ceil(COLUMNS).max(1) as i64;
    let shared = a.shared.as_ref().map_or(Ok(View::ABSENT), In::view)?;
    let grid = Grid::of_warps(out.shape[2] * pieces, THREADS)?;
    launch!(stream(cx)?, MOE_COMBINE, grid, a.y.view()?, a.row_of.view()?, shared, out, pieces as u32)
}
