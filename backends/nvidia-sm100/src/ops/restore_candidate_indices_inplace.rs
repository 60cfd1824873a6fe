//! `restore_candidate_indices_inplace`: columns of a candidate-restricted score row to entries.

use deepinfer_plugin_api::generated::RestoreCandidateIndicesInplaceArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::index_quads::index_quads;
use crate::launch::{launch, stream};

deepinfer_plugin_api::kernel!(RestoreCandidateIndicesInplace, restore_candidate_indices_inplace, flags = super::FLAGS);

static RESTORE: Function =
    Function::new(&images::RESTORE_CANDIDATE_INDICES_INPLACE, c"restore_candidate_indices_inplace");

fn restore_candidate_indices_inplace(cx: &Cx<'_>, a: RestoreCandidateIndicesInplaceArgs<'_>) -> Result<(), Fault> {
    if a.block_size == 0 {
        return Err(Fault::invalid("block_size is 0, but must be at least 1"));
    }
    let columns = a.columns.view()?;
    let (grid, row_log2) = index_quads(columns.rows(), columns.columns())?;
    launch!(stream(cx)?, RESTORE, grid, columns, a.candidates.view()?, a.block_size, row_log2)
}
