//! `swiglu_quantize`: the gated activation of an expert.
//!
//! The activation is f64, with the exponential of [`exp`](crate::exp), and rounded once to F32, then to BF16 when `mid` is 1, then to the format of `out`.

use deepinfer_plugin_api::generated::SwigluQuantizeArgs;
use deepinfer_plugin_api::numerics::{bf16, group};
use deepinfer_plugin_api::sdk::{Cx, Fault};
use deepinfer_plugin_api::{Format, Shaped};

use crate::arguments::{switch, whole_groups};
use crate::exp::exp_all;
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
    let scratch = || (Vec::new(), Vec::new());
    let activate = |(exponentials, hidden): &mut (Vec<f64>, Vec<f32>), m: usize| {
        let weight = row_weight.map_or(1.0, |weight| f64::from(weight[m]));
        exponentials.clear();
        exponentials.extend(gate.row(m).iter().map(|gate| -at_most(gate.widen(), limit).abs()));
        exp_all(exponentials);
        hidden.clear();
        hidden.extend(gate.row(m).iter().zip(up.row(m)).zip(&*exponentials).map(|((gate, up), &exponential)| {
            let h = swiglu(gate.widen(), up.widen(), limit, exponential) * weight;
            if round_to_bf16 { bf16::round(h as f32) } else { h as f32 }
        }));
    };
    let cost_ns = 4 * a.dims.n;
    if a.out.format() == Some(Format::Fp8Row32) {
        whole_groups("swiglu_quantize", "out", a.dims.n, group::FP8_GROUP)?;
        let (codes, scales) = a.out.quantized_rows_mut()?;
        let rows = codes.into_iter().zip(scales).collect();
        parallel::for_each_row_with(rows, cost_ns, scratch, |scratch, m, (codes, scales)| {
            activate(scratch, m);
            group::quantize_fp8(&scratch.1, codes, scales);
        });
    } else {
        parallel::for_each_row_with(a.out.float_rows_mut()?, cost_ns, scratch, |scratch, m, mut out| {
            activate(scratch, m);
            out.store(&scratch.1);
        });
    }
    Ok(())
}

/// `silu(min(gate, limit)) * clamp(up, -limit, limit)`, where `exponential` is `exp(-|min(gate, limit)|)`.
#[inline(always)]
fn swiglu(gate: f64, up: f64, limit: f64, exponential: f64) -> f64 {
    let gate = at_most(gate, limit);
    let numerator = if gate < 0.0 { exponential } else { 1.0 };
    gate * (numerator / (1.0 + exponential)) * up.clamp(-limit, limit)
}

/// `min(x, limit)` that lets NaN through.
#[inline(always)]
fn at_most(x: f64, limit: f64) -> f64 {
    if x > limit { limit } else { x }
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::generated::SwigluQuantize;

    use super::*;
    use crate::golden::{Golden, assert_close};
    use crate::random;
    use crate::testing::{Tensor, call};

    /// `gate`, `up` and `row_weight`.
    type Inputs<'a> = (&'a Tensor, &'a Tensor, Option<&'a Tensor>);

    fn run(
        (gate, up, weight): Inputs<'_>,
        limit: f32,
        mid: u32,
        out: Format,
        shape: &[usize],
    ) -> Result<Tensor, String> {
        let mut out = Tensor::unwritten(out, shape);
        call::<SwigluQuantize>(|a| {
            (a.gate, a.up, a.limit, a.mid, a.out) = (gate.input(), up.input(), limit, mid, out.output());
            if let Some(weight) = weight {
                a.row_weight = weight.input();
            }
        })?;
        Ok(out)
    }

    #[test]
    fn golden() {
        let file = Golden::open("moe");
        let (gate, up) =
            (Tensor::f32(&[1, 16], &file.f32("swiglu.gate")), Tensor::f32(&[1, 16], &file.f32("swiglu.up")));
        let out = run((&gate, &up, None), 10.0, 0, Format::F32, &[1, 16]).unwrap();
        assert_close(&out.floats(), &file.f32("swiglu.out"), 1e-6, 1e-6);
    }

    #[test]
    fn every_rounding_is_that_of_its_format() {
        const SHAPE: [usize; 2] = [60, 64];
        let (gate, up) = (random::floats(50, 60 * 64), random::floats(51, 60 * 64));
        let weight = Tensor::f32(&[60], &random::floats(52, 60));
        let (gate, up) = (Tensor::f32(&SHAPE, &gate), Tensor::f32(&SHAPE, &up).padded(2));
        let inputs = (&gate, &up, Some(&weight));
        let run = |mid, out| run(inputs, 1.5, mid, out, &SHAPE).unwrap();
        let wide = run(0, Format::F32).floats();
        let narrow: Vec<f32> = wide.iter().map(|&v| bf16::round(v)).collect();
        assert_eq!(run(1, Format::F32).floats(), narrow);
        assert_eq!(run(0, Format::Bf16).floats(), narrow);
        assert_eq!(run(1, Format::Bf16).floats(), narrow);
        for (mid, values) in [(0, &wide), (1, &narrow)] {
            let (ours, expected) = (run(mid, Format::Fp8Row32), Tensor::floating(Format::Fp8Row32, &SHAPE, values));
            assert_eq!(ours.to_bytes(), expected.to_bytes());
            assert_eq!(ours.scale_bytes(), expected.scale_bytes());
        }
        assert_ne!(wide, narrow);
    }

    #[test]
    fn limits_and_bad_values() {
        let row = |values: &[f32]| Tensor::f32(&[1, values.len()], values);
        let (gate, up) = (row(&[50.0, 50.0, f32::NAN, 1.0, f32::INFINITY]), row(&[-9.0, 3.0, 1.0, f32::NAN, 1.0]));
        let limited = run((&gate, &up, None), 4.0, 0, Format::F32, &[1, 5]).unwrap().floats();
        let four = (4.0 * crate::scalar::sigmoid(4.0)) as f32;
        assert_eq!(limited[..2], [-4.0 * four, 3.0 * four]);
        assert!(limited[2].is_nan() && limited[3].is_nan());
        assert_eq!(limited[4], four);
        let free = run((&gate, &up, None), 0.0, 0, Format::F32, &[1, 5]).unwrap().floats();
        assert_eq!(free[..2], [-450.0, 150.0]);
        assert_eq!(free[4], f32::INFINITY);
    }

    #[test]
    fn refusals_and_nothing() {
        let x = Tensor::f32(&[1, 40], &[1.0; 40]);
        let message = run((&x, &x, None), 0.0, 0, Format::Fp8Row32, &[1, 40]).err().unwrap();
        assert!(message.contains("out has 40 columns"), "{message}");
        assert!(run((&x, &x, None), 0.0, 2, Format::F32, &[1, 40]).err().unwrap().contains("mid is 2"));
        let none = Tensor::f32(&[0, 32], &[]);
        assert!(run((&none, &none, None), 0.0, 0, Format::Fp8Row32, &[0, 32]).is_ok());
    }
}
