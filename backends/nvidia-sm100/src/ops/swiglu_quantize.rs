//! `swiglu_quantize`: the gated activation of an expert.

use deepinfer_plugin_api::generated::SwigluQuantizeArgs;
use deepinfer_plugin_api::sdk::tensor::{In, View};
use deepinfer_plugin_api::sdk::{Cx, Fault};
use deepinfer_plugin_api::{Format, Shaped};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(SwigluQuantize, swiglu_quantize);

static SWIGLU_QUANTIZE: Function = Function::new(&images::SWIGLU_QUANTIZE, c"swiglu_quantize");
const THREADS: u32 = 256;
const WARP: i64 = 32;
/// Columns that a warp takes.
const COLUMNS: usize = 128;
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
    let grid = Grid::of_items(out.rows() * a.dims.n.div_ceil(COLUMNS) as i64 * WARP, THREADS)?;
    launch!(stream(cx)?, SWIGLU_QUANTIZE, grid, a.gate.view()?, a.up.view()?, row_weight, out, limit, a.mid)
}
