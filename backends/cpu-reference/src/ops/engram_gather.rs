//! `engram_gather`: table rows side by side. Each value is one F32 product, then rounded to BF16 when `out` is.

use deepinfer_plugin_api::generated::EngramGatherArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::float::{Float, by_float};
use crate::parallel;

deepinfer_plugin_api::kernel!(EngramGather, engram_gather);

fn engram_gather(_: &Cx<'_>, mut a: EngramGatherArgs<'_>) -> Result<(), Fault> {
    by_float!(a.out, look_up(&mut a))
}

fn look_up<T: Float>(a: &mut EngramGatherArgs<'_>) -> Result<(), Fault> {
    let (table, rows) = (a.table.floats()?, a.rows.rows::<i32>()?);
    let columns = a.dims.c;
    if columns == 0 {
        return Ok(());
    }
    parallel::for_each_row_with(a.out.rows_mut::<T>()?, a.dims.j * columns, Vec::new, |scratch, t, out| {
        for (out, &row) in out.chunks_exact_mut(columns).zip(rows.row(t)) {
            match usize::try_from(row).ok().filter(|&row| row < a.dims.n) {
                Some(row) => {
                    let values = table.load(row, scratch);
                    out.iter_mut().zip(values).for_each(|(out, &v)| *out = T::from_f32(v));
                }
                None => out.fill(T::from_f32(0.0)),
            }
        }
    });
    Ok(())
}
