//! `topk_select`: the columns of the largest scores, ascending.

use deepinfer_plugin_api::generated::TopkSelectArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(TopkSelect, topk_select);

static TOPK_SELECT: Function = Function::new(&images::TOPK_SELECT, c"topk_select");
const THREADS: u32 = 1024;

fn topk_select(cx: &Cx<'_>, a: TopkSelectArgs<'_>) -> Result<(), Fault> {
    if a.dims.n > i32::MAX as usize {
        return Err(Fault::invalid(format!("scores has {} columns, more than an I32 can name", a.dims.n)));
    }
    let (scores, out) = (a.scores.view()?, a.out.view()?);
    // Without places there is nothing to write.
    let rows = if a.dims.k == 0 { 0 } else { out.rows() };
    launch!(stream(cx)?, TOPK_SELECT, Grid::of_items(rows * i64::from(THREADS), THREADS)?, scores, out)
}
