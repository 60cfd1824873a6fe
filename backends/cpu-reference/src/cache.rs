//! Entries of a paged cache: where they lie, and how rows become bytes and bytes rows.
//!
//! Entry `slot` lies in page `slot / entries`, at place `slot % entries` of the layout that [`CacheFormat`] names.
//! Plain values are little-endian; scaled values and scales are those of `deepinfer_numerics::group`.

use deepinfer_plugin_api::CacheFormat;
use deepinfer_plugin_api::numerics::{Bf16, Fp4Scale, group};
use deepinfer_plugin_api::sdk::tensor::{In, Rows};
use deepinfer_plugin_api::sdk::{Fault, cache_format};

use crate::weights;

/// The layout of the entries of a page, checked against the page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    format: CacheFormat,
    entries: usize,
    dim: usize,
}

impl Layout {
    /// Layout of `entries_per_page` entries of `dim` channels in pages of `page_bytes`. `arg` is the argument that
    /// holds the pages, `format` the number that came with it.
    ///
    /// # Errors
    /// The format is unknown, `dim` is not a multiple of its group, or the entries do not fit the page.
    pub(crate) fn new(
        op: &str,
        arg: &str,
        format: u32,
        entries_per_page: u32,
        dim: usize,
        page_bytes: usize,
    ) -> Result<Self, Fault> {
        let format = cache_format((op, arg), format, entries_per_page, dim, page_bytes)?;
        Ok(Self { format, entries: entries_per_page as usize, dim })
    }

    /// Entries in a page.
    pub(crate) fn entries(&self) -> usize {
        self.entries
    }

    /// Decodes entry `index` of `page`: `element * scale`, one F32 product.
    ///
    /// # Panics
    /// If `index` is not below the entries of a page, `page` is shorter than the page that the layout was made for, or
    /// `out` does not have `dim` elements.
    pub(crate) fn decode_entry(&self, page: &[u8], index: usize, out: &mut [f32]) {
        assert!(index < self.entries, "entry {index} of a page of {}", self.entries);
        assert_eq!(out.len(), self.dim);
        let (at_values, at_scales) = self.format.offsets(self.dim, self.entries, index);
        let values = &page[at_values..][..self.format.value_bytes(self.dim)];
        let scales = &page[at_scales..][..self.format.scale_bytes(self.dim)];
        match self.format {
            CacheFormat::F32 => {
                out.iter_mut().zip(values.as_chunks().0).for_each(|(o, &b)| *o = f32::from_le_bytes(b));
            }
            CacheFormat::Bf16 => {
                let decode = |b| Bf16(u16::from_le_bytes(b)).to_f32();
                out.iter_mut().zip(values.as_chunks().0).for_each(|(o, &b)| *o = decode(b));
            }
            CacheFormat::Fp8 => weights::decode_fp8(values, scales, out),
            CacheFormat::Fp4Row16 => group::dequantize_fp4(values, scales, out, Fp4Scale::E4m3),
            CacheFormat::Fp4Row32 => weights::decode_fp4(values, scales, out),
        }
    }

    /// Encodes `row` into entry `index` of `page`. F32 values keep their payloads, and BF16 values that arrive as F32
    /// do.
    ///
    /// # Panics
    /// As [`Layout::decode_entry`].
    pub(crate) fn encode_entry(&self, page: &mut [u8], index: usize, row: &[f32]) {
        assert!(index < self.entries, "entry {index} of a page of {}", self.entries);
        assert_eq!(row.len(), self.dim);
        let (at_values, at_scales) = self.format.offsets(self.dim, self.entries, index);
        let value_bytes = self.format.value_bytes(self.dim);
        // In every layout the scales of an entry lie behind its values.
        let (front, back) = page.split_at_mut(at_scales);
        let values = &mut front[at_values..][..value_bytes];
        let scales = &mut back[..self.format.scale_bytes(self.dim)];
        match self.format {
            CacheFormat::F32 => {
                values.as_chunks_mut().0.iter_mut().zip(row).for_each(|(b, &x)| *b = x.to_le_bytes());
            }
            CacheFormat::Bf16 => {
                values.as_chunks_mut().0.iter_mut().zip(row).for_each(|(b, &x)| *b = to_bf16(x).0.to_le_bytes());
            }
            CacheFormat::Fp8 => group::quantize_fp8(row, values, scales),
            CacheFormat::Fp4Row16 => group::quantize_fp4(row, values, scales, Fp4Scale::E4m3),
            CacheFormat::Fp4Row32 => group::quantize_fp4(row, values, scales, Fp4Scale::Ue8m0),
        }
    }
}

