//! `rstd`: the inverse root of the mean square of each row.

use deepinfer_plugin_api::generated::RstdArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(Rstd, rstd, flags = super::FLAGS);

static SHORT: Function = Function::new(&images::RSTD, c"rstd_short");
static LONG: Function = Function::new(&images::RSTD, c"rstd_long");
/// From so many columns on a row has a large block.
const MANY_COLUMNS: i64 = 8192;

fn rstd(cx: &Cx<'_>, a: RstdArgs<'_>) -> Result<(), Fault> {
    let (x, out) = (a.x.view()?, a.out.view()?);
    let (function, threads) = if x.columns() < MANY_COLUMNS { (&SHORT, 256) } else { (&LONG, 1024) };
    launch!(stream(cx)?, *function, Grid::of_items(x.rows() * i64::from(threads), threads)?, x, out, a.eps)
}
