//! `swiglu_quantize`: the gated activation of an expert.

use deepinfer_plugin_api::generated::SwigluQuantizeArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};
use deepinfer_plugin_api::{Format, Shaped};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, optional, stream, tiling};

deepinfer_plugin_api::kernel!(SwigluQuantize, swiglu_quantize, flags = PROMISES);

static SWIGLU_QUANTIZE: Function = Function::new(&images::SWIGLU_QUANTIZE, c"swiglu_quantize");
/// Columns that a block takes at a time.
const PIECE: usize = 1024;
/// Columns under one scale.
const GROUP: usize = 32;

tiling! {
    struct SwigluQuantizeTiling: 72 {
        rows: i64, columns: i64, gate_stride: i64, up_stride: i64, out_stride: i64, scale_stride: i64,
        limit: f32, in_format: i32, out_format: i32, mid: u32, has_weight: i32, reserved: i32,
    }
}

fn swiglu_quantize(cx: &Cx<'_>, a: SwigluQuantizeArgs<'_>) -> Result<(), Fault> {
    if a.mid > 1 {
        return Err(Fault::invalid(format!("mid is {}, but must be 0 or 1", a.mid)));
    }
    if a.out.format() == Some(Format::Fp8Row32) && !a.dims.n.is_multiple_of(GROUP) {
        return Err(Fault::invalid(format!(
            "out is FP8_ROW32 with {} columns, but they must be a multiple of {GROUP}",
            a.dims.n
        )));
    }
    let (gate, up, weight, out) = (a.gate.view()?, a.up.view()?, optional(&a.row_weight)?, a.out.view()?);
    let (rows, stream) = (out.rows(), stream(cx)?);
    let tiling = SwigluQuantizeTiling {
        rows,
        columns: a.dims.n as i64,
        gate_stride: gate.strides[2],
        up_stride: up.strides[2],
        out_stride: out.strides[2],
        scale_stride: out.scale_strides[2],
        limit: if a.limit > 0.0 { a.limit } else { f32::INFINITY },
        in_format: gate.format,
        out_format: out.format,
        mid: a.mid,
        has_weight: i32::from(a.row_weight.is_some()),
        reserved: 0,
    };
    let blocks = blocks(stream, rows.saturating_mul(a.dims.n.div_ceil(PIECE) as i64));
    launch!(stream, SWIGLU_QUANTIZE, blocks, [gate.data, up.data, weight.data, out.data, out.scale], tiling)
}