/// Rounds to BF16; a value that is one keeps its bits, also a signalling NaN.
fn to_bf16(x: f32) -> Bf16 {
    match x.to_bits() {
        bits if bits & 0xFFFF == 0 => Bf16((bits >> 16) as u16),
        _ => Bf16::from_f32(x),
    }
}

/// The pages of a cache that is read.
#[derive(Clone, Copy)]
pub(crate) struct Pages<'a> {
    pages: Rows<'a, u8>,
    layout: Layout,
}

impl<'a> Pages<'a> {
    /// Wraps argument `arg` of `op`, whose shape is `[pages, bytes]`.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub(crate) fn new(
        op: &str,
        arg: &str,
        pages: &In<'a>,
        format: u32,
        entries_per_page: u32,
        dim: usize,
    ) -> Result<Self, Fault> {
        let pages = pages.rows()?;
        // A cache without pages has entries of any size.
        let page_bytes = if pages.count() == 0 { usize::MAX } else { pages.columns() };
        Ok(Self { layout: Layout::new(op, arg, format, entries_per_page, dim, page_bytes)?, pages })
    }

    /// Pages.
    pub(crate) fn count(&self) -> usize {
        self.pages.count()
    }

    /// Entries in a page.
    pub(crate) fn entries_per_page(&self) -> usize {
        self.layout.entries
    }

    /// Entries in all pages.
    pub(crate) fn capacity(&self) -> usize {
        self.pages.count() * self.layout.entries
    }

    /// Decodes entry `slot` into `out`.
    ///
    /// # Panics
    /// If there is no such entry, or `out` does not have the channels of one.
    pub(crate) fn decode(&self, slot: usize, out: &mut [f32]) {
        let (page, index) = (slot / self.layout.entries, slot % self.layout.entries);
        self.layout.decode_entry(self.pages.row(page), index, out);
    }

    /// Checks that no slot of `slots` (argument `arg` of `op`) lies beyond the cache; negative ones name nothing.
    ///
    /// # Errors
    /// Names the first slot that does.
    pub(crate) fn check_slots(&self, op: &str, arg: &str, slots: &[i32]) -> Result<(), Fault> {
        check_slots(op, arg, slots, self.capacity())
    }
}

