//! `store_kv_cache`: rows encoded into cache entries.

use deepinfer_plugin_api::generated::{StoreKvCacheArgs, StoreKvCacheProto};
use deepinfer_plugin_api::sdk::tensor::View;
use deepinfer_plugin_api::sdk::{Cx, Fault, Plan, PlanCx, Workspace, cache_format};
use deepinfer_plugin_api::{CacheFormat, Format};

use crate::image::{Function, images};
use crate::launch::{Grid, lanes_log2, launch, stream};

deepinfer_plugin_api::kernel!(StoreKvCache, store_kv_cache, flags = super::FLAGS, plan = plan -> Table);

static MARK: Function = Function::new(&images::STORE_KV_CACHE, c"store_kv_cache_mark");
static RESOLVE: Function = Function::new(&images::STORE_KV_CACHE, c"store_kv_cache_resolve");
static STORE_KV_CACHE: Function = Function::new(&images::STORE_KV_CACHE, c"store_kv_cache");
static STORE_MANY: Function = Function::new(&images::STORE_KV_CACHE, c"store_kv_cache_many");
static STORE_BY_SLOT: Function = Function::new(&images::STORE_KV_CACHE, c"store_kv_cache_by_slot");
const THREADS: u32 = 256;
/// Columns of a lane at a time: two octets.
const LANE_COLUMNS: i64 = 16;
/// Rows up to which each compares its slot with those of all later ones.
const FEW_ROWS: i64 = 1024;
/// A place of the table of the highest row of each slot.
const PLACE_BYTES: usize = 8;
const SLOT_BYTES: usize = 4;
/// Places are counted with 32 bits, and there are two for each row.
const MOST_ROWS: usize = 1 << 30;
/// Slots of the cache for each row up to which each has a place.
const MOST_SLOTS_OF_A_ROW: usize = 4;
/// The same, up to which entries are written in the order of the slots: then neighbours share sectors and pages of memory.
const MOST_SLOTS_IN_ORDER: usize = 2;
/// Rows of a lane of `store_kv_cache_many`, which takes rows of at most so many channels.
const MANY_LANE_ROWS: i64 = 4;
const MANY_CHANNELS: i64 = 32 * LANE_COLUMNS;

/// The table of the highest row of each slot, in the workspace; behind it a slot for each row.
struct Table {
    /// 0 with few rows.
    places: usize,
    /// A place for each slot of the cache; else a power of two of places that have their slots with them.
    is_direct: bool,
    /// Not many more slots than rows: entries can be written in the order of the slots.
    is_in_order: bool,
}

impl Table {
    fn of(rows: usize, entries: usize) -> Self {
        if rows as i64 <= FEW_ROWS {
            return Self { places: 0, is_direct: false, is_in_order: false };
        }
        // At most half full: open addressing finds a place soon.
        let places = (2 * rows).next_power_of_two();
        let is_direct = entries <= MOST_SLOTS_OF_A_ROW * rows && i32::try_from(entries).is_ok();
        let is_in_order = is_direct && entries <= MOST_SLOTS_IN_ORDER * rows;
        Self { places: if is_direct { entries } else { places }, is_direct, is_in_order }
    }

    fn bytes(&self) -> usize {
        self.places * if self.is_direct { SLOT_BYTES } else { PLACE_BYTES }
    }
}

fn plan(_: &PlanCx<'_>, a: &StoreKvCacheProto<'_>) -> Result<Plan<Table>, Fault> {
    let rows = a.dims.t;
    if rows > MOST_ROWS {
        return Err(Fault::unsupported(format!("{rows} rows are more than {MOST_ROWS}")));
    }
    let table = Table::of(rows, a.dims.p.saturating_mul(a.entries_per_page as usize));
    let bytes = if table.places == 0 { 0 } else { table.bytes().next_multiple_of(PLACE_BYTES) + rows * SLOT_BYTES };
    Ok(Plan::new(table).workspace(bytes as u64, 256))
}

fn store_kv_cache(cx: &Cx<'_>, table: &Table, scratch: Workspace<'_>, a: StoreKvCacheArgs<'_>) -> Result<(), Fault> {
    cache_format(("store_kv_cache", "cache"), a.format, a.entries_per_page, a.dims.d, a.dims.b)?;
    let (kv, slots, pages) = (a.kv.view()?, a.slots.view()?, a.cache.view()?);
    let rounded = a.rounded.as_ref().map_or(Ok(View::ABSENT), |rounded| rounded.view())?;
    // Some lanes of a warp for each row: without columns a slot can still be wrong.
    let lanes = lanes_log2((kv.columns() + LANE_COLUMNS - 1) / LANE_COLUMNS, 2, 5);
    let grid = Grid::of_items(kv.rows() << lanes, THREADS)?;
    let (stream, rows) = (stream(cx)?, kv.rows());
    let store = |resolved: u64| {
        launch!(stream, STORE_KV_CACHE, grid, kv, slots, pages, rounded, a.format, a.entries_per_page, lanes, resolved)
    };
    if table.places == 0 {
        return store(0);
    }
    let (writers, places) = (scratch.address().expose_provenance() as u64, table.places as u32);
    let (is_direct, threads) = (u32::from(table.is_direct), Grid::of_items(rows, THREADS)?);
    // SAFETY: the workspace is at least as large, and this call's until its kernels are done.
    unsafe { stream.zero(writers, table.bytes()) }?;
    launch!(stream, MARK, threads, slots, writers, places, is_direct)?;
    let (format, entries) = (a.format, a.entries_per_page);
    let items = |count: i64| Grid::of_items(((count + MANY_LANE_ROWS - 1) / MANY_LANE_ROWS) << lanes, THREADS);
    if is_usual(&kv, format) && table.is_in_order && a.rounded.is_none() {
        let grid = items(table.places as i64)?;
        return launch!(stream, STORE_BY_SLOT, grid, kv, pages, format, entries, lanes, writers, places);
    }
    if is_usual(&kv, format) {
        let grid = items(rows)?;
        return launch!(
            stream, STORE_MANY, grid, kv, slots, pages, rounded, format, entries, lanes, writers, places, is_direct
        );
    }
    let resolved = writers + table.bytes().next_multiple_of(PLACE_BYTES) as u64;
    let count = pages.shape[2] * i64::from(entries);
    launch!(stream, RESOLVE, threads, slots, writers, places, is_direct, count, resolved)?;
    store(resolved)
}

/// Whether rows and entries are those of `store_kv_cache_many`: BF16 rows on boundaries of 16 bytes, a scaled format.
fn is_usual(kv: &View, format: u32) -> bool {
    const BOUNDARY: i64 = 16;
    const BF16_BYTES: i64 = 2;
    let lies_well = kv.data as i64 % BOUNDARY == 0 && kv.strides[2] * BF16_BYTES % BOUNDARY == 0;
    let is_scaled = format != CacheFormat::F32 as u32 && format != CacheFormat::Bf16 as u32;
    kv.format == Format::Bf16 as i32 && kv.columns() <= MANY_CHANNELS && lies_well && is_scaled
}
