//! `moe_gate`: the experts of each row and their weights.

use deepinfer_plugin_api::generated::MoeGateArgs;
use deepinfer_plugin_api::sdk::tensor::{In, View};
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(MoeGate, moe_gate, flags = super::FLAGS);

static MOE_GATE: Function = Function::new(&images::MOE_GATE, c"moe_gate");
const THREADS: u32 = 128;
/// Rows of a warp, if there are enough for every warp of a device.
const MOST_ROWS: i64 = 4;
const MANY_ROWS: i64 = 4096;

fn moe_gate(cx: &Cx<'_>, a: MoeGateArgs<'_>) -> Result<(), Fault> {
    if a.scoring > 2 {
        return Err(Fault::invalid(format!("scoring is {}, but must be 0, 1 or 2", a.scoring)));
    }
    if a.normalize > 1 {
        return Err(Fault::invalid(format!("normalize is {}, but must be 0 or 1", a.normalize)));
    }
    if a.dims.k > a.dims.e {
        return Err(Fault::invalid(format!(
            "experts has {} columns, but there are only {} experts",
            a.dims.k, a.dims.e
        )));
    }
    let optional = |x: &Option<In<'_>>| x.as_ref().map_or(Ok(View::ABSENT), In::view);
    let (logits, experts) = (a.logits.view()?, a.experts.view()?);
    // Without columns there is nothing to write.
    let rows = if a.dims.k == 0 { 0 } else { experts.shape[2] };
    let share = (rows / MANY_ROWS).clamp(1, MOST_ROWS);
    launch!(
        stream(cx)?,
        MOE_GATE,
        Grid::of_warps((rows + share - 1) / share, THREADS)?,
        logits,
        a.bias.view()?,
        optional(&a.bias_vl)?,
        optional(&a.image_mask)?,
        experts,
        a.weights.view()?,
        a.scoring,
        a.normalize,
        a.route_scale,
        share as u32,
    )
}
