//! `hc_collapse`: the weighted sum of the copies of the stream, copy 0 first, in f64 with one rounding.

use deepinfer_plugin_api::generated::HcCollapseArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::float::{Float, by_float};
use crate::parallel;

deepinfer_plugin_api::kernel!(HcCollapse, hc_collapse);

/// Channels whose sums are held at a time.
const BLOCK: usize = 64;

fn hc_collapse(_: &Cx<'_>, mut a: HcCollapseArgs<'_>) -> Result<(), Fault> {
    by_float!(a.x, collapse(&mut a))
}

fn collapse<T: Float>(a: &mut HcCollapseArgs<'_>) -> Result<(), Fault> {
    let (x, pre) = (a.x.rows::<T>()?, a.pre.rows::<f32>()?);
    let copies = a.dims.c;
    parallel::for_each_row(a.out.rows_mut::<T>()?, copies * a.dims.d / 2, |t, out| {
        for (block, out) in out.chunks_mut(BLOCK).enumerate() {
            let mut sums = [0.0; BLOCK];
            for (i, &weight) in pre.row(t).iter().enumerate() {
                let x = &x.row(t * copies + i)[block * BLOCK..][..out.len()];
                sums.iter_mut().zip(x).for_each(|(sum, &x)| *sum += f64::from(weight) * x.widen());
            }
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = T::round(sum));
        }
    });
    Ok(())
}
