//! `moe_dispatch`: rows copied to their experts, sorted by expert. The order is found first; the copy reads it from `row_of`.

use deepinfer_plugin_api::generated::MoeDispatchArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(MoeDispatch, moe_dispatch);

static SORT: Function = Function::new(&images::MOE_DISPATCH, c"moe_dispatch_sort");
static COPY: Function = Function::new(&images::MOE_DISPATCH, c"moe_dispatch_copy");
const SORT_THREADS: u32 = 1024;
const COPY_THREADS: u32 = 256;
const WARP: i64 = 32;

fn moe_dispatch(cx: &Cx<'_>, a: MoeDispatchArgs<'_>) -> Result<(), Fault> {
    let pairs = a.dims.t as i64 * a.dims.k as i64;
    if pairs > i64::from(i32::MAX) {
        return Err(Fault::invalid(format!("experts has {pairs} pairs, more than an I32 row of row_of can name")));
    }
    let (x, row_of, out, expert_start) = (a.x.view()?, a.row_of.view()?, a.out.view()?, a.expert_start.view()?);
    let stream = stream(cx)?;
    let blocks = Grid::of_items(expert_start.columns() * i64::from(SORT_THREADS), SORT_THREADS)?;
    launch!(stream, SORT, blocks, a.experts.view()?, a.weights.view()?, a.row_weight.view()?, expert_start, row_of)?;
    launch!(stream, COPY, Grid::of_items(pairs * WARP, COPY_THREADS)?, x, row_of, out)
}
