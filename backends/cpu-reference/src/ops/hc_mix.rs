//! `hc_mix`: the mixing coefficients of a hyper-connection, with the mixing matrix balanced by Sinkhorn iterations.
//!
//! Everything is f64 and rounded once to F32. Sums over rows and columns of the matrix run in ascending index order.

use deepinfer_plugin_api::generated::HcMixArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::arguments::positive;
use crate::parallel;
use crate::scalar::sigmoid;

deepinfer_plugin_api::kernel!(HcMix, hc_mix);

fn hc_mix(_: &Cx<'_>, mut a: HcMixArgs<'_>) -> Result<(), Fault> {
    let copies = positive("hc_mix", "copies", a.copies)?;
    let iters = positive("hc_mix", "iters", a.iters)?;
    let (mix, rstd) = (a.mix.rows::<f32>()?, a.rstd.slice::<f32>()?);
    let (base, scale) = (a.base.slice::<f32>()?, a.scale.slice::<f32>()?);
    let eps = f64::from(a.eps);

    let mut comb = a.comb.rows_mut::<f32>()?;
    let rows = a.pre.rows_mut::<f32>()?.into_iter().zip(a.post.rows_mut::<f32>()?).zip(comb.chunks_mut(copies));
    let cost_ns = 20 * mix.columns() + 8 * iters * copies * copies;
    parallel::for_each_row(rows.collect(), cost_ns, |t, ((pre, post), comb)| {
        let (mix, rstd) = (mix.row(t), f64::from(rstd[t]));
        let logit = |i: usize, part: usize| f64::from(mix[i]) * rstd * f64::from(scale[part]) + f64::from(base[i]);
        for i in 0..copies {
            pre[i] = (sigmoid(logit(i, 0)) + eps) as f32;
            post[i] = (2.0 * sigmoid(logit(copies + i, 1))) as f32;
        }
        let logits = (2 * copies..mix.len()).map(|i| logit(i, 2)).collect();
        let balanced = sinkhorn(logits, copies, iters, eps);
        for (out, row) in comb.iter_mut().zip(balanced.chunks_exact(copies)) {
            out.iter_mut().zip(row).for_each(|(out, &v)| *out = v as f32);
        }
    });
    Ok(())
}

/// Softmax of each row of the matrix, then alternating normalisation of columns and rows.
fn sinkhorn(mut matrix: Vec<f64>, copies: usize, iters: usize, eps: f64) -> Vec<f64> {
    for row in matrix.chunks_exact_mut(copies) {
        // `max` drops a NaN, but the exponentials keep it.
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        row.iter_mut().for_each(|v| *v = libm::exp(*v - largest));
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|v| *v = *v / sum + eps);
    }
    let mut sums = vec![0.0; copies];
    divide_columns(&mut matrix, &mut sums, eps);
    for _ in 1..iters {
        for row in matrix.chunks_exact_mut(copies) {
            let sum = row.iter().sum::<f64>() + eps;
            row.iter_mut().for_each(|v| *v /= sum);
        }
        divide_columns(&mut matrix, &mut sums, eps);
    }
    matrix
}

