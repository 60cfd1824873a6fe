//! `rope`: the pairs of the last channels of every vector turned.

use deepinfer_plugin_api::generated::RopeArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(Rope, rope);

static ROPE: Function = Function::new(&images::ROPE, c"rope");
const THREADS: u32 = 256;

fn rope(cx: &Cx<'_>, a: RopeArgs<'_>) -> Result<(), Fault> {
    if a.inverse > 1 {
        return Err(Fault::invalid(format!("rope: inverse is {}, but must be 0 or 1", a.inverse)));
    }
    let (d, r) = (a.dims.d, a.dims.r);
    if r > d / 2 {
        return Err(Fault::invalid(format!("rope: {r} freqs turn {} channels, but x has {d}", 2 * r)));
    }
    let (x, positions, freqs) = (a.x.view()?, a.positions.view()?, a.freqs.view()?);
    // A thread for each pair.
    let grid = Grid::of_items(x.rows() * freqs.columns(), THREADS)?;
    launch!(stream(cx)?, ROPE, grid, x, positions, freqs, a.inverse)
}
