//! `swiglu_quantize`: the gated activation of an expert.
//!
//! The activation is f64 and rounded once to F32, then to BF16 when `mid` is 1, then to the format of `out`.

use deepinfer_plugin_api::generated::SwigluQuantizeArgs;
use deepinfer_plugin_api::numerics::{bf16, group};
use deepinfer_plugin_api::sdk::{Cx, Fault};
use deepinfer_plugin_api::{Format, Shaped};

use crate::arguments::{switch, whole_groups};
use crate::float::{Float, by_float};
use crate::parallel;

deepinfer_plugin_api::kernel!(SwigluQuantize, swiglu_quantize);

fn swiglu_quantize(_: &Cx<'_>, mut a: SwigluQuantizeArgs<'_>) -> Result<(), Fault> {
    by_float!(a.gate, activate(&mut a))
}

fn activate<T: Float>(a: &mut SwigluQuantizeArgs<'_>) -> Result<(), Fault> {
    let round_to_bf16 = switch("swiglu_quantize", "mid", a.mid)?;
    let (gate, up) = (a.gate.rows::<T>()?, a.up.rows::<T>()?);
    let row_weight = a.row_weight.map(|weight| weight.slice::<f32>()).transpose()?;
    let limit = if a.limit > 0.0 { f64::from(a.limit) } else { f64::INFINITY };
    let hidden = |m: usize, scratch: &mut Vec<f32>| {
        let weight = row_weight.map_or(1.0, |weight| f64::from(weight[m]));
        scratch.clear();
        scratch.extend(gate.row(m).iter().zip(up.row(m)).map(|(&gate, &up)| {
            let h = swiglu(gate.widen(), up.widen(), limit) * weight;
            if round_to_bf16 { bf16::round(h as f32) } else { h as f32 }
        }));
    };
    let cost_ns = 12 * a.dims.n;
    if a.out.format() == Some(Format::Fp8Row32) {
        whole_groups("swiglu_quantize", "out", a.dims.n, group::FP8_GROUP)?;
        let (codes, scales) = a.out.quantized_rows_mut()?;
        let rows = codes.into_iter().zip(scales).collect();
        parallel::for_each_row_with(rows, cost_ns, Vec::new, |scratch, m, (codes, scales)| {
            hidden(m, scratch);
            group::quantize_fp8(scratch, codes, scales);
        });
    } else {
        parallel::for_each_row_with(a.out.float_rows_mut()?, cost_ns, Vec::new, |scratch, m, mut out| {
            hidden(m, scratch);
            out.store(scratch);
        });
    }
    Ok(())
}

/// `silu(min(gate, limit)) * clamp(up, -limit, limit)`; the comparisons let NaN through.
#[inline(always)]
fn swiglu(gate: f64, up: f64, limit: f64) -> f64 {
    let gate = if gate > limit { limit } else { gate };
    gate / (1.0 + libm::exp(-gate)) * up.clamp(-limit, limit)
}
