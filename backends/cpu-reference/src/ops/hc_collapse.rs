//! `hc_collapse`: the weighted sum of the copies of the stream, copy 0 first, by the rule of [`blend`]; rounded once.

use deepinfer_plugin_api::generated::HcCollapseArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::blend::{self, BLOCK, blend};
use crate::float::{Float, by_float};
use crate::parallel;

deepinfer_plugin_api::kernel!(HcCollapse, hc_collapse);

fn hc_collapse(_: &Cx<'_>, mut a: HcCollapseArgs<'_>) -> Result<(), Fault> {
    by_float!(a.x, collapse(&mut a))
}

fn collapse<T: Float>(a: &mut HcCollapseArgs<'_>) -> Result<(), Fault> {
    let (x, pre) = (a.x.rows::<T>()?, a.pre.rows::<f32>()?);
    let (copies, d) = (a.dims.c, a.dims.d);
    // Of an extent that nothing backs, however large it is, no scratch memory is made.
    if a.dims.t == 0 {
        return Ok(());
    }
    let blocks = || vec![[0.0; BLOCK]; copies];
    parallel::for_each_row_with(a.out.rows_mut::<T>()?, copies * d / 4, blocks, |blocks, t, out| {
        for start in (0..d).step_by(BLOCK) {
            for (i, block) in blocks.iter_mut().enumerate() {
                blend::load(x.row(t * copies + i), start, block);
            }
            blend::store(&blend(pre.row(t), blocks), out, start);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::generated::HcCollapse;
    use deepinfer_plugin_api::numerics::bf16;

    use crate::golden::{Golden, assert_close};
    use crate::random;
    use crate::testing::{Tensor, call};

    fn run(x: &Tensor, format: Format, [t, c, d]: [usize; 3], pre: &[f32]) -> Vec<f32> {
        let (pre, mut out) = (Tensor::f32(&[t, c], pre), Tensor::unwritten(format, &[t, d]));
        call::<HcCollapse>(|a| (a.x, a.pre, a.out) = (x.input(), pre.input(), out.output())).unwrap();
        out.floats()
    }

    #[test]
    fn golden() {
        let file = Golden::open("hyper_connection");
        let x = Tensor::f32(&[10, 4, 64], &file.f32("x"));
        let out = run(&x, Format::F32, [10, 4, 64], &file.f32("pre"));
        assert_close(&out, &file.f32("collapse"), 2e-6, 1e-5);
    }

    #[test]
    fn is_a_plain_f64_sum_rounded_once() {
        const SHAPE: [usize; 3] = [90, 3, 100];
        let (x, pre) = (Tensor::bf16(&SHAPE, &random::floats(10, 90 * 300)), random::floats(11, 90 * 3));
        let values = x.floats();
        let expected: Vec<f32> = (0..90 * 100)
            .map(|i| {
                let (t, d) = (i / 100, i % 100);
                let term = |c: usize| f64::from(pre[t * 3 + c]) * f64::from(values[(t * 3 + c) * 100 + d]);
                (term(0) + term(1) + term(2)) as f32
            })
            .collect();
        assert_eq!(run(&Tensor::f32(&SHAPE, &values).padded(5), Format::F32, SHAPE, &pre), expected);
        let rounded: Vec<f32> = expected.iter().map(|&v| bf16::round(v)).collect();
        assert_eq!(run(&x, Format::Bf16, SHAPE, &pre), rounded);
    }

    #[test]
    fn no_copies_give_zeros() {
        assert_eq!(run(&Tensor::f32(&[1, 0, 2], &[]), Format::F32, [1, 0, 2], &[]), [0.0; 2]);
        for copies in [4, 1 << 31] {
            assert!(run(&Tensor::f32(&[0, copies, 2], &[]), Format::F32, [0, copies, 2], &[]).is_empty());
        }
    }
}
