//! Entries of a paged cache: where they lie, and how rows become bytes and bytes rows.
//!
//! Entry `slot` lies in page `slot / entries`, at place `slot % entries` of the layout that [`CacheFormat`] names.
//! Plain values are little-endian; scaled values and scales are those of `deepinfer_numerics::group`.

use deepinfer_plugin_api::CacheFormat;
use deepinfer_plugin_api::numerics::{Bf16, Fp4Scale, group};
use deepinfer_plugin_api::sdk::Fault;
use deepinfer_plugin_api::sdk::tensor::{In, Rows};

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
        let number = format;
        let Some(format) = CacheFormat::from_u32(number) else {
            return Err(Fault::invalid(format!("{op}: the entry format of {arg} is {number}; 0 to 4 are possible")));
        };
        let group = format.group().max(1);
        if !dim.is_multiple_of(group) {
            return Err(Fault::invalid(format!(
                "{op}: entries of {arg} have {dim} channels, but format {number} needs a multiple of {group}"
            )));
        }
        if entries_per_page == 0 {
            return Err(Fault::invalid(format!("{op}: a page of {arg} holds 0 entries; at least 1 is needed")));
        }
        let needed = u128::from(entries_per_page) * format.entry_bytes(dim) as u128;
        if needed > page_bytes as u128 {
            return Err(Fault::invalid(format!(
                "{op}: {entries_per_page} entries of {dim} channels in format {number} need pages of {needed} bytes, but \
                 {arg} has pages of {page_bytes}"
            )));
        }
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
