//! `rope`: the pairs of the last channels of every vector turned.

use deepinfer_plugin_api::generated::RopeArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(Rope, rope, flags = PROMISES);

static ROPE: Function = Function::new(&images::ROPE, c"rope");
/// Heads, and pairs, that a block takes at a time.
const HEADS: usize = 16;
const PAIRS: usize = 64;

tiling! {
    struct RopeTiling: 56 {
        tokens: i64, heads: i64, pairs: i64, first: i64, token_stride: i64, head_stride: i64, format: i32, inverse: u32,
    }
}

fn rope(cx: &Cx<'_>, a: RopeArgs<'_>) -> Result<(), Fault> {
    if a.inverse > 1 {
        return Err(Fault::invalid(format!("rope: inverse is {}, but must be 0 or 1", a.inverse)));
    }
    let (d, r) = (a.dims.d, a.dims.r);
    if r > d / 2 {
        return Err(Fault::invalid(format!("rope: {r} freqs turn {} channels, but x has {d}", 2 * r)));
    }
    let (x, positions, freqs, stream) = (a.x.view()?, a.positions.view()?, a.freqs.view()?, stream(cx)?);
    let tiling = RopeTiling {
        tokens: a.dims.t as i64,
        heads: a.dims.h as i64,
        pairs: r as i64,
        first: (d - 2 * r) as i64,
        token_stride: x.strides[1],
        head_stride: x.strides[2],
        format: x.format,
        inverse: a.inverse,
    };
    let pieces = (a.dims.t * r.div_ceil(PAIRS) * a.dims.h.div_ceil(HEADS)) as i64;
    launch!(stream, ROPE, blocks(stream, pieces), [x.data, positions.data, freqs.data], tiling)
}
