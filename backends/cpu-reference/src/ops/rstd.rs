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
