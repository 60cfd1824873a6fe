//! `topk_select`: the columns of the largest scores.
//!
//! A score becomes an integer that falls as the score grows; with its column below, every key of a row is different and
//! the K smallest keys are exactly the columns wanted. A selection finds the K-th key, and one pass over the columns
//! emits those up to it in order.

use deepinfer_plugin_api::generated::TopkSelectArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::parallel;

deepinfer_plugin_api::kernel!(TopkSelect, topk_select);

fn topk_select(_: &Cx<'_>, mut a: TopkSelectArgs<'_>) -> Result<(), Fault> {
    let scores = a.scores.rows::<f32>()?;
    let k = a.dims.k;
    parallel::for_each_row_with(a.out.rows_mut::<i32>()?, 5 * a.dims.n, Vec::new, |keys: &mut Vec<u64>, t, out| {
        let scores = scores.row(t).iter().enumerate();
        let candidates = scores.filter(|(_, score)| **score > f32::NEG_INFINITY).map(|(c, &score)| key(score, c));
        keys.clear();
        keys.extend(candidates.clone());
        let last = match k {
            0 => return,
            _ if keys.len() <= k => u64::MAX,
            _ => *keys.select_nth_unstable(k - 1).1,
        };
        out.fill(-1);
        let chosen = candidates.filter(|&key| key <= last);
        out.iter_mut().zip(chosen).for_each(|(out, key)| *out = key as u32 as i32);
    });
    Ok(())
}

/// Larger scores have smaller keys; of equal scores the lower column has.
#[inline]
fn key(score: f32, column: usize) -> u64 {
    // The sum turns -0 into +0 and changes nothing else.
    let bits = (score + 0.0).to_bits();
    // Bit patterns of positive values ascend with the value, those of negative values descend.
    let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    u64::from(!ascending) << 32 | column as u64
}
