//! `load_paged_kv_cache`: cache entries decoded into rows. Each value is one F32 product, then rounded to BF16 when `out`
//! is.

use deepinfer_plugin_api::generated::LoadPagedKvCacheArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::cache::Pages;
use crate::float::{Float, by_float};
use crate::parallel;

deepinfer_plugin_api::kernel!(LoadPagedKvCache, load_paged_kv_cache);

fn load_paged_kv_cache(_: &Cx<'_>, mut a: LoadPagedKvCacheArgs<'_>) -> Result<(), Fault> {
    by_float!(a.out, load(&mut a))
}

fn load<T: Float>(a: &mut LoadPagedKvCacheArgs<'_>) -> Result<(), Fault> {
    const OP: &str = "load_paged_kv_cache";
    let slots = a.slots.slice::<i32>()?;
    let pages = Pages::new(OP, "cache", &a.cache, a.format, a.entries_per_page, a.dims.d)?;
    pages.check_slots(OP, "slots", slots)?;
    let scratch = || vec![0.0; a.dims.d];
    parallel::for_each_row_with(a.out.rows_mut::<T>()?, a.dims.d, scratch, |scratch, m, out| {
        match usize::try_from(slots[m]) {
            Ok(slot) => pages.decode(slot, scratch),
            Err(_) => scratch.fill(0.0),
        }
        out.iter_mut().zip(scratch).for_each(|(out, v)| *out = T::from_f32(*v));
    });
    Ok(())
}
