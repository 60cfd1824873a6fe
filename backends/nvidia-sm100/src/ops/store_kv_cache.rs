//! `store_kv_cache`: rows encoded into cache entries.

use deepinfer_plugin_api::generated::StoreKvCacheArgs;
use deepinfer_plugin_api::sdk::tensor::View;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::cache;
use crate::image::{Function, images};
use crate::launch::{Grid, lanes_log2, launch, stream};
use crate::scratch::Scratch;

deepinfer_plugin_api::kernel!(StoreKvCache, store_kv_cache, flags = super::FLAGS);

static MARK: Function = Function::new(&images::STORE_KV_CACHE, c"store_kv_cache_mark");
static RESOLVE: Function = Function::new(&images::STORE_KV_CACHE, c"store_kv_cache_resolve");
static STORE_KV_CACHE: Function = Function::new(&images::STORE_KV_CACHE, c"store_kv_cache");
const THREADS: u32 = 256;
/// Columns of a lane at a time: two octets.
const LANE_COLUMNS: i64 = 16;
/// Rows up to which each compares its slot with those of all later ones.
const FEW_ROWS: i64 = 1024;
/// A place of the table of the highest row of each slot.
const PLACE_BYTES: usize = 8;
const SLOT_BYTES: usize = 4;

fn store_kv_cache(cx: &Cx<'_>, a: StoreKvCacheArgs<'_>) -> Result<(), Fault> {
    cache::check_layout("store_kv_cache", "cache", a.format, a.entries_per_page, a.dims.d, a.dims.b)?;
    let (kv, slots, pages) = (a.kv.view()?, a.slots.view()?, a.cache.view()?);
    let rounded = a.rounded.as_ref().map_or(Ok(View::ABSENT), |rounded| rounded.view())?;
    // Some lanes of a warp for each row: without columns a slot can still be wrong.
    let lanes = lanes_log2((kv.columns() + LANE_COLUMNS - 1) / LANE_COLUMNS, 2, 5);
    let grid = Grid::of_items(kv.rows() << lanes, THREADS)?;
    let (stream, rows) = (stream(cx)?, kv.rows());
    let store = |resolved: u64| {
        launch!(stream, STORE_KV_CACHE, grid, kv, slots, pages, rounded, a.format, a.entries_per_page, lanes, resolved)
    };
    if rows <= FEW_ROWS {
        return store(0);
    }
    // At most half full: open addressing finds a place soon. Rows of a grid have 31 bits.
    let places = (2 * rows as usize).next_power_of_two();
    let scratch = Scratch::zeroed(stream, places * PLACE_BYTES + rows as usize * SLOT_BYTES)?;
    let (writers, resolved) = (scratch.address(), scratch.address() + (places * PLACE_BYTES) as u64);
    let (mask, threads) = ((places - 1) as u32, Grid::of_items(rows, THREADS)?);
    launch!(stream, MARK, threads, slots, writers, mask)?;
    launch!(stream, RESOLVE, threads, slots, writers, mask, resolved)?;
    store(resolved)
}
