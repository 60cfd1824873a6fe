//! `hc_expand`: the stream's copies mixed with each other and with a sublayer's output, in place.
//!
//! Per element a sum by the rule of [`blend`]: `post * y`, then the copies in ascending order; rounded once.

use deepinfer_plugin_api::generated::HcExpandArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::blend::{self, BLOCK, blend};
use crate::float::{Float, by_float};
use crate::parallel;

deepinfer_plugin_api::kernel!(HcExpand, hc_expand);

fn hc_expand(_: &Cx<'_>, mut a: HcExpandArgs<'_>) -> Result<(), Fault> {
    by_float!(a.x, expand(&mut a))
}

fn expand<T: Float>(a: &mut HcExpandArgs<'_>) -> Result<(), Fault> {
    let (copies, d) = (a.dims.c, a.dims.d);
    // Of an extent that nothing backs, however large it is, no scratch memory is made.
    if copies == 0 || a.dims.t == 0 {
        return Ok(());
    }
    let (y, post, comb) = (a.y.rows::<T>()?, a.post.rows::<f32>()?, a.comb.rows::<f32>()?);
    let mut x = a.x.rows_mut::<T>()?;
    let tokens: Vec<_> = x.chunks_mut(copies).collect();
    let scratch = || (vec![[0.0; BLOCK]; copies + 1], vec![0.0; copies * (copies + 1)]);
    parallel::for_each_row_with(tokens, copies * copies * d / 4, scratch, |(blocks, weights), t, x| {
        // What goes into copy j: its weight of y, and column j of the matrix.
        for (j, weights) in weights.chunks_exact_mut(copies + 1).enumerate() {
            weights[0] = post.row(t)[j];
            weights[1..].iter_mut().enumerate().for_each(|(i, weight)| *weight = comb.row(t * copies + i)[j]);
        }
        for start in (0..d).step_by(BLOCK) {
            // All copies of a block are read before one is written.
            blend::load(y.row(t), start, &mut blocks[0]);
            for (block, x) in blocks[1..].iter_mut().zip(&*x) {
                blend::load(x, start, block);
            }
            for (weights, x) in weights.chunks_exact(copies + 1).zip(&mut *x) {
                blend::store(&blend(weights, blocks), x, start);
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::generated::HcExpand;
    use deepinfer_plugin_api::numerics::bf16;

    use crate::golden::{Golden, assert_close};
    use crate::random;
    use crate::testing::{Tensor, call};

    fn run(mut x: Tensor, y: &Tensor, [t, c]: [usize; 2], post: &[f32], comb: &[f32]) -> Vec<f32> {
        let (post, comb) = (Tensor::f32(&[t, c], post), Tensor::f32(&[t, c, c], comb));
        call::<HcExpand>(|a| {
            (a.x, a.y, a.post, a.comb) = (x.output(), y.input(), post.input(), comb.input());
        })
        .unwrap();
        x.floats()
    }

    #[test]
    fn golden() {
        let file = Golden::open("hyper_connection");
        let (x, y) = (Tensor::f32(&[10, 4, 64], &file.f32("x")), Tensor::f32(&[10, 64], &file.f32("sublayer_out")));
        let out = run(x, &y, [10, 4], &file.f32("post"), &file.f32("comb"));
        assert_close(&out, &file.f32("expand"), 2e-6, 1e-5);
    }

    #[test]
    fn is_a_plain_f64_sum_rounded_once() {
        let (t, c, d) = (50, 2, 150);
        let x = random::floats(12, t * c * d).iter().map(|&v| bf16::round(v)).collect::<Vec<f32>>();
        let y = random::floats(13, t * d).iter().map(|&v| bf16::round(v)).collect::<Vec<f32>>();
        let (post, comb) = (random::floats(14, t * c), random::floats(15, t * c * c));
        let expected: Vec<f32> = (0..t * c * d)
            .map(|i| {
                let (row, j, k) = (i / (c * d), i / d % c, i % d);
                let product = |a: f32, b: f32| f64::from(a) * f64::from(b);
                let mixed = |i: usize| product(comb[(row * c + i) * c + j], x[(row * c + i) * d + k]);
                (product(post[row * c + j], y[row * d + k]) + mixed(0) + mixed(1)) as f32
            })
            .collect();
        let out = run(Tensor::f32(&[t, c, d], &x), &Tensor::f32(&[t, d], &y), [t, c], &post, &comb);
        assert_eq!(out, expected);
        let out = run(Tensor::bf16(&[t, c, d], &x), &Tensor::bf16(&[t, d], &y), [t, c], &post, &comb);
        assert!(out.iter().zip(&expected).all(|(out, &v)| *out == bf16::round(v)));
    }

    #[test]
    fn no_rows_and_no_copies() {
        const MANY: usize = 1 << 31;
        assert!(run(Tensor::f32(&[0, MANY, 3], &[]), &Tensor::f32(&[0, 3], &[]), [0, MANY], &[], &[]).is_empty());
        assert!(run(Tensor::f32(&[0, 2, 3], &[]), &Tensor::f32(&[0, 3], &[]), [0, 2], &[], &[]).is_empty());
        assert!(run(Tensor::f32(&[1, 0, 3], &[]), &Tensor::f32(&[1, 3], &[1.0; 3]), [1, 0], &[], &[]).is_empty());
    }
}
