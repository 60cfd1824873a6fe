//! `engram_gather`: rows of an n-gram table side by side.

use deepinfer_plugin_api::generated::EngramGatherArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(EngramGather, engram_gather);

static ENGRAM_GATHER: Function = Function::new(&images::ENGRAM_GATHER, c"engram_gather");
const THREADS: u32 = 256;
const WARP: i64 = 32;

fn engram_gather(cx: &Cx<'_>, a: EngramGatherArgs<'_>) -> Result<(), Fault> {
    let (table, rows, out) = (a.table.view()?, a.rows.view()?, a.out.view()?);
    // A warp for each looked-up row.
    let lookups = if table.columns() == 0 { 0 } else { rows.rows() * rows.columns() };
    launch!(stream(cx)?, ENGRAM_GATHER, Grid::of_items(lookups * WARP, THREADS)?, table, rows, out)
}
