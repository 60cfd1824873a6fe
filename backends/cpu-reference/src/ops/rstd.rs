//! `rstd`: the inverse root mean square of a row.
//!
//! The squares are summed in f64 by the rule of [`sum`](crate::sum); `1 / sqrt` is f64, rounded once to F32.

use deepinfer_plugin_api::generated::RstdArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::float::{Float, by_float};
use crate::scalar::inverse_root_mean;
use crate::{parallel, sum};

deepinfer_plugin_api::kernel!(Rstd, rstd);

fn rstd(_: &Cx<'_>, mut a: RstdArgs<'_>) -> Result<(), Fault> {
    by_float!(a.x, inverse_roots(&mut a))
}

fn inverse_roots<T: Float>(a: &mut RstdArgs<'_>) -> Result<(), Fault> {
    let x = a.x.rows::<T>()?;
    let out: Vec<&mut f32> = a.out.slice_mut::<f32>()?.iter_mut().collect();
    parallel::for_each_row_with(out, a.dims.n / 2, Vec::new, |scratch, t, out| {
        let squares = sum::sum_of_squares(T::load(x.row(t), scratch));
        *out = inverse_root_mean(squares, a.dims.n, a.eps) as f32;
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::generated::Rstd;

    use crate::random;
    use crate::testing::{Tensor, call};

    fn run(x: &Tensor, rows: usize, eps: f32) -> Vec<f32> {
        let mut out = Tensor::unwritten(Format::F32, &[rows]);
        call::<Rstd>(|a| (a.x, a.eps, a.out) = (x.input(), eps, out.output())).unwrap();
        out.floats()
    }

    #[test]
    fn is_the_inverse_root_of_the_mean_square() {
        assert_eq!(run(&Tensor::f32(&[2, 2], &[1.0, 7.0, 0.0, 0.0]), 2, 0.0), [0.2, f32::INFINITY]);
        assert_eq!(run(&Tensor::bf16(&[1, 4], &[2.0; 4]), 1, 12.0), [0.25]);
        assert_eq!(run(&Tensor::f32(&[1, 2], &[0.0; 2]), 1, 1e-20), [1e10]);
    }

    /// Within half a unit in the last place of an f64 evaluation in another order.
    #[test]
    fn is_rounded_once() {
        let values = random::floats(3, 100 * 257);
        let out = run(&Tensor::f32(&[100, 257], &values), 100, 1e-6);
        for (row, out) in values.chunks(257).zip(out) {
            let mean = row.iter().rev().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / 257.0;
            let exact = (mean + f64::from(1e-6f32)).sqrt().recip();
            let ulp = f64::from(out.next_up() - out);
            assert!((f64::from(out) - exact).abs() <= 0.500_01 * ulp);
        }
    }

    #[test]
    fn a_nan_stays_in_its_row() {
        let out = run(&Tensor::f32(&[2, 2], &[f32::NAN, 1.0, 1.0, 1.0]), 2, 0.0);
        assert!(out[0].is_nan() && out[1] == 1.0);
    }
}
