//! `restore_candidate_indices_inplace`: columns of a candidate-restricted score row to entries.

use deepinfer_plugin_api::generated::RestoreCandidateIndicesInplaceArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(RestoreCandidateIndicesInplace, restore_candidate_indices_inplace, flags = PROMISES);

static RESTORE: Function =
    Function::new(&images::RESTORE_CANDIDATE_INDICES_INPLACE, c"restore_candidate_indices_inplace");
/// Columns that a block takes at a time.
const PIECE: u64 = 2048;

tiling! {
    struct RestoreTiling: 48 {
        rows: i64, columns: i64, column_stride: i64, candidates: i64, candidate_stride: i64, block_size: u32, reserved: u32,
    }
}

fn restore_candidate_indices_inplace(cx: &Cx<'_>, a: RestoreCandidateIndicesInplaceArgs<'_>) -> Result<(), Fault> {
    if a.block_size == 0 {
        return Err(Fault::invalid("block_size is 0, but must be at least 1"));
    }
    let (columns, candidates, stream) = (a.columns.view()?, a.candidates.view()?, stream(cx)?);
    let tiling = RestoreTiling {
        rows: columns.rows(),
        columns: columns.columns(),
        column_stride: columns.strides[2],
        candidates: candidates.columns(),
        candidate_stride: candidates.strides[2],
        block_size: a.block_size,
        reserved: 0,
    };
    let pieces = tiling.columns.unsigned_abs().div_ceil(PIECE) as i64;
    let blocks = blocks(stream, tiling.rows.saturating_mul(pieces));
    launch!(stream, RESTORE, blocks, [columns.data, candidates.data, stream.fault_word()], tiling)
}
