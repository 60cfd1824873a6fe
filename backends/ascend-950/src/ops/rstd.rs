//! `rstd`: the inverse root of the mean square of each row.

use deepinfer_plugin_api::generated::RstdArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(Rstd, rstd, flags = PROMISES);

static RSTD: Function = Function::new(&images::RSTD, c"rstd");

tiling! {
    struct RstdTiling: 32 { rows: i64, columns: i64, x_stride: i64, eps: f32, format: i32 }
}

fn rstd(cx: &Cx<'_>, a: RstdArgs<'_>) -> Result<(), Fault> {
    let (x, out, stream) = (a.x.view()?, a.out.view()?, stream(cx)?);
    let (rows, columns, x_stride) = (x.rows(), x.columns(), x.strides[2]);
    let tiling = RstdTiling { rows, columns, x_stride, eps: a.eps, format: x.format };
    launch!(stream, RSTD, blocks(stream, rows), [x.data, out.data], tiling)
}
