//! `engram_gather`: rows of an n-gram table side by side.

use deepinfer_plugin_api::generated::EngramGatherArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, lanes_log2, launch, stream};

deepinfer_plugin_api::kernel!(EngramGather, engram_gather, flags = super::FLAGS);

static ENGRAM_GATHER: Function = Function::new(&images::ENGRAM_GATHER, c"engram_gather");
const THREADS: u32 = 128;
/// Lookups of a thread.
const LOOKUPS: i64 = 4;
/// Columns of a lane at a time.
const OCTET: i64 = 8;

fn engram_gather(cx: &Cx<'_>, a: EngramGatherArgs<'_>) -> Result<(), Fault> {
    let (table, rows, out) = (a.table.view()?, a.rows.view()?, a.out.view()?);
    let lookups = if table.columns() == 0 { 0 } else { rows.rows() * rows.columns() };
    // Some lanes of a warp for every four lookups.
    let lanes = lanes_log2((table.columns() + OCTET - 1) / OCTET, 0, 5);
    let warps = (((lookups + LOOKUPS - 1) / LOOKUPS) << lanes).div_euclid(32) + 1;
    let grid = if lookups == 0 { Grid::new(0, THREADS) } else { Grid::of_warps(warps, THREADS)? };
    launch!(stream(cx)?, ENGRAM_GATHER, grid, table, rows, out, lanes)
}
