//! `gather`: rows of a table by index.

use deepinfer_plugin_api::generated::GatherArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};
use deepinfer_plugin_api::{Format, Shaped};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(Gather, gather);

static GATHER: Function = Function::new(&images::GATHER, c"gather");
const THREADS: u32 = 256;
const WARP: i64 = 32;

fn gather(cx: &Cx<'_>, a: GatherArgs<'_>) -> Result<(), Fault> {
    let floats = [Some(Format::F32), Some(Format::Bf16)];
    let (from, to) = (a.table.format(), a.out.format());
    if from != to && !(floats.contains(&from) && floats.contains(&to)) {
        let name = |format: Option<Format>| format.map_or("an unknown format", Format::name);
        return Err(Fault::invalid(format!(
            "out is {} and table {}, but only F32 and BF16 are converted into each other",
            name(to),
            name(from)
        )));
    }
    let (table, index, out) = (a.table.view()?, a.index.view()?, a.out.view()?);
    let grid = if out.columns() == 0 { Grid::new(0, THREADS) } else { Grid::of_items(out.rows() * WARP, THREADS)? };
    launch!(stream(cx)?, GATHER, grid, table, index, out, a.repeat)
}
