//! `hc_expand`: a sublayer's output added to the stream and the copies mixed, in place.

use deepinfer_plugin_api::generated::HcExpandArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(HcExpand, hc_expand, flags = PROMISES);

static HC_EXPAND: Function = Function::new(&images::HC_EXPAND, c"hc_expand");
/// Elements of all copies that a block keeps, and of one.
const KEPT: i64 = 32_768;
const PIECE: i64 = 4096;
/// Elements of a block of 32 bytes of F32.
const BLOCK: i64 = 8;

tiling! {
    struct HcExpandTiling: 88 {
        rows: i64, copies: i64, columns: i64, piece: i64, x_stride: i64, copy_stride: i64, y_stride: i64, post_stride: i64,
        comb_stride: i64, comb_copy_stride: i64, format: i32, reserved: i32,
    }
}

fn hc_expand(cx: &Cx<'_>, a: HcExpandArgs<'_>) -> Result<(), Fault> {
    let (x, y, post, comb) = (a.x.view()?, a.y.view()?, a.post.view()?, a.comb.view()?);
    let (stream, rows, copies, columns) = (stream(cx)?, y.rows(), x.shape[2], y.columns());
    if copies == 0 || rows == 0 {
        return Ok(());
    }
    // The more copies, the shorter a piece of each.
    let piece = (KEPT / copies / BLOCK * BLOCK).min(PIECE);
    if piece == 0 {
        return Err(Fault::unsupported(format!(
            "hc_expand: a stream of {copies} copies; the kernel takes at most {}",
            KEPT / BLOCK
        )));
    }
    let tiling = HcExpandTiling {
        rows,
        copies,
        columns,
        piece,
        x_stride: x.strides[1],
        copy_stride: x.strides[2],
        y_stride: y.strides[2],
        post_stride: post.strides[2],
        comb_stride: comb.strides[1],
        comb_copy_stride: comb.strides[2],
        format: x.format,
        reserved: 0,
    };
    let pieces = columns.unsigned_abs().div_ceil(piece.unsigned_abs()) as i64;
    let blocks = blocks(stream, rows.saturating_mul(pieces));
    launch!(stream, HC_EXPAND, blocks, [x.data, y.data, post.data, comb.data], tiling)
}
