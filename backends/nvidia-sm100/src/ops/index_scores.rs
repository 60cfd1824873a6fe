//! `index_scores`: scores of cached index keys against the index queries of each row.

use deepinfer_plugin_api::generated::IndexScoresArgs;
use deepinfer_plugin_api::sdk::tensor::{In, View};
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::cache;
use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(IndexScores, index_scores);

static INDEX_SCORES: Function = Function::new(&images::INDEX_SCORES, c"index_scores");
const THREADS: u32 = 256;
/// Columns that a block takes.
const COLUMNS: usize = 64;

fn index_scores(cx: &Cx<'_>, a: IndexScoresArgs<'_>) -> Result<(), Fault> {
    let d = a.dims;
    if a.candidates.is_some() && a.block_size == 0 {
        return Err(Fault::invalid("block_size is 0, but must be at least 1 with candidates"));
    }
    // A cache without pages has entries of any size.
    let page_bytes = if d.p == 0 { usize::MAX } else { d.b };
    cache::check_layout("index_scores", "keys", a.format, a.entries_per_page, d.d, page_bytes)?;
    // Without columns a request can still be wrong: every row has a block.
    let pieces = d.n.div_ceil(COLUMNS).max(1) as i64;
    launch!(
        stream(cx)?,
        INDEX_SCORES,
        Grid::of_items(d.t as i64 * pieces * i64::from(THREADS), THREADS)?,
        a.q.view()?,
        a.head_weight.view()?,
        a.keys.view()?,
        a.row_request.view()?,
        a.block_table.view()?,
        a.visible.view()?,
        a.candidates.as_ref().map_or(Ok(View::ABSENT), In::view)?,
        a.out.view()?,
        d.d as i64,
        a.scale,
        a.format,
        a.entries_per_page,
        a.block_size,
        pieces,
    )
}
