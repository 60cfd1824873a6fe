//! `restore_candidate_indices_inplace`: columns of a candidate-restricted score row to entries.

use deepinfer_plugin_api::generated::RestoreCandidateIndicesInplaceArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::arguments::positive;

deepinfer_plugin_api::kernel!(RestoreCandidateIndicesInplace, restore_candidate_indices_inplace);

fn restore_candidate_indices_inplace(_: &Cx<'_>, mut a: RestoreCandidateIndicesInplaceArgs<'_>) -> Result<(), Fault> {
    const OP: &str = "restore_candidate_indices_inplace";
    let size = positive(OP, "block_size", a.block_size)?;
    let candidates = a.candidates.rows::<i32>()?;
    // The largest block whose entries are all below 2^31.
    let limit = (1usize << 31) / size;
    for t in 0..a.dims.t {
        if let Some(l) = candidates.row(t).iter().position(|&block| usize::try_from(block).is_ok_and(|b| b >= limit)) {
            return Err(Fault::invalid(format!(
                "{OP}: candidates[{t}, {l}] is {}, but a block of {size} entries must be below {limit}",
                candidates.row(t)[l]
            )));
        }
    }
    for (t, columns) in a.columns.rows_mut::<i32>()?.into_iter().enumerate() {
        for column in columns {
            *column = entry(*column, candidates.row(t), size).unwrap_or(-1);
        }
    }
    Ok(())
}

fn entry(column: i32, candidates: &[i32], size: usize) -> Option<i32> {
    let column = usize::try_from(column).ok()?;
    let block = usize::try_from(*candidates.get(column / size)?).ok()?;
    i32::try_from(block * size + column % size).ok()
}
