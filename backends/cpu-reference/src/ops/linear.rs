//! `linear`: product with a transposed weight matrix, optionally block-diagonal.
//!
//! Each element is the sum over k in the order of [`crate::sum`], of products that are exact in F64.

use deepinfer_plugin_api::generated::LinearArgs;
use deepinfer_plugin_api::sdk::tensor::FloatRowMut;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::arguments;
use crate::matmul::{self, Product, take_front};
use crate::weights::Weights;

deepinfer_plugin_api::kernel!(Linear, linear);

fn linear(_: &Cx<'_>, mut a: LinearArgs<'_>) -> Result<(), Fault> {
    let (groups, k, o) = (arguments::positive("linear", "groups", a.groups)?, a.dims.k, a.dims.o);
    let (x, weight) = (a.x.floats()?, Weights::new(&a.weight)?);
    let mut rows: Vec<FloatRowMut<'_>> = a.out.float_rows_mut()?;
    let products = (0..groups).map(|group| Product {
        x,
        rows: 0..rows.len(),
        columns: group * k..(group + 1) * k,
        weight,
        outputs: group * o..(group + 1) * o,
        out: rows.iter_mut().map(|row| take_front(row, o)).collect(),
    });
    matmul::run(products.collect());
    Ok(())
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::generated::Linear;

    use crate::golden::{Golden, assert_close};
    use crate::random;
    use crate::sum;
    use crate::testing::{Tensor, call};

    const X_FORMATS: [Format; 3] = [Format::F32, Format::Bf16, Format::Fp8Row32];
    const WEIGHT_FORMATS: [Format; 4] = [Format::F32, Format::Bf16, Format::Fp8Tile32, Format::Fp4Row32];

    fn run(x: &Tensor, weight: &Tensor, groups: u32, format: Format, shape: [usize; 2]) -> Result<Vec<f32>, String> {
        let mut out = Tensor::unwritten(format, &shape);
        call::<Linear>(|a| {
            (a.x, a.weight, a.groups, a.out) = (x.input(), weight.input(), groups, out.output());
        })?;
        Ok(out.floats())
    }

    /// Element by element, over the decoded operands.
    fn expected(x: &Tensor, weight: &Tensor, t: usize, groups: usize, k: usize, o: usize) -> Vec<f32> {
        let (x, weight) = (x.floats(), weight.floats());
        let element = |row: usize, column: usize| {
            let x = &x[(row * groups + column / o) * k..][..k];
            sum::dot(x, &weight[column * k..][..k]) as f32
        };
        (0..t).flat_map(|row| (0..groups * o).map(move |column| element(row, column))).collect()
    }

    #[test]
    fn golden_gemm() {
        let file = Golden::open("quant");
        let x = Tensor::floating(Format::Fp8Row32, &[5, 96], &file.f32("gemm.in"));
        let weight = Tensor::scaled(Format::Fp8Tile32, &[70, 96], &file.u8("block.byte"), &file.u8("block.scale"));
        let out = run(&x, &weight, 1, Format::F32, [5, 70]).unwrap();
        let golden = file.f32("gemm.out_f32");
        // Relative to the row: an element may cancel.
        let largest = golden.iter().fold(0.0, |max: f32, v| max.max(v.abs()));
        assert_close(&out, &golden, 1e-5 * largest, 1e-5);
    }

    #[test]
    fn every_format_against_the_definition() {
        // Sizes with partial tiles and partial pieces.
        for (t, groups, k, o) in [(1, 1, 96, 70), (5, 1, 64, 33), (70, 1, 32, 100), (3, 4, 32, 16), (2, 1, 256, 300)] {
            for x_format in X_FORMATS {
                for weight_format in WEIGHT_FORMATS {
                    let x = Tensor::floating(x_format, &[t, groups * k], &random::floats(1, t * groups * k));
                    let weights = random::floats(2, groups * o * k);
                    let weight = Tensor::floating(weight_format, &[groups * o, k], &weights);
                    let wide = run(&x, &weight, groups as u32, Format::F32, [t, groups * o]).unwrap();
                    assert_eq!(wide, expected(&x, &weight, t, groups, k, o), "{x_format}, {weight_format}");
                    let narrow = run(&x, &weight, groups as u32, Format::Bf16, [t, groups * o]).unwrap();
                    assert_eq!(narrow, Tensor::bf16(&[t, groups * o], &wide).floats(), "{x_format}, {weight_format}");
                }
            }
        }
    }

    /// The sum is the exact one up to its last rounding, where F32 accumulation would lose everything.
    #[test]
    fn cancellation_is_exact() {
        let x = Tensor::f32(&[1, 3], &[1e20, 1.0, -1e20]);
        assert_eq!(run(&x, &Tensor::f32(&[1, 3], &[1e10, 3.5, 1e10]), 1, Format::F32, [1, 1]).unwrap(), [3.5]);
    }

    #[test]
    fn a_row_does_not_depend_on_its_company() {
        let (t, k, o) = (200, 96, 130);
        let values = random::floats(3, t * k);
        let weight = Tensor::floating(Format::Fp8Tile32, &[o, k], &random::floats(4, o * k));
        let together = run(&Tensor::f32(&[t, k], &values).padded(3), &weight, 1, Format::F32, [t, o]).unwrap();
        for (row, together) in values.chunks(k).zip(together.chunks(o)) {
            assert_eq!(run(&Tensor::f32(&[1, k], row), &weight, 1, Format::F32, [1, o]).unwrap(), together);
        }
    }

    #[test]
    fn a_nan_stays_in_its_row_and_its_column() {
        let (mut x, mut weight) = (random::floats(5, 6 * 40), random::floats(6, 7 * 40));
        (x[2 * 40 + 39], weight[5 * 40 + 1]) = (f32::NAN, f32::NAN);
        let (x, weight) = (Tensor::f32(&[6, 40], &x), Tensor::f32(&[7, 40], &weight));
        let out = run(&x, &weight, 1, Format::F32, [6, 7]).unwrap();
        assert!(out.iter().enumerate().all(|(i, v)| v.is_nan() == (i / 7 == 2 || i % 7 == 5)));
    }

    #[test]
    fn empty_extents() {
        let empty = |t, k, o| {
            let (x, weight) = (Tensor::f32(&[t, k], &vec![1.0; t * k]), Tensor::f32(&[o, k], &vec![1.0; o * k]));
            run(&x, &weight, 1, Format::F32, [t, o]).unwrap()
        };
        assert!(empty(0, 32, 5).is_empty() && empty(4, 32, 0).is_empty());
        assert_eq!(empty(2, 0, 3), [0.0; 6]);
    }

    #[test]
    fn no_groups_are_refused() {
        let refusal = run(&Tensor::f32(&[1, 0], &[]), &Tensor::f32(&[0, 4], &[]), 0, Format::F32, [1, 0]).unwrap_err();
        assert_eq!(refusal, "linear: groups is 0, but must be at least 1");
    }
}
