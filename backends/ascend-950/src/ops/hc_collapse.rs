//! `hc_collapse`: the weighted sum of the copies of the stream.

use deepinfer_plugin_api::generated::HcCollapseArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(HcCollapse, hc_collapse, flags = PROMISES);

static HC_COLLAPSE: Function = Function::new(&images::HC_COLLAPSE, c"hc_collapse");
/// Channels that a block takes at a time.
const PIECE: u64 = 4096;

tiling! {
    struct HcCollapseTiling: 64 {
        rows: i64, copies: i64, columns: i64, x_stride: i64, copy_stride: i64, pre_stride: i64, out_stride: i64,
        format: i32, reserved: i32,
    }
}

fn hc_collapse(cx: &Cx<'_>, a: HcCollapseArgs<'_>) -> Result<(), Fault> {
    let (x, pre, out, stream) = (a.x.view()?, a.pre.view()?, a.out.view()?, stream(cx)?);
    let (rows, columns) = (out.rows(), out.columns());
    let tiling = HcCollapseTiling {
        rows,
        copies: x.shape[2],
        columns,
        x_stride: x.strides[1],
        copy_stride: x.strides[2],
        pre_stride: pre.strides[2],
        out_stride: out.strides[2],
        format: x.format,
        reserved: 0,
    };
    let pieces = columns.unsigned_abs().div_ceil(PIECE) as i64;
    launch!(stream, HC_COLLAPSE, blocks(stream, rows.saturating_mul(pieces)), [x.data, pre.data, out.data], tiling)
}
