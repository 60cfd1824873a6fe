//! `hc_collapse`: the weighted sum of the copies of the stream.

use deepinfer_plugin_api::generated::HcCollapseArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(HcCollapse, hc_collapse);

static HC_COLLAPSE: Function = Function::new(&images::HC_COLLAPSE, c"hc_collapse");
const THREADS: u32 = 256;

fn hc_collapse(cx: &Cx<'_>, a: HcCollapseArgs<'_>) -> Result<(), Fault> {
    let (x, pre, out) = (a.x.view()?, a.pre.view()?, a.out.view()?);
    let grid = Grid::of_items(out.rows() * out.columns(), THREADS)?;
    launch!(stream(cx)?, HC_COLLAPSE, grid, x, pre, out)
}
