//! `moe_gate`: the experts of each row and their weights.

use deepinfer_plugin_api::generated::MoeGateArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, optional, stream, tiling};

deepinfer_plugin_api::kernel!(MoeGate, moe_gate, flags = PROMISES);

static MOE_GATE: Function = Function::new(&images::MOE_GATE, c"moe_gate");
/// What the kernel has room for.
const MOST_EXPERTS: usize = 2048;
const MOST_CHOSEN: usize = 64;

tiling! {
    struct MoeGateTiling: 72 {
        rows: i64, experts: i64, chosen: i64, logits_stride: i64, experts_stride: i64, weights_stride: i64,
        route_scale: f32, scoring: u32, normalize: u32, has_bias_vl: u32, has_mask: u32, reserved: u32,
    }
}

fn moe_gate(cx: &Cx<'_>, a: MoeGateArgs<'_>) -> Result<(), Fault> {
    let d = a.dims;
    if a.scoring > 2 {
        return Err(Fault::invalid(format!("scoring is {}, but must be 0, 1 or 2", a.scoring)));
    }
    if a.normalize > 1 {
        return Err(Fault::invalid(format!("normalize is {}, but must be 0 or 1", a.normalize)));
    }
    if d.k > d.e {
        return Err(Fault::invalid(format!("experts has {} columns, but there are only {} experts", d.k, d.e)));
    }
    if d.e > MOST_EXPERTS || d.k > MOST_CHOSEN {
        return Err(Fault::unsupported(format!(
            "{} of {} experts; {MOST_CHOSEN} of {MOST_EXPERTS} are possible",
            d.k, d.e
        )));
    }
    let (logits, bias, bias_vl) = (a.logits.view()?, a.bias.view()?, optional(&a.bias_vl)?);
    let (mask, experts, weights) = (optional(&a.image_mask)?, a.experts.view()?, a.weights.view()?);
    let stream = stream(cx)?;
    let tiling = MoeGateTiling {
        rows: d.t as i64,
        experts: d.e as i64,
        chosen: d.k as i64,
        logits_stride: logits.strides[2],
        experts_stride: experts.strides[2],
        weights_stride: weights.strides[2],
        route_scale: a.route_scale,
        scoring: a.scoring,
        normalize: a.normalize,
        has_bias_vl: u32::from(a.bias_vl.is_some()),
        has_mask: u32::from(a.image_mask.is_some()),
        reserved: 0,
    };
    // Without columns there is nothing to write.
    let blocks = if d.k == 0 { 0 } else { blocks(stream, d.t as i64) };
    let addresses = [logits.data, bias.data, bias_vl.data, mask.data, experts.data, weights.data];
    let [logits, bias, bias_vl, mask, experts, weights] = addresses;
    launch!(stream, MOE_GATE, blocks, [logits, bias, bias_vl, mask, experts, weights], tiling)
}
