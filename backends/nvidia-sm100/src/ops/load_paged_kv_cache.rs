//! `load_paged_kv_cache`: cache entries decoded into rows.

use deepinfer_plugin_api::generated::LoadPagedKvCacheArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault, cache_format};

use crate::image::{Function, images};
use crate::launch::{Grid, lanes_log2, launch, stream};

deepinfer_plugin_api::kernel!(LoadPagedKvCache, load_paged_kv_cache, flags = super::FLAGS);

static LOAD_PAGED_KV_CACHE: Function = Function::new(&images::LOAD_PAGED_KV_CACHE, c"load_paged_kv_cache");
const THREADS: u32 = 64;
/// Columns of a lane at a time: two octets.
const LANE_COLUMNS: i64 = 16;
/// Rows of a lane at a time.
const ROWS: i64 = 1;

fn load_paged_kv_cache(cx: &Cx<'_>, a: LoadPagedKvCacheArgs<'_>) -> Result<(), Fault> {
    // A cache without pages has entries of any size.
    let page_bytes = if a.dims.p == 0 { usize::MAX } else { a.dims.b };
    cache_format(("load_paged_kv_cache", "cache"), a.format, a.entries_per_page, a.dims.d, page_bytes)?;
    let (pages, slots, out) = (a.cache.view()?, a.slots.view()?, a.out.view()?);
    // Some lanes of a warp for each row: without columns a slot can still be wrong.
    let lanes = lanes_log2((out.columns() + LANE_COLUMNS - 1) / LANE_COLUMNS, 2, 5);
    let grid = Grid::of_items(((out.rows() + ROWS - 1) / ROWS) << lanes, THREADS)?;
    launch!(stream(cx)?, LOAD_PAGED_KV_CACHE, grid, pages, slots, out, a.format, a.entries_per_page, lanes)
}