/// Divides every column by its sum plus `eps`; `sums` is scratch, one per column.
fn divide_columns(matrix: &mut [f64], sums: &mut [f64], eps: f64) {
    let copies = sums.len();
    sums.fill(0.0);
    for row in matrix.chunks_exact(copies) {
        sums.iter_mut().zip(row).for_each(|(sum, v)| *sum += v);
    }
    sums.iter_mut().for_each(|sum| *sum += eps);
    for row in matrix.chunks_exact_mut(copies) {
        row.iter_mut().zip(&*sums).for_each(|(v, sum)| *v /= sum);
    }
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::generated::{HcMix, Linear, Rstd};

    use crate::golden::{Golden, assert_close};
    use crate::random;
    use crate::testing::{Tensor, call};

    /// `mix`, `rstd`, `base`, `scale`.
    type Inputs<'a> = (&'a Tensor, &'a Tensor, &'a Tensor, &'a Tensor);

    fn run(rows: usize, copies: usize, iters: u32, inputs: Inputs<'_>) -> Result<[Vec<f32>; 3], String> {
        let mut pre = Tensor::unwritten(Format::F32, &[rows, copies]);
        let mut post = Tensor::unwritten(Format::F32, &[rows, copies]);
        let mut comb = Tensor::unwritten(Format::F32, &[rows, copies, copies]);
        call::<HcMix>(|a| {
            (a.mix, a.rstd, a.base, a.scale) = (inputs.0.input(), inputs.1.input(), inputs.2.input(), inputs.3.input());
            (a.copies, a.iters, a.eps) = (copies as u32, iters, 1e-6);
            (a.pre, a.post, a.comb) = (pre.output(), post.output(), comb.output());
        })?;
        Ok([pre.floats(), post.floats(), comb.floats()])
    }

    /// From the stream: the projection and the scale of the stream are kernels of their own.
    #[test]
    fn golden() {
        let file = Golden::open("hyper_connection");
        let stream = Tensor::f32(&[10, 256], &file.f32("x"));
        let projection = Tensor::f32(&[24, 256], &file.f32("fn"));
        let mut mix = Tensor::unwritten(Format::F32, &[10, 24]);
        call::<Linear>(|a| {
            (a.x, a.weight, a.groups, a.out) = (stream.input(), projection.input(), 1, mix.output());
        })
        .unwrap();
        let mut rstd = Tensor::unwritten(Format::F32, &[10]);
        call::<Rstd>(|a| (a.x, a.eps, a.out) = (stream.input(), 1e-20, rstd.output())).unwrap();

        let (base, scale) = (Tensor::f32(&[24], &file.f32("base")), Tensor::f32(&[3], &file.f32("scale")));
        let ours = run(10, 4, 20, (&mix, &rstd, &base, &scale)).unwrap();
        for (ours, name) in ours.iter().zip(["pre", "post", "comb"]) {
            assert_close(ours, &file.f32(name), 2e-6, 1e-5);
        }
    }

    #[test]
    fn the_matrix_is_nearly_doubly_stochastic_and_rows_are_independent() {
        let (mix, rstd) = (random::floats(7, 40 * 15), random::floats(8, 40));
        let base = Tensor::f32(&[15], &random::floats(9, 15));
        let scale = Tensor::f32(&[3], &[0.5, 2.0, 1.5]);
        let together = {
            let (mix, rstd) = (Tensor::f32(&[40, 15], &mix), Tensor::f32(&[40], &rstd));
            run(40, 3, 300, (&mix, &rstd, &base, &scale)).unwrap()
        };
        for t in 0..40 {
            let (mix, rstd) = (Tensor::f32(&[1, 15], &mix[t * 15..][..15]), Tensor::f32(&[1], &rstd[t..=t]));
            let alone = run(1, 3, 300, (&mix, &rstd, &base, &scale)).unwrap();
            assert!((0..3).all(|part| together[part].chunks(alone[part].len()).nth(t).unwrap() == alone[part]));
            for i in 0..3 {
                let row: f32 = (0..3).map(|j| alone[2][i * 3 + j]).sum();
                let column: f32 = (0..3).map(|j| alone[2][j * 3 + i]).sum();
                assert!((row - 1.0).abs() < 1e-3 && (column - 1.0).abs() < 1e-5, "row {row}, column {column}");
            }
        }
    }

    #[test]
    fn a_nan_stays_in_its_row_and_zeros_are_refused() {
        let mut values = vec![0.5; 16];
        values[2 * 2 + 1] = f32::NAN;
        let mix = Tensor::f32(&[2, 8], &values);
        let (rstd, base) = (Tensor::f32(&[2], &[1.0; 2]), Tensor::f32(&[8], &[0.0; 8]));
        let scale = Tensor::f32(&[3], &[1.0; 3]);
        let [pre, _, comb] = run(2, 2, 3, (&mix, &rstd, &base, &scale)).unwrap();
        assert!(comb[..4].iter().all(|v| v.is_nan()) && comb[4..].iter().all(|v| v.is_finite()));
        assert!(pre.iter().all(|v| v.is_finite()));
        assert!(run(2, 2, 0, (&mix, &rstd, &base, &scale)).unwrap_err().contains("iters is 0"));
    }
}
