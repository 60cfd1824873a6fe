//! `hc_expand`: the stream's copies mixed with each other and with a sublayer's output, in place.
//!
//! Per element an f64 sum of `post * y`, then the copies in ascending order; rounded once.

use deepinfer_plugin_api::generated::HcExpandArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::float::{Float, by_float};
use crate::parallel;

deepinfer_plugin_api::kernel!(HcExpand, hc_expand);

/// Channels that are mixed at a time: all copies of a channel are read before one is written.
const BLOCK: usize = 64;

fn hc_expand(_: &Cx<'_>, mut a: HcExpandArgs<'_>) -> Result<(), Fault> {
    by_float!(a.x, expand(&mut a))
}

fn expand<T: Float>(a: &mut HcExpandArgs<'_>) -> Result<(), Fault> {
    let (copies, d) = (a.dims.c, a.dims.d);
    if copies == 0 {
        return Ok(());
    }
    let (y, post, comb) = (a.y.rows::<T>()?, a.post.rows::<f32>()?, a.comb.rows::<f32>()?);
    let mut x = a.x.rows_mut::<T>()?;
    let tokens: Vec<_> = x.chunks_mut(copies).collect();
    parallel::for_each_row(tokens, copies * (copies + 1) * d / 2, |t, x| {
        let (y, post) = (y.row(t), post.row(t));
        let mut before = vec![[0.0; BLOCK]; copies];
        for start in (0..d).step_by(BLOCK) {
            let block = start..d.min(start + BLOCK);
            for (before, x) in before.iter_mut().zip(&*x) {
                before.iter_mut().zip(&x[block.clone()]).for_each(|(before, &x)| *before = x.widen());
            }
            let y = &y[block.clone()];
            for (j, x) in x.iter_mut().enumerate() {
                let mut sums = [0.0; BLOCK];
                sums.iter_mut().zip(y).for_each(|(sum, &y)| *sum = f64::from(post[j]) * y.widen());
                for (i, before) in before.iter().enumerate() {
                    let weight = f64::from(comb.row(t * copies + i)[j]);
                    sums.iter_mut().zip(before).for_each(|(sum, x)| *sum += weight * x);
                }
                x[block.clone()].iter_mut().zip(sums).for_each(|(x, sum)| *x = T::round(sum));
            }
        }
    });
    Ok(())
}
