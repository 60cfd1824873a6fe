//! `engram_gate`: the gated n-gram value added to every copy of the stream, in place.

use deepinfer_plugin_api::generated::EngramGateArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, optional, stream, tiling};

deepinfer_plugin_api::kernel!(EngramGate, engram_gate, flags = PROMISES);

static ENGRAM_GATE: Function = Function::new(&images::ENGRAM_GATE, c"engram_gate");

tiling! {
    struct EngramGateTiling: 88 {
        rows: i64, copies: i64, columns: i64, x_stride: i64, copy_stride: i64, kv_stride: i64, q_stride: i64, k_stride: i64,
        eps: f32, inverse_root_of_columns: f32, format: i32, q_format: i32, k_format: i32, has_mask: i32,
    }
}

fn engram_gate(cx: &Cx<'_>, a: EngramGateArgs<'_>) -> Result<(), Fault> {
    let (x, kv, stream) = (a.x.view()?, a.kv.view()?, stream(cx)?);
    let (q_weight, k_weight, image_mask) = (a.q_weight.view()?, a.k_weight.view()?, optional(&a.image_mask)?);
    let (rows, copies, columns) = (kv.rows(), x.shape[2], x.columns());
    let tiling = EngramGateTiling {
        rows,
        copies,
        columns,
        x_stride: x.strides[1],
        copy_stride: x.strides[2],
        kv_stride: kv.strides[2],
        q_stride: q_weight.strides[2],
        k_stride: k_weight.strides[2],
        eps: a.eps,
        inverse_root_of_columns: (1.0 / (columns as f64).sqrt()) as f32,
        format: x.format,
        q_format: q_weight.format,
        k_format: k_weight.format,
        has_mask: i32::from(a.image_mask.is_some()),
    };
    let pairs = if columns == 0 { 0 } else { rows.saturating_mul(copies) };
    launch!(
        stream,
        ENGRAM_GATE,
        blocks(stream, pairs),
        [x.data, kv.data, q_weight.data, k_weight.data, image_mask.data],
        tiling
    )
}
