//! `store_kv_cache`: rows encoded into cache entries, by the rules of [`cache`](crate::cache).
//!
//! Rows are stored one after another, so that of several rows with one slot the last stays.

use deepinfer_plugin_api::CacheFormat;
use deepinfer_plugin_api::generated::StoreKvCacheArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::cache::{Layout, check_slots};
use crate::float::{Float, by_float};

deepinfer_plugin_api::kernel!(StoreKvCache, store_kv_cache);

fn store_kv_cache(_: &Cx<'_>, mut a: StoreKvCacheArgs<'_>) -> Result<(), Fault> {
    by_float!(a.kv, store(&mut a))
}

fn store<T: Float>(a: &mut StoreKvCacheArgs<'_>) -> Result<(), Fault> {
    const OP: &str = "store_kv_cache";
    let (kv, slots) = (a.kv.rows::<T>()?, a.slots.slice::<i32>()?);
    let layout = Layout::new(OP, "cache", a.format, a.entries_per_page, a.dims.d, a.dims.b)?;
    check_slots(OP, "slots", slots, a.dims.p * layout.entries())?;
    let mut pages = a.cache.rows_mut::<u8>()?;
    let mut rounded = a.rounded.as_mut().map(|rounded| rounded.rows_mut::<T>()).transpose()?;

    // A row without a slot is encoded here when its rounded value is wanted: a page of one entry.
    let alone = Layout::new(OP, "rounded", a.format, 1, a.dims.d, usize::MAX)?;
    let mut entry = vec![0; CacheFormat::from_u32(a.format).map_or(0, |format| format.entry_bytes(a.dims.d))];
    let (mut scratch, mut values) = (Vec::new(), vec![0.0; a.dims.d]);
    for (t, &slot) in slots.iter().enumerate() {
        let row = T::load(kv.row(t), &mut scratch);
        let (layout, page, index) = match usize::try_from(slot) {
            Ok(slot) => (layout, &mut *pages[slot / layout.entries()], slot % layout.entries()),
            Err(_) if rounded.is_none() => continue,
            Err(_) => (alone, &mut *entry, 0),
        };
        layout.encode_entry(page, index, row);
        if let Some(rounded) = &mut rounded {
            layout.decode_entry(page, index, &mut values);
            rounded[t].iter_mut().zip(&values).for_each(|(out, &v)| *out = T::from_f32(v));
        }
    }
    Ok(())
}
