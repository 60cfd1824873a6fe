//! `engram_gate`: the gated n-gram value added to every copy of the stream, in place.

use deepinfer_plugin_api::generated::EngramGateArgs;
use deepinfer_plugin_api::sdk::tensor::View;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(EngramGate, engram_gate, flags = super::FLAGS);

static ENGRAM_GATE: Function = Function::new(&images::ENGRAM_GATE, c"engram_gate");
const THREADS: u32 = 256;

fn engram_gate(cx: &Cx<'_>, a: EngramGateArgs<'_>) -> Result<(), Fault> {
    let (x, kv) = (a.x.view()?, a.kv.view()?);
    let (q_weight, k_weight) = (a.q_weight.view()?, a.k_weight.view()?);
    let image_mask = a.image_mask.as_ref().map_or(Ok(View::ABSENT), |mask| mask.view())?;
    let grid = Grid::of_items(x.rows() * i64::from(THREADS), THREADS)?;
    launch!(stream(cx)?, ENGRAM_GATE, grid, x, kv, q_weight, k_weight, image_mask, a.eps)
}
