//! `rms_norm`: rows divided by their root mean square, times a weight.

use deepinfer_plugin_api::generated::RmsNormArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(RmsNorm, rms_norm, flags = PROMISES);

static RMS_NORM: Function = Function::new(&images::RMS_NORM, c"rms_norm");

tiling! {
    struct RmsNormTiling: 48 {
        rows: i64, columns: i64, x_stride: i64, out_stride: i64, eps: f32, format: i32, weight_format: i32, reserved: i32,
    }
}

fn rms_norm(cx: &Cx<'_>, a: RmsNormArgs<'_>) -> Result<(), Fault> {
    let (x, weight, out, stream) = (a.x.view()?, a.weight.view()?, a.out.view()?, stream(cx)?);
    let (rows, columns, x_stride, out_stride) = (x.rows(), x.columns(), x.strides[2], out.strides[2]);
    let (eps, format, weight_format) = (a.eps, x.format, weight.format);
    let tiling = RmsNormTiling { rows, columns, x_stride, out_stride, eps, format, weight_format, reserved: 0 };
    launch!(stream, RMS_NORM, blocks(stream, rows), [x.data, weight.data, out.data], tiling)
}
