//! `store_kv_cache`: rows encoded into cache entries.

use deepinfer_plugin_api::generated::StoreKvCacheArgs;
use deepinfer_plugin_api::sdk::tensor::View;
use deepinfer_plugin_api::sdk::{Cx, Fault, cache_format};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(StoreKvCache, store_kv_cache, flags = PROMISES);

static STORE_KV_CACHE: Function = Function::new(&images::STORE_KV_CACHE, c"store_kv_cache");

tiling! {
    struct StoreKvCacheTiling: 64 {
        rows: i64, columns: i64, kv_stride: i64, rounded_stride: i64, page_stride: i64, pages: i64,
        entries: u32, format: u32, kv_format: i32, has_rounded: i32,
    }
}

fn store_kv_cache(cx: &Cx<'_>, a: StoreKvCacheArgs<'_>) -> Result<(), Fault> {
    cache_format(("store_kv_cache", "cache"), a.format, a.entries_per_page, a.dims.d, a.dims.b)?;
    let (kv, slots, pages, stream) = (a.kv.view()?, a.slots.view()?, a.cache.view()?, stream(cx)?);
    let rounded = a.rounded.as_ref().map_or(Ok(View::ABSENT), |rounded| rounded.view())?;
    let tiling = StoreKvCacheTiling {
        rows: kv.rows(),
        columns: kv.columns(),
        kv_stride: kv.strides[2],
        rounded_stride: rounded.strides[2],
        page_stride: pages.strides[2],
        pages: pages.rows(),
        entries: a.entries_per_page,
        format: a.format,
        kv_format: kv.format,
        has_rounded: i32::from(a.rounded.is_some()),
    };
    let blocks = blocks(stream, kv.rows());
    launch!(
        stream,
        STORE_KV_CACHE,
        blocks,
        [kv.data, slots.data, pages.data, rounded.data, stream.fault_word()],
        tiling
    )
}
