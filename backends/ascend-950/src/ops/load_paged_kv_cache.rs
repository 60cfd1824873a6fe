//! `load_paged_kv_cache`: cache entries decoded into rows.

use deepinfer_plugin_api::generated::LoadPagedKvCacheArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault, cache_format};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(LoadPagedKvCache, load_paged_kv_cache, flags = PROMISES);

static LOAD_PAGED_KV_CACHE: Function = Function::new(&images::LOAD_PAGED_KV_CACHE, c"load_paged_kv_cache");
/// Rows, and channels, that a block takes at a time.
const ROWS: usize = 32;
const COLUMNS: usize = 128;

tiling! {
    struct LoadPagedKvCacheTiling: 56 {
        rows: i64, columns: i64, page_stride: i64, pages: i64, out_stride: i64,
        entries: u32, format: u32, out_format: i32, reserved: i32,
    }
}

fn load_paged_kv_cache(cx: &Cx<'_>, a: LoadPagedKvCacheArgs<'_>) -> Result<(), Fault> {
    // A cache without pages has entries of any size.
    let page_bytes = if a.dims.p == 0 { usize::MAX } else { a.dims.b };
    cache_format(("load_paged_kv_cache", "cache"), a.format, a.entries_per_page, a.dims.d, page_bytes)?;
    let (pages, slots, out, stream) = (a.cache.view()?, a.slots.view()?, a.out.view()?, stream(cx)?);
    let tiling = LoadPagedKvCacheTiling {
        rows: a.dims.m as i64,
        columns: a.dims.d as i64,
        page_stride: pages.strides[2],
        pages: pages.rows(),
        out_stride: out.strides[2],
        entries: a.entries_per_page,
        format: a.format,
        out_format: out.format,
        reserved: 0,
    };
    // Without channels a slot can still be wrong.
    let pieces = a.dims.m.div_ceil(ROWS) * a.dims.d.div_ceil(COLUMNS).max(1);
    let addresses = [pages.data, slots.data, out.data, stream.fault_word()];
    let [pages, slots, out, faults] = addresses;
    launch!(stream, LOAD_PAGED_KV_CACHE, blocks(stream, pieces as i64), [pages, slots, out, faults], tiling)
}
