//! `candidate_block_max`: the best visible score of each block of entries. Of equal scores (+0 and -0) the first is taken.

use deepinfer_plugin_api::generated::CandidateBlockMaxArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::arguments::positive;
use crate::parallel;

deepinfer_plugin_api::kernel!(CandidateBlockMax, candidate_block_max);

fn candidate_block_max(_: &Cx<'_>, mut a: CandidateBlockMaxArgs<'_>) -> Result<(), Fault> {
    let block = positive("candidate_block_max", "block_size", a.block_size)?;
    let (scores, visible) = (a.scores.rows::<f32>()?, a.visible.slice::<i32>()?);
    parallel::for_each_row(a.out.rows_mut::<f32>()?, a.dims.n, |t, out| {
        let visible = usize::try_from(visible[t]).unwrap_or(0);
        let scores = &scores.row(t)[..visible.min(a.dims.n)];
        out.fill(f32::NEG_INFINITY);
        for (best, block) in out.iter_mut().zip(scores.chunks(block)) {
            // A comparison with NaN is false.
            block.iter().for_each(|&score| *best = if score > *best { score } else { *best });
        }
        if let Some(newest) = visible.checked_sub(1).and_then(|last| out.get_mut(last / block)) {
            *newest = f32::INFINITY;
        }
    });
    Ok(())
}
