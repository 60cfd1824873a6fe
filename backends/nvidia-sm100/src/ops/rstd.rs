//! `rstd`: the inverse root of the mean square of each row.

use deepinfer_plugin_api::generated::RstdArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(Rstd, rstd);

static RSTD: Function = Function::new(&images::RSTD, c"rstd");
const THREADS: u32 = 256;

fn rstd(cx: &Cx<'_>, a: RstdArgs<'_>) -> Result<(), Fault> {
    let (x, out) = (a.x.view()?, a.out.view()?);
    launch!(stream(cx)?, RSTD, Grid::of_items(x.rows() * i64::from(THREADS), THREADS)?, x, out, a.eps)
}
