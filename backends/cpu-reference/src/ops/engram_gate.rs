//! `engram_gate`: the gated n-gram value added to every copy of the stream, in place.
//!
//! Everything is f64 with the sums of [`sum`](crate::sum); the new stream is rounded once.

use deepinfer_plugin_api::generated::EngramGateArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::float::{Float, by_float};
use crate::scalar::{inverse_root_mean, sigmoid};
use crate::{parallel, sum};

deepinfer_plugin_api::kernel!(EngramGate, engram_gate);

fn engram_gate(_: &Cx<'_>, mut a: EngramGateArgs<'_>) -> Result<(), Fault> {
    by_float!(a.x, add_gated(&mut a))
}

fn add_gated<T: Float>(a: &mut EngramGateArgs<'_>) -> Result<(), Fault> {
    let (copies, d, eps) = (a.dims.c, a.dims.d, a.eps);
    if copies == 0 || d == 0 {
        return Ok(());
    }
    let kv = a.kv.rows::<T>()?;
    let image_mask = a.image_mask.map(|mask| mask.slice::<u8>()).transpose()?;
    let (q_weight, k_weight) = (a.q_weight.floats()?, a.k_weight.floats()?);
    let (mut q_row, mut k_row) = (Vec::new(), Vec::new());
    let mut gains = Vec::with_capacity(copies * d);
    for i in 0..copies {
        let gain = q_weight.load(i, &mut q_row).iter().zip(k_weight.load(i, &mut k_row));
        // A product of two F32 values is exact in f64.
        gains.extend(gain.map(|(&q, &k)| f64::from(q) * f64::from(k)));
    }

    let mut x = a.x.rows_mut::<T>()?;
    let tokens: Vec<_> = x.chunks_mut(copies).collect();
    parallel::for_each_row_with(
        tokens,
        4 * copies * d,
        || (Vec::new(), Vec::new()),
        |(x_row, kv_row), t, x| {
            let (keys, value) = T::load(kv.row(t), kv_row).split_at(copies * d);
            let is_image = image_mask.is_some_and(|mask| mask[t] != 0);
            for ((x, key), gain) in x.iter_mut().zip(keys.chunks_exact(d)).zip(gains.chunks_exact(d)) {
                let stream = T::load(x, x_row);
                let rstd = |row: &[f32]| inverse_root_mean(sum::sum_of_squares(row), d, eps);
                let dot = sum::sum_by(d, |k| f64::from(stream[k]) * gain[k] * f64::from(key[k]));
                let dot = dot * rstd(stream) * rstd(key) / (d as f64).sqrt();
                let gate = if is_image { 0.0 } else { gate(dot) };
                x.iter_mut().zip(value).for_each(|(x, &v)| *x = T::round(x.widen() + gate * f64::from(v)));
            }
        },
    );
    Ok(())
}

/// `sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot))`; the comparison lets NaN through.
fn gate(dot: f64) -> f64 {
    let magnitude = if dot.abs() < 1e-6 { 1e-6 } else { dot.abs() };
    sigmoid(magnitude.sqrt().copysign(dot))
}
