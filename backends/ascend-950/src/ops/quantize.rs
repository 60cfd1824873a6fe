//! `quantize`: rows to a scaled 8- or 4-bit format.

use deepinfer_plugin_api::generated::QuantizeArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};
use deepinfer_plugin_api::{Format, Shaped};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(Quantize, quantize, flags = PROMISES);

static QUANTIZE: Function = Function::new(&images::QUANTIZE, c"quantize");
/// Columns that a block takes at a time.
const PIECE: u64 = 2048;

tiling! {
    struct QuantizeTiling: 48 {
        rows: i64, columns: i64, x_stride: i64, out_stride: i64, scale_stride: i64, x_format: i32, out_format: i32,
    }
}

fn quantize(cx: &Cx<'_>, a: QuantizeArgs<'_>) -> Result<(), Fault> {
    let group = a.out.format().and_then(Format::scale).map_or(1, |scale| scale.columns);
    if !a.dims.n.is_multiple_of(group) {
        let n = a.dims.n;
        return Err(Fault::invalid(format!(
            "quantize: x has {n} columns, but the format of out needs a multiple of {group}"
        )));
    }
    let (x, out, stream) = (a.x.view()?, a.out.view()?, stream(cx)?);
    let (rows, columns, x_stride, out_stride) = (x.rows(), x.columns(), x.strides[2], out.strides[2]);
    let (scale_stride, x_format, out_format) = (out.scale_strides[2], x.format, out.format);
    let tiling = QuantizeTiling { rows, columns, x_stride, out_stride, scale_stride, x_format, out_format };
    let pieces = columns.unsigned_abs().div_ceil(PIECE) as i64;
    launch!(stream, QUANTIZE, blocks(stream, rows.saturating_mul(pieces)), [x.data, out.data, out.scale], tiling)
}
