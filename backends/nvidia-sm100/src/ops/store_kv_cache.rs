//! `store_kv_cache`: rows encoded into cache entries.

use deepinfer_plugin_api::generated::StoreKvCacheArgs;
use deepinfer_plugin_api::sdk::tensor::View;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::cache;
use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(StoreKvCache, store_kv_cache);

static STORE_KV_CACHE: Function = Function::new(&images::STORE_KV_CACHE, c"store_kv_cache");
const THREADS: u32 = 256;
const WARP: i64 = 32;

fn store_kv_cache(cx: &Cx<'_>, a: StoreKvCacheArgs<'_>) -> Result<(), Fault> {
    cache::check_layout("store_kv_cache", "cache", a.format, a.entries_per_page, a.dims.d, a.dims.b)?;
    let (kv, slots, pages) = (a.kv.view()?, a.slots.view()?, a.cache.view()?);
    let rounded = a.rounded.as_ref().map_or(Ok(View::ABSENT), |rounded| rounded.view())?;
    // A warp for each row: without columns a slot can still be wrong.
    let grid = Grid::of_items(kv.rows() * WARP, THREADS)?;
    launch!(stream(cx)?, STORE_KV_CACHE, grid, kv, slots, pages, rounded, a.format, a.entries_per_page)
}
