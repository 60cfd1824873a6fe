//! `linear`: product with a transposed weight matrix, optionally block-diagonal.

use deepinfer_plugin_api::Format;
use deepinfer_plugin_api::generated::LinearArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(Linear, linear, flags = PROMISES);

static LINEAR: Function = Function::new(&images::LINEAR, c"linear");
/// Rows, and outputs, of a tile.
const TILE: usize = 32;
/// Columns of x under one scale.
const GROUP: usize = 32;

tiling! {
    struct LinearTiling: 88 {
        rows: i64, outputs: i64, columns: i64, x_stride: i64, x_scale_stride: i64, weight_stride: i64,
        weight_scale_stride: i64, out_stride: i64, groups: i64,
        x_format: i32, weight_format: i32, out_format: i32, reserved: i32,
    }
}

fn linear(cx: &Cx<'_>, a: LinearArgs<'_>) -> Result<(), Fault> {
    if a.groups == 0 {
        return Err(Fault::invalid("groups is 0, but must be at least 1"));
    }
    let (x, weight, out, stream) = (a.x.view()?, a.weight.view()?, a.out.view()?, stream(cx)?);
    let (rows, groups) = (out.rows(), a.groups as usize);
    if groups > 1 && x.format() == Some(Format::Fp8Row32) && !a.dims.k.is_multiple_of(GROUP) {
        return Err(Fault::unsupported(format!("{groups} groups of {} columns of FP8_ROW32", a.dims.k)));
    }
    let tiling = LinearTiling {
        rows,
        outputs: a.dims.o as i64,
        columns: a.dims.k as i64,
        x_stride: x.strides[2],
        x_scale_stride: x.scale_strides[2],
        weight_stride: weight.strides[2],
        weight_scale_stride: weight.scale_strides[2],
        out_stride: out.strides[2],
        groups: i64::from(a.groups),
        x_format: x.format,
        weight_format: weight.format,
        out_format: out.format,
        reserved: 0,
    };
    let tiles = (groups * a.dims.o.div_ceil(TILE)) as i64 * rows.unsigned_abs().div_ceil(TILE as u64) as i64;
    let addresses = [x.data, x.scale, weight.data, weight.scale, out.data];
    let [x, x_scale, weight, weight_scale, out] = addresses;
    launch!(stream, LINEAR, blocks(stream, tiles), [x, x_scale, weight, weight_scale, out], tiling)
}
