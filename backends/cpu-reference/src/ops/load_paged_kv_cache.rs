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
        T::store_row(scratch, out);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::generated::LoadPagedKvCache;

    use crate::testing::{Tensor, call};

    fn run(cache: &Tensor, slots: &[i32], format: u32, entries: u32, dim: usize) -> Result<Vec<f32>, String> {
        let (slots, mut out) =
            (Tensor::i32(&[slots.len()], slots), Tensor::unwritten(Format::F32, &[slots.len(), dim]));
        call::<LoadPagedKvCache>(|a| {
            (a.cache, a.slots, a.out) = (cache.input(), slots.input(), out.output());
            (a.format, a.entries_per_page) = (format, entries);
        })?;
        Ok(out.floats())
    }

    /// An entry by hand; `store_kv_cache` has the round trips.
    #[test]
    fn an_fp8_entry_is_element_times_scale() {
        let mut page = vec![0; 2 * 33];
        // The second entry: 448, -2^-9 and NaN under the scale 2.
        page[33..36].copy_from_slice(&[0x7E, 0x81, 0x7F]);
        page[33 + 32] = 128;
        let out = run(&Tensor::u8(&[1, 66], &page), &[1, -7], 2, 2, 32).unwrap();
        assert_eq!(out[..2], [896.0, -2.0f32.powi(-8)]);
        assert!(out[2].is_nan());
        assert!(out[3..].iter().all(|&v| v == 0.0));
    }

    #[test]
    fn refusals_and_nothing() {
        let cache = Tensor::u8(&[2, 64], &[0; 128]);
        assert!(run(&cache, &[8], 0, 4, 4).unwrap_err().contains("slots holds slot 8, but the cache has 8 entries"));
        assert!(run(&cache, &[0], 5, 4, 4).unwrap_err().contains("format of cache is 5"));
        assert!(run(&cache, &[0], 0, 0, 4).unwrap_err().contains("0 entries"));
        assert!(run(&cache, &[], 0, 4, 4).unwrap().is_empty());
    }
}
