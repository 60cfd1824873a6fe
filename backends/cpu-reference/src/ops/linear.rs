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
