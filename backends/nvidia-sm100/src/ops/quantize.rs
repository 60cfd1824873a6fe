//! `quantize`: rows to a scaled 8- or 4-bit format.

use deepinfer_plugin_api::generated::QuantizeArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};
use deepinfer_plugin_api::{Format, Shaped};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(Quantize, quantize, flags = super::FLAGS);

static QUANTIZE: Function = Function::new(&images::QUANTIZE, c"quantize");
const THREADS: u32 = 128;
/// Columns that a warp takes.
const PIECE: i64 = 1024;

fn quantize(cx: &Cx<'_>, a: QuantizeArgs<'_>) -> Result<(), Fault> {
    let group = a.out.format().and_then(Format::scale).map_or(1, |scale| scale.columns);
    if !a.dims.n.is_multiple_of(group) {
        let n = a.dims.n;
        return Err(Fault::invalid(format!(
            "quantize: x has {n} columns, but the format of out needs a multiple of {group}"
        )));
    }
    let (x, out) = (a.x.view()?, a.out.view()?);
    let pieces = (x.columns() + PIECE - 1) / PIECE;
    let grid = Grid::of_warps(x.rows() * pieces, THREADS)?;
    launch!(stream(cx)?, QUANTIZE, grid, x, out)
}
