//! `swiglu_quantize`: the gated activation of an expert.

use deepinfer_plugin_api::generated::SwigluQuantizeArgs;
use deepinfer_plugin_api::sdk::tensor::{In, View};
use deepinfer_plugin_api::sdk::{Cx, Fault};
use deepinfer_plugin_api::{Format, Shaped};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(SwigluQuantize, swiglu_quantize, flags = super::FLAGS);

static SWIGLU_QUANTIZE: Function = Function::new(&images::SWIGLU_QUANTIZE, c"swiglu_quantize");
const THREADS: u32 = 128;
/// Columns that a warp takes at a time.
const STEP: usize = 256;
/// Warps from which on each takes more: it then reads ahead of what it computes.
const MANY_WARPS: i64 = 8192;
/// Columns under one scale.
const GROUP: usize = 32;

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
    let out = a.out.view()?;
    let limit = if a.limit > 0.0 { a.limit } else { f32::INFINITY };
    let row_weight = a.row_weight.as_ref().map_or(Ok(View::ABSENT), In::view)?;
    let steps = a.dims.n.div_ceil(STEP) as i64;
    let most = (out.rows() * steps / MANY_WARPS).clamp(1, steps.max(1));
    // As even as that many pieces allow.
    let pieces = ((steps + most - 1) / most).max(1);
    let share = (steps + pieces - 1) / pieces;
    let grid = Grid::of_warps(if steps == 0 { 0 } else { out.rows() * pieces }, THREADS)?;
    let (gate, up) = (a.gate.view()?, a.up.view()?);
    launch!(stream(cx)?, SWIGLU_QUANTIZE, grid, gate, up, row_weight, out, limit, a.mid, share as u32, pieces as u32)
}
