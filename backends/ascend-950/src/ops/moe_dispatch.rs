//! `moe_dispatch`: rows copied to their experts, sorted by expert.

use deepinfer_plugin_api::generated::MoeDispatchArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};
use deepinfer_plugin_api::{Format, Shaped};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(MoeDispatch, moe_dispatch, flags = PROMISES);

static MOE_DISPATCH: Function = Function::new(&images::MOE_DISPATCH, c"moe_dispatch");
/// Columns that share a scale in the scaled format.
const GROUP: i64 = 32;

tiling! {
    struct MoeDispatchTiling: 96 {
        rows: i64, places: i64, experts: i64, expert_stride: i64, weight_stride: i64, row_of_stride: i64,
        bytes: i64, x_stride: i64, out_stride: i64, scale_bytes: i64, x_scale_stride: i64, out_scale_stride: i64,
    }
}

fn moe_dispatch(cx: &Cx<'_>, a: MoeDispatchArgs<'_>) -> Result<(), Fault> {
    let pairs = a.dims.t as i64 * a.dims.k as i64;
    if pairs > i64::from(i32::MAX) {
        return Err(Fault::invalid(format!("experts has {pairs} pairs, more than an I32 row of row_of can name")));
    }
    let (size, has_scales) = match a.x.format() {
        Some(Format::F32) => (4, false),
        Some(Format::Bf16) => (2, false),
        _ => (1, true),
    };
    let (x, out, stream) = (a.x.view()?, a.out.view()?, stream(cx)?);
    let (experts, weights, row_of) = (a.experts.view()?, a.weights.view()?, a.row_of.view()?);
    let (row_weight, expert_start) = (a.row_weight.view()?, a.expert_start.view()?);
    let tiling = MoeDispatchTiling {
        rows: experts.rows(),
        places: experts.columns(),
        experts: expert_start.columns() - 1,
        expert_stride: experts.strides[2],
        weight_stride: weights.strides[2],
        row_of_stride: row_of.strides[2],
        bytes: x.columns() * size,
        x_stride: x.strides[2] * size,
        out_stride: out.strides[2] * size,
        scale_bytes: if has_scales { (x.columns() + GROUP - 1) / GROUP } else { 0 },
        x_scale_stride: x.scale_strides[2],
        out_scale_stride: out.scale_strides[2],
    };
    launch!(
        stream,
        MOE_DISPATCH,
        // One more for the pairs that have no expert.
        blocks(stream, tiling.experts + 1),
        [
            x.data,
            x.scale,
            experts.data,
            weights.data,
            out.data,
            out.scale,
            row_weight.data,
            expert_start.data,
            row_of.data,
            stream.fault_word(),
        ],
        tiling
    )
}
