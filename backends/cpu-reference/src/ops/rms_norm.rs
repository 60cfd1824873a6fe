//! `rms_norm`: `x` times the inverse root mean square of its row, times a weight.
//!
//! The squares are summed in f64 by the rule of [`sum`](crate::sum); everything after that is f64 and rounded once to
//! F32 (then to BF16 when `out` is). The inverse root is `1 / sqrt`, not rounded on its own.

use deepinfer_plugin_api::generated::RmsNormArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::float::{Float, by_float};
use crate::scalar::inverse_root_mean;
use crate::{parallel, sum};

deepinfer_plugin_api::kernel!(RmsNorm, rms_norm);

fn rms_norm(_: &Cx<'_>, mut a: RmsNormArgs<'_>) -> Result<(), Fault> {
    by_float!(a.x, normalise(&mut a))
}

fn normalise<T: Float>(a: &mut RmsNormArgs<'_>) -> Result<(), Fault> {
    let x = a.x.rows::<T>()?;
    let mut scratch = Vec::new();
    let weight = a.weight.floats()?.load(0, &mut scratch);
    parallel::for_each_row_with(a.out.rows_mut::<T>()?, a.dims.n, Vec::new, |scratch, t, out| {
        let x = T::load(x.row(t), scratch);
        let factor = match sum::sum_of_squares(x) {
            // The squares of finite F32 values cannot overflow an f64: a NaN or an infinity is in the row.
            s if !s.is_finite() => f64::NAN,
            // Whatever `eps` is, zeros stay zeros.
            0.0 => 0.0,
            s => inverse_root_mean(s, a.dims.n, a.eps),
        };
        for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
            *out = T::round(f64::from(weight) * (f64::from(x) * factor));
        }
    });
    Ok(())
}
