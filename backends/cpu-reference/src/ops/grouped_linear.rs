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
