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
    let scratch = || (Vec::new(), Vec::new());
    parallel::for_each_row_with(a.out.rows_mut::<T>()?, a.dims.n, scratch, |(x_row, values), t, out| {
        let x = T::load(x.row(t), x_row);
        let factor = match sum::sum_of_squares(x) {
            // The squares of finite F32 values cannot overflow an f64: a NaN or an infinity is in the row.
            s if !s.is_finite() => f64::NAN,
            // Whatever `eps` is, zeros stay zeros.
            0.0 => 0.0,
            s => inverse_root_mean(s, a.dims.n, a.eps),
        };
        values.clear();
        values.extend(x.iter().zip(weight).map(|(&x, &weight)| f64::from(weight) * (f64::from(x) * factor)));
        T::round_row(values, out);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::generated::RmsNorm;

    use crate::golden::{Golden, assert_close};
    use crate::random;
    use crate::testing::{Tensor, call};

    fn run(x: &Tensor, format: Format, shape: &[usize], weight: &Tensor, eps: f32) -> Vec<f32> {
        let mut out = Tensor::unwritten(format, shape);
        call::<RmsNorm>(|a| {
            (a.x, a.weight, a.eps, a.out) = (x.input(), weight.input(), eps, out.output());
        })
        .unwrap();
        out.floats()
    }

    #[test]
    fn golden() {
        let file = Golden::open("hyper_connection");
        let x = Tensor::f32(&[10, 64], &file.f32("collapse"));
        let weight = Tensor::f32(&[64], &file.f32("norm_weight"));
        let out = run(&x, Format::F32, &[10, 64], &weight, 1e-20);
        assert_close(&out, &file.f32("norm_out"), 2e-6, 1e-5);
    }

    #[test]
    fn zeros_stay_zeros_whatever_eps_is() {
        let weight = Tensor::f32(&[9], &[3.0; 9]);
        for eps in [0.0, 1e-45, 1e-20, 1.0] {
            assert_eq!(run(&Tensor::f32(&[1, 9], &[0.0; 9]), Format::F32, &[1, 9], &weight, eps), [0.0; 9]);
        }
    }

    #[test]
    fn a_bad_value_spoils_its_row_and_no_other() {
        let weight = Tensor::bf16(&[4], &[1.0; 4]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let x = Tensor::f32(&[2, 4], &[1.0, bad, 2.0, 3.0, 1.0, 1.0, -1.0, 1.0]);
            let out = run(&x, Format::F32, &[2, 4], &weight, 0.0);
            assert!(out[..4].iter().all(|v| v.is_nan()));
            assert_eq!(out[4..], [1.0, 1.0, -1.0, 1.0]);
        }
    }

    /// Squares beyond the range of F32 are no infinities.
    #[test]
    fn large_rows_do_not_overflow() {
        let x = Tensor::f32(&[1, 2], &[3e38, -3e38]);
        assert_eq!(run(&x, Format::F32, &[1, 2], &Tensor::f32(&[2], &[1.0; 2]), 1e-6), [1.0, -1.0]);
    }

    #[test]
    fn a_row_does_not_depend_on_its_company_and_bf16_is_rounded_last() {
        const SHAPE: [usize; 2] = [500, 301];
        let values = random::floats(1, 500 * 301);
        let weight = Tensor::f32(&[301], &random::floats(2, 301));
        let together = run(&Tensor::f32(&SHAPE, &values).padded(3), Format::F32, &SHAPE, &weight, 1e-6);
        for (row, expected) in values.chunks(301).zip(together.chunks(301)) {
            let alone = run(&Tensor::f32(&[1, 301], row), Format::F32, &[1, 301], &weight, 1e-6);
            assert_eq!(alone, expected);
        }
        let x = Tensor::bf16(&SHAPE, &values);
        let wide = run(&Tensor::f32(&SHAPE, &x.floats()), Format::F32, &SHAPE, &weight, 1e-6);
        assert_eq!(run(&x, Format::Bf16, &SHAPE, &weight, 1e-6), Tensor::bf16(&SHAPE, &wide).floats());
    }

    #[test]
    fn no_rows() {
        assert!(run(&Tensor::f32(&[0, 4], &[]), Format::F32, &[0, 4], &Tensor::f32(&[4], &[1.0; 4]), 0.0).is_empty());
    }
}
