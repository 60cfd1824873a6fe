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
            T::store_row(&values, rounded[t]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::generated::{LoadPagedKvCache, StoreKvCache};
    use deepinfer_plugin_api::numerics::Bf16;

    use super::*;
    use crate::random;
    use crate::testing::{Tensor, call};

    const ENTRIES: usize = 3;
    const DIM: usize = 64;

    fn pages(format: u32, count: usize) -> Tensor {
        let bytes = ENTRIES * CacheFormat::from_u32(format).unwrap().entry_bytes(DIM);
        // Pages lie apart, so that a write beyond the entries of a page would be seen.
        Tensor::u8(&[count, bytes], &vec![0xEE; count * bytes]).padded(16)
    }

    fn store(
        kv: &Tensor,
        slots: &[i32],
        cache: &mut Tensor,
        format: u32,
        rounded: Option<&mut Tensor>,
    ) -> Result<(), String> {
        let slots = Tensor::i32(&[slots.len()], slots);
        call::<StoreKvCache>(|a| {
            (a.kv, a.slots, a.cache) = (kv.input(), slots.input(), cache.output());
            (a.format, a.entries_per_page) = (format, ENTRIES as u32);
            if let Some(rounded) = rounded {
                a.rounded = rounded.output();
            }
        })
    }

    fn load(cache: &Tensor, slots: &[i32], format: u32, out: Format) -> Vec<f32> {
        let (slots, mut out) = (Tensor::i32(&[slots.len()], slots), Tensor::unwritten(out, &[slots.len(), DIM]));
        call::<LoadPagedKvCache>(|a| {
            (a.cache, a.slots, a.out) = (cache.input(), slots.input(), out.output());
            (a.format, a.entries_per_page) = (format, ENTRIES as u32);
        })
        .unwrap();
        out.floats()
    }

    /// The tensor format with the codes of a cache format.
    const FORMATS: [(u32, Format); 5] =
        [(0, Format::F32), (1, Format::Bf16), (2, Format::Fp8Row32), (3, Format::Fp4Row16), (4, Format::Fp4Row32)];

    #[test]
    fn entries_hold_what_quantize_gives() {
        let values = random::floats(20, 4 * DIM);
        for (format, like) in FORMATS {
            for kv in [Tensor::f32(&[4, DIM], &values), Tensor::bf16(&[4, DIM], &values)] {
                let (mut cache, mut rounded) = (pages(format, 2), Tensor::f32(&[4, DIM], &[f32::NAN; 4 * DIM]));
                let expected = Tensor::floating(like, &[4, DIM], &kv.floats()).floats();
                let is_f32 = kv.floats() == values;
                if !is_f32 {
                    rounded = Tensor::bf16(&[4, DIM], &[f32::NAN; 4 * DIM]);
                }
                store(&kv, &[5, -1, 0, 2], &mut cache, format, Some(&mut rounded)).unwrap();
                // Codes times scales have few significant bits: BF16 holds them.
                assert_eq!(rounded.floats(), expected, "format {format}");
                let row = |t: usize| &expected[t * DIM..][..DIM];
                let read = load(&cache, &[0, 2, -1, 5], format, Format::F32);
                assert_eq!(read, [row(2), row(3), &[0.0; DIM], row(0)].concat(), "format {format}");
                let narrow = load(&cache, &[5], format, Format::Bf16);
                assert_eq!(narrow, Tensor::bf16(&[DIM], row(0)).floats());
            }
        }
    }

    /// FP4 with UE8M0 scales keeps all values of a page before all scales; the others keep each entry together.
    #[test]
    fn layouts_of_a_page() {
        let kv = Tensor::f32(&[1, DIM], &random::floats(21, DIM));
        for (format, like) in FORMATS.into_iter().filter(|(format, _)| *format >= 2) {
            let quantised = Tensor::floating(like, &[1, DIM], &kv.floats());
            let (codes, scales) = (quantised.to_bytes(), quantised.scale_bytes());
            let mut cache = pages(format, 1);
            store(&kv, &[1], &mut cache, format, None).unwrap();
            let page = cache.to_bytes();
            let (values_at, scales_at) = match format {
                4 => (codes.len(), ENTRIES * codes.len() + scales.len()),
                _ => (codes.len() + scales.len(), 2 * codes.len() + scales.len()),
            };
            assert_eq!(page[values_at..][..codes.len()], codes, "format {format}");
            assert_eq!(page[scales_at..][..scales.len()], scales, "format {format}");
            let untouched = page.iter().filter(|byte| **byte == 0xEE).count();
            assert!(untouched >= 2 * (codes.len() + scales.len()), "format {format}");
        }
    }

    #[test]
    fn of_equal_slots_the_highest_row_stays() {
        let values = random::floats(22, 3 * DIM);
        let mut cache = pages(0, 1);
        store(&Tensor::f32(&[3, DIM], &values), &[1, 1, 1], &mut cache, 0, None).unwrap();
        assert_eq!(load(&cache, &[1], 0, Format::F32), values[2 * DIM..]);
    }

    #[test]
    fn plain_entries_copy_payloads() {
        let mut bits = [0.0; DIM];
        bits[7] = Bf16(0x7F81).to_f32();
        let mut cache = pages(1, 1);
        // The rounding of the test's own constructor would make the NaN quiet.
        store(&Tensor::f32(&[1, DIM], &bits), &[0], &mut cache, 1, None).unwrap();
        assert_eq!(cache.to_bytes()[14..16], 0x7F81u16.to_le_bytes());
        let mut cache = pages(0, 1);
        store(&Tensor::f32(&[1, DIM], &bits), &[0], &mut cache, 0, None).unwrap();
        assert_eq!(cache.to_bytes()[28..32], 0x7F81_0000u32.to_le_bytes());
    }

    #[test]
    fn a_refused_call_stores_nothing() {
        let kv = Tensor::f32(&[2, DIM], &random::floats(23, 2 * DIM));
        let (mut cache, before) = (pages(2, 2), pages(2, 2).to_bytes());
        let message = store(&kv, &[0, 6], &mut cache, 2, None).unwrap_err();
        assert!(message.contains("slot 6") && message.contains("6 entries"), "{message}");
        assert!(store(&kv, &[0, 1], &mut cache, 9, None).unwrap_err().contains("format of cache is 9"));
        assert!(store(&kv, &[0, 1], &mut cache, 0, None).unwrap_err().contains("need pages of 768 bytes"));
        let narrow = Tensor::f32(&[1, 40], &[1.0; 40]);
        assert!(store(&narrow, &[0], &mut cache, 2, None).unwrap_err().contains("multiple of 32"));
        assert_eq!(cache.to_bytes(), before);
        store(&Tensor::f32(&[0, DIM], &[]), &[], &mut cache, 2, None).unwrap();
        assert_eq!(cache.to_bytes(), before);
    }
}
