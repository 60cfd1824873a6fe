//! `grouped_linear`: products of row ranges with one weight matrix each, the experts of a mixture.
//!
//! Each element is the sum over k in the order of [`crate::sum`], of products that are exact in F64.

use deepinfer_plugin_api::generated::GroupedLinearArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::matmul::{self, Product};
use crate::weights::Weights;

deepinfer_plugin_api::kernel!(GroupedLinear, grouped_linear);

fn grouped_linear(_: &Cx<'_>, mut a: GroupedLinearArgs<'_>) -> Result<(), Fault> {
    let starts = check_starts(a.expert_start.slice()?, a.dims.m)?;
    let x = a.x.floats()?;
    let mut rows = a.out.float_rows_mut()?.into_iter();
    let mut products = Vec::new();
    for (tensor, start) in a.weight.tensors().iter().zip(starts.windows(2)) {
        let (first, end) = (start[0], start[1]);
        if first < end {
            products.push(Product {
                x,
                rows: first..end,
                columns: 0..a.dims.k,
                weight: Weights::new(tensor)?,
                outputs: 0..a.dims.o,
                out: rows.by_ref().take(end - first).collect(),
            });
        }
    }
    matmul::run(products);
    Ok(())
}

/// The starts as numbers, ascending from 0 to at most `rows`.
fn check_starts(starts: &[i32], rows: usize) -> Result<Vec<usize>, Fault> {
    let mut last = 0;
    starts
        .iter()
        .enumerate()
        .map(|(expert, &start)| {
            let expected = if expert == 0 { 0..=0 } else { last..=rows };
            match usize::try_from(start).ok().filter(|start| expected.contains(start)) {
                Some(start) => {
                    last = start;
                    Ok(start)
                }
                None => Err(Fault::invalid(format!(
                    "grouped_linear: expert_start[{expert}] is {start}, but must be from {} to {}",
                    expected.start(),
                    expected.end()
                ))),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::abi::DiTensorList;
    use deepinfer_plugin_api::generated::{GroupedLinear, Linear};

    use crate::random;
    use crate::testing::{Tensor, call};

    const FORMATS: [Format; 4] = [Format::Fp4Row32, Format::F32, Format::Fp8Tile32, Format::Bf16];

    fn weights(k: usize, o: usize) -> Vec<Tensor> {
        let matrix = |e| Tensor::floating(FORMATS[e], &[o, k], &random::floats(e as u64, o * k));
        (0..FORMATS.len()).map(matrix).collect()
    }

    fn run(x: &Tensor, starts: &[i32], weights: &[Tensor], shape: [usize; 2]) -> Result<Vec<f32>, String> {
        let starts = Tensor::i32(&[starts.len()], starts);
        let list: Vec<_> = weights.iter().map(Tensor::input).collect();
        let mut out = Tensor::unwritten(Format::F32, &shape);
        call::<GroupedLinear>(|a| {
            (a.x, a.expert_start, a.out) = (x.input(), starts.input(), out.output());
            a.weight = DiTensorList { ptr: list.as_ptr(), len: list.len() as u64 };
        })?;
        Ok(out.floats())
    }

    /// Every row equals `linear` of that row alone with its expert's matrix; rows behind the last expert keep their bytes.
    #[test]
    fn rows_are_those_of_linear() {
        let (k, o) = (64, 50);
        let weights = weights(k, o);
        // An expert without rows, one with more than a piece, and rows that belong to none.
        let (starts, rows) = ([0, 3, 3, 103, 104], 110);
        let values = random::floats(9, rows * k);
        for format in [Format::F32, Format::Fp8Row32] {
            let x = Tensor::floating(format, &[rows, k], &values);
            let out = run(&x, &starts, &weights, [rows, o]).unwrap();
            for (row, out) in out.chunks(o).enumerate() {
                let Some(expert) = starts.windows(2).position(|s| (s[0]..s[1]).contains(&(row as i32))) else {
                    assert!(row >= 104 && out.iter().all(|v| v.is_nan()), "row {row} was written");
                    continue;
                };
                let one = Tensor::floating(format, &[1, k], &values[row * k..][..k]);
                let mut expected = Tensor::unwritten(Format::F32, &[1, o]);
                call::<Linear>(|a| {
                    (a.x, a.weight, a.groups) = (one.input(), weights[expert].input(), 1);
                    a.out = expected.output();
                })
                .unwrap();
                assert_eq!(out, expected.floats(), "row {row}");
            }
        }
    }

    #[test]
    fn no_rows_and_no_experts() {
        let weights = weights(32, 4);
        assert!(run(&Tensor::f32(&[0, 32], &[]), &[0; 5], &weights, [0, 4]).unwrap().is_empty());
        let untouched = run(&Tensor::f32(&[2, 32], &[1.0; 64]), &[0], &[], [2, 4]).unwrap();
        assert!(untouched.iter().all(|v| v.is_nan()));
    }

    #[test]
    fn starts_that_do_not_ascend_are_refused() {
        let (x, weights) = (Tensor::f32(&[6, 32], &[1.0; 192]), weights(32, 4));
        let cases: [([i32; 5], &str); 4] = [
            ([1, 2, 3, 4, 5], "grouped_linear: expert_start[0] is 1, but must be from 0 to 0"),
            ([0, 2, 1, 4, 5], "grouped_linear: expert_start[2] is 1, but must be from 2 to 6"),
            ([0, 2, 3, 4, 7], "grouped_linear: expert_start[4] is 7, but must be from 4 to 6"),
            ([0, -1, 3, 4, 5], "grouped_linear: expert_start[1] is -1, but must be from 0 to 6"),
        ];
        for (starts, sentence) in cases {
            assert_eq!(run(&x, &starts, &weights, [6, 4]).unwrap_err(), sentence);
        }
    }
}
