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
