//! `moe_combine`: the expert outputs of each row and the shared expert's, added in F32: from +0, the rows of `y` in
//! ascending order, the shared output last.

use deepinfer_plugin_api::generated::MoeCombineArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::arguments::index;
use crate::float::{Float, by_float};
use crate::parallel;

deepinfer_plugin_api::kernel!(MoeCombine, moe_combine);

fn moe_combine(_: &Cx<'_>, mut a: MoeCombineArgs<'_>) -> Result<(), Fault> {
    by_float!(a.y, combine(&mut a))
}

fn combine<T: Float>(a: &mut MoeCombineArgs<'_>) -> Result<(), Fault> {
    let (y, row_of) = (a.y.rows::<T>()?, a.row_of.rows::<i32>()?);
    let shared = a.shared.map(|shared| shared.rows::<T>()).transpose()?;
    for t in 0..a.dims.t {
        for (j, &m) in row_of.row(t).iter().enumerate().filter(|(_, m)| **m >= 0) {
            index("moe_combine", "row_of", &[t, j], m, a.dims.m)?;
        }
    }
    let cost_ns = (a.dims.k + 2) * a.dims.n / 4;
    let scratch = || (Vec::new(), vec![0.0; a.dims.n]);
    parallel::for_each_row_with(a.out.rows_mut::<T>()?, cost_ns, scratch, |(order, sums), t, out| {
        order.clear();
        order.extend(row_of.row(t).iter().filter_map(|&m| usize::try_from(m).ok()));
        order.sort_unstable();
        sums.fill(0.0f32);
        for terms in order.iter().map(|&m| y.row(m)).chain(shared.map(|shared| shared.row(t))) {
            sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term.to_f32());
        }
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = T::from_f32(*sum));
    });
    Ok(())
}
