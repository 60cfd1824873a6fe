//! `rope`: the pairs of the last channels of every vector turned.

use deepinfer_plugin_api::generated::RopeArgs;
use deepinfer_plugin_api::sdk::tensor::View;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use deepinfer_plugin_api::Format;

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(Rope, rope, flags = super::FLAGS);

static ROPE: Function = Function::new(&images::ROPE, c"rope");
const THREADS: u32 = 128;
/// What a warp takes at once: so many heads of a row, whose turns its lanes have, one each.
const GROUP_HEADS: i64 = 16;
const GROUP_PAIRS: usize = 32;
/// Groups of heads of a warp, if there are rows enough for all warps of a device: a turn then serves longer.
const MOST_GROUPS: i64 = 4;
const MANY_ROWS: i64 = 512;
/// Bytes of an access, and columns of a lane.
const WIDE: i64 = 16;
const OCTET: i64 = 8;

fn rope(cx: &Cx<'_>, a: RopeArgs<'_>) -> Result<(), Fault> {
    if a.inverse > 1 {
        return Err(Fault::invalid(format!("rope: inverse is {}, but must be 0 or 1", a.inverse)));
    }
    let (d, r) = (a.dims.d, a.dims.r);
    if r > d / 2 {
        return Err(Fault::invalid(format!("rope: {r} freqs turn {} channels, but x has {d}", 2 * r)));
    }
    let (x, positions, freqs) = (a.x.view()?, a.positions.view()?, a.freqs.view()?);
    let share =
        if r == GROUP_PAIRS && has_whole_octets(&x) { (x.shape[1] / MANY_ROWS).clamp(1, MOST_GROUPS) } else { 0 };
    let grid = match share {
        // A thread for each pair.
        0 => Grid::of_items(x.rows() * freqs.columns(), THREADS)?,
        _ => {
            let heads = share * GROUP_HEADS;
            Grid::of_warps(x.shape[1] * ((x.shape[2] + heads - 1) / heads), THREADS)?
        }
    };
    launch!(stream(cx)?, ROPE, grid, x, positions, freqs, a.inverse, share as u32)
}

/// Whether eight columns at a time of every vector lie on the boundary of a wide access.
fn has_whole_octets(x: &View) -> bool {
    let size: i64 = if x.format() == Some(Format::F32) { 4 } else { 2 };
    let strides = x.strides[..3].iter();
    x.data.addr() as i64 % WIDE == 0
        && x.columns() % OCTET == 0
        && strides.into_iter().all(|stride| stride * size % WIDE == 0)
}
