//! `gather`: rows of a table by index.

use deepinfer_plugin_api::generated::GatherArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};
use deepinfer_plugin_api::{Format, Shaped};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(Gather, gather, flags = super::FLAGS);

static GATHER: Function = Function::new(&images::GATHER, c"gather");
const THREADS: u32 = 128;
/// What a warp takes of a row: bytes to copy, or columns to convert.
const WARP_BYTES: i64 = 2048;
const WARP_COLUMNS: i64 = 1024;

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
    let size = match to {
        Some(Format::U8) => 1,
        Some(Format::Bf16) => 2,
        Some(Format::I64) => 8,
        _ => 4,
    };
    let columns = if from == to { WARP_BYTES / size } else { WARP_COLUMNS };
    let pieces = (out.columns() + columns - 1) / columns;
    let grid = Grid::of_warps(out.rows() * pieces, THREADS)?;
    launch!(stream(cx)?, GATHER, grid, table, index, out, a.repeat, pieces as u32)
}
