//! Where the entries of a paged cache lie, and how they are read and written.

use deepinfer_plugin_api::Format;

use crate::tensor::HostTensor;

/// Number format of the values of a cache format.
const FORMATS: [Format; 5] = [Format::F32, Format::Bf16, Format::Fp8Row32, Format::Fp4Row16, Format::Fp4Row32];

/// Where the entries of a cache lie.
#[derive(Clone, Copy)]
pub struct CacheEntries {
    format: Format,
    split: bool,
    per_page: usize,
    dim: usize,
    page_bytes: usize,
}

impl CacheEntries {
    /// Entries of `dim` channels in pages of `per_page` entries and `page_bytes` bytes; `format` is a
    /// [`deepinfer_plugin_api::CacheFormat`] by its number.
    ///
    /// # Panics
    /// If there is no such format.
    pub fn new(format: usize, per_page: usize, dim: usize, page_bytes: usize) -> Self {
        Self { format: FORMATS[format], split: format == 4, per_page, dim, page_bytes }
    }

    fn value_bytes(&self) -> usize {
        self.format.bytes(self.dim)
    }

    fn scale_bytes(&self) -> usize {
        self.format.scale().map_or(0, |scale| self.dim / scale.columns)
    }

    /// Bytes of one entry.
    pub fn entry_bytes(&self) -> usize {
        self.value_bytes() + self.scale_bytes()
    }

    /// First byte of the values and of the scales of a slot.
    fn place(&self, slot: usize) -> (usize, usize) {
        let (page, entry) = (slot / self.per_page * self.page_bytes, slot % self.per_page);
        match self.split {
            true => (
                page + entry * self.value_bytes(),
                page + self.per_page * self.value_bytes() + entry * self.scale_bytes(),
            ),
            false => (page + entry * self.entry_bytes(), page + entry * self.entry_bytes() + self.value_bytes()),
        }
    }

    /// The same entries, each in a page of its own.
    pub(crate) fn alone(self) -> Self {
        Self { per_page: 1, ..self }
    }

    /// The values of the entry in a slot.
    ///
    /// # Panics
    /// If the cache has no such slot.
    pub fn read(&self, cache: &[u8], slot: usize) -> Vec<f32> {
        let (values, scales) = self.place(slot);
        HostTensor {
            format: self.format,
            shape: vec![1, self.dim],
            codes: cache[values..][..self.value_bytes()].to_vec(),
            scales: cache[scales..][..self.scale_bytes()].to_vec(),
        }
        .values()
    }

    /// [`CacheEntries::read`] in F64.
    pub(crate) fn read_wide(&self, cache: &[u8], slot: usize) -> Vec<f64> {
        self.read(cache, slot).into_iter().map(f64::from).collect()
    }

    /// Rounds a row to the format and stores it in a slot.
    ///
    /// # Panics
    /// If the cache has no such slot, or the row has not `dim` values.
    pub fn write(&self, cache: &mut [u8], slot: usize, row: &[f32]) {
        let (values, scales) = self.place(slot);
        let entry = HostTensor::floats(self.format, &[1, self.dim], row);
        cache[values..][..self.value_bytes()].copy_from_slice(&entry.codes);
        cache[scales..][..self.scale_bytes()].copy_from_slice(&entry.scales);
    }
}