/// Checks that no slot lies at or beyond `capacity` entries; negative ones name nothing.
///
/// # Errors
/// Names the first slot that does.
pub(crate) fn check_slots(op: &str, arg: &str, slots: &[i32], capacity: usize) -> Result<(), Fault> {
    let beyond = |slot: &&i32| usize::try_from(**slot).is_ok_and(|slot| slot >= capacity);
    match slots.iter().find(beyond) {
        Some(slot) => {
            Err(Fault::invalid(format!("{op}: {arg} holds slot {slot}, but the cache has {capacity} entries")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;
    use crate::testing::{Tensor, view};

    const ENTRIES: usize = 3;
    const DIM: usize = 64;

    fn layout(format: CacheFormat) -> Layout {
        let bytes = ENTRIES * format.entry_bytes(DIM);
        Layout::new("op", "cache", format as u32, ENTRIES as u32, DIM, bytes).unwrap()
    }

    const FORMATS: [CacheFormat; 5] =
        [CacheFormat::F32, CacheFormat::Bf16, CacheFormat::Fp8, CacheFormat::Fp4Row16, CacheFormat::Fp4Row32];

    /// What the format makes of a row, by the numerics crate.
    fn rounded(format: CacheFormat, row: &[f32]) -> Vec<f32> {
        let tensor = |format| Tensor::floating(format, &[1, DIM], row).floats();
        match format {
            CacheFormat::F32 => row.to_vec(),
            CacheFormat::Bf16 => tensor(deepinfer_plugin_api::Format::Bf16),
            CacheFormat::Fp8 => tensor(deepinfer_plugin_api::Format::Fp8Row32),
            CacheFormat::Fp4Row16 => tensor(deepinfer_plugin_api::Format::Fp4Row16),
            CacheFormat::Fp4Row32 => tensor(deepinfer_plugin_api::Format::Fp4Row32),
        }
    }

    /// Entries written in any order are read back, and together fill the page without touching each other.
    #[test]
    fn entries_come_back_rounded_and_fill_the_page() {
        for format in FORMATS {
            let layout = layout(format);
            let rows: Vec<Vec<f32>> = (0..ENTRIES).map(|i| random::floats(i as u64, DIM)).collect();
            let (mut zeros, mut ones) = (vec![0; ENTRIES * format.entry_bytes(DIM)], Vec::new());
            ones.resize(zeros.len(), 0xFF);
            for index in [2, 0, 1] {
                layout.encode_entry(&mut zeros, index, &rows[index]);
                layout.encode_entry(&mut ones, index, &rows[index]);
            }
            assert_eq!(zeros, ones, "{format:?} leaves bytes of a page unwritten");
            for (index, row) in rows.iter().enumerate() {
                let mut out = vec![f32::NAN; DIM];
                layout.decode_entry(&zeros, index, &mut out);
                assert_eq!(out, rounded(format, row), "{format:?}, entry {index}");
            }
        }
    }

    #[test]
    fn slots_count_through_the_pages() {
        let format = CacheFormat::Fp8;
        let bytes = ENTRIES * format.entry_bytes(DIM);
        let mut cache = vec![0; 2 * bytes];
        let row = random::floats(7, DIM);
        layout(format).encode_entry(&mut cache[bytes..], 1, &row);
        let raw = Tensor::u8(&[2, bytes], &cache);
        // The stride of a page may exceed its bytes.
        let padded = raw.padded(5);
        for tensor in [&raw, &padded] {
            let descriptor = tensor.input();
            let pages = Pages::new("op", "cache", &view(&descriptor), format as u32, ENTRIES as u32, DIM).unwrap();
            assert_eq!((pages.count(), pages.capacity()), (2, 6));
            let mut out = vec![f32::NAN; DIM];
            pages.decode(4, &mut out);
            assert_eq!(out, rounded(format, &row));
            pages.decode(1, &mut out);
            assert!(out.iter().all(|&v| v == 0.0));
            assert!(pages.check_slots("op", "slots", &[5, -1, i32::MIN]).is_ok());
            let refusal = pages.check_slots("op", "slots", &[0, 6]).unwrap_err().message;
            assert_eq!(refusal, "op: slots holds slot 6, but the cache has 6 entries");
        }
    }

    #[test]
    fn plain_entries_keep_payloads() {
        // A signalling NaN, as F32 and as BF16 widened to F32.
        for (format, bits) in [(CacheFormat::F32, 0x7F80_0001_u32), (CacheFormat::Bf16, 0xFF81_0000)] {
            let mut row = vec![0.0; DIM];
            row[3] = f32::from_bits(bits);
            let mut page = vec![0; ENTRIES * format.entry_bytes(DIM)];
            layout(format).encode_entry(&mut page, 1, &row);
            let mut out = vec![0.0; DIM];
            layout(format).decode_entry(&page, 1, &mut out);
            assert_eq!(out[3].to_bits(), bits);
        }
    }

    #[test]
    fn refusals() {
        let refuse =
            |format, entries, dim, bytes| Layout::new("op", "kv", format, entries, dim, bytes).unwrap_err().message;
        assert_eq!(refuse(5, 1, 32, 4096), "op: the entry format of kv is 5; 0 to 4 are possible");
        assert_eq!(refuse(2, 1, 48, 4096), "op: entries of kv have 48 channels, but format 2 needs a multiple of 32");
        assert_eq!(refuse(3, 1, 24, 4096), "op: entries of kv have 24 channels, but format 3 needs a multiple of 16");
        assert_eq!(refuse(0, 0, 32, 4096), "op: a page of kv holds 0 entries; at least 1 is needed");
        assert_eq!(
            refuse(4, 128, 32, 128 * 17 - 1),
            "op: 128 entries of 32 channels in format 4 need pages of 2176 bytes, but kv has pages of 2175"
        );
        assert!(Layout::new("op", "kv", 0, u32::MAX, 1 << 40, usize::MAX).is_err());
    }
}
