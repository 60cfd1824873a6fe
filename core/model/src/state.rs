//! What requests leave on the device between steps: pages of compressed entries, and a state slot per request.

use std::rc::Rc;

use deepinfer_ops::{CacheFormat, Device, Format, OpError, Tensor};

use crate::cache_format::{
    CacheFormats, DEFAULT_BACKTRACKING, DEFAULT_DRAFT_TOKENS, PAGE_TOKENS, PageLayout, StateLayout, ring_entries,
    rollback_positions,
};
use crate::config::ModelConfig;
use crate::numerics::Numerics;

/// Positions by which a request can be set back.
pub(crate) const ROLLBACK: usize = rollback_positions(DEFAULT_BACKTRACKING, DEFAULT_DRAFT_TOKENS);

/// The caches of all requests on one device.
///
/// A page and a state slot are one piece of memory each; what a layer reads of them is a view with gaps.
pub struct KvCache {
    pub(crate) formats: CacheFormats,
    /// Entries of a window ring.
    pub(crate) ring: usize,
    /// Window ring of each layer, `[slots, ring bytes]`.
    pub(crate) windows: Vec<Tensor>,
    /// Compressed entries of each KV source, by layer.
    pub(crate) sources: Vec<Option<SourceCache>>,
    /// Compressed ids of the last tokens, `[slots, n - 1]`; absent without Engram layers.
    pub(crate) history: Option<Tensor>,
    /// All pages, `[pages, page bytes]` U8.
    all_pages: Tensor,
    /// All state slots, `[slots, slot bytes]` U8.
    all_slots: Tensor,
}

/// The part of the pages that one KV source writes.
pub(crate) struct SourceCache {
    /// Entries in a page.
    pub(crate) entries: usize,
    pub(crate) main: Tensor,
    pub(crate) main_format: CacheFormat,
    pub(crate) keys: Tensor,
    pub(crate) keys_format: CacheFormat,
    /// Rings of gates and latents of recent positions, `[slots, rows, 2, head_dim]`; where tokens are pooled.
    pub(crate) open_groups: Option<Tensor>,
}

impl KvCache {
    /// Caches with room for `pages` pages of 128 tokens and `slots` requests.
    ///
    /// # Errors
    /// The device has not enough memory.
    pub fn new(
        device: &Rc<dyn Device>,
        config: &ModelConfig,
        numerics: &Numerics,
        pages: usize,
        slots: usize,
    ) -> Result<Self, OpError> {
        let formats = numerics.cache_formats(config);
        let (page, state) = (PageLayout::new(config, formats), StateLayout::new(config, formats, ROLLBACK));
        let all_pages = bytes_on(device, pages, page.bytes)?;
        let all_slots = bytes_on(device, slots, state.bytes)?;

        let windows = (0..config.num_hidden_layers)
            .map(|layer| all_slots.columns(state.window_offset(layer), state.ring_bytes))
            .collect();
        // A part of every slot, as numbers of four bytes.
        let part = |format: Format, offset: usize, shape: &[usize]| {
            let words = all_slots.bytes().saturating_sub(offset) / 4;
            let mut dims = vec![slots];
            dims.extend(shape);
            let mut strides = vec![1; dims.len()];
            for dim in (1..dims.len() - 1).rev() {
                strides[dim] = strides[dim + 1] * dims[dim + 1];
            }
            strides[0] = state.bytes / 4;
            Tensor::plain(&all_slots.memory(), offset, format, &[words]).with_strides(&dims, &strides)
        };
        let mut sources: Vec<Option<SourceCache>> = (0..config.num_hidden_layers).map(|_| None).collect();
        for source in &page.sources {
            let groups = state.open_groups.iter().find(|groups| groups.layer == source.layer);
            sources[source.layer] = Some(SourceCache {
                entries: source.entries,
                main: all_pages.columns(source.main_offset, source.main_bytes),
                main_format: formats.main,
                keys: all_pages.columns(source.index_offset, source.index_bytes),
                keys_format: formats.index,
                open_groups: groups.map(|g| part(Format::F32, g.offset, &[g.rows, 2, config.head_dim])),
            });
        }
        let history = state.history_offset.map(|at| part(Format::I32, at, &[config.engram_max_ngram_size - 1]));
        let ring = ring_entries(config.sliding_window, ROLLBACK);
        let cache = Self { formats, ring, windows, sources, history, all_pages, all_slots };
        for slot in 0..slots {
            cache.reset_slot(device.as_ref(), slot)?;
        }
        Ok(cache)
    }

    /// Device bytes of caches with this much room, without making them.
    pub fn bytes_for(config: &ModelConfig, numerics: &Numerics, pages: usize, slots: usize) -> u64 {
        pages as u64 * Self::page_bytes(config, numerics) + slots as u64 * Self::slot_bytes(config, numerics)
    }

    /// Device bytes of a page.
    pub fn page_bytes(config: &ModelConfig, numerics: &Numerics) -> u64 {
        PageLayout::new(config, numerics.cache_formats(config)).bytes as u64
    }

    /// Device bytes of a state slot, and of a copy of one.
    pub fn slot_bytes(config: &ModelConfig, numerics: &Numerics) -> u64 {
        StateLayout::new(config, numerics.cache_formats(config), ROLLBACK).bytes as u64
    }

    /// Pages that a sequence of `tokens` needs.
    pub fn pages_for(tokens: usize) -> usize {
        tokens.div_ceil(PAGE_TOKENS)
    }

    /// Prepares a state slot for a new request, in order with steps and without a wait: no token precedes its first one.
    /// Rings need no clearing, since positions say which of their entries exist.
    ///
    /// # Errors
    /// The device reports a fault.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn reset_slot(&self, device: &dyn Device, slot: usize) -> Result<(), OpError> {
        match &self.history {
            // Bytes 0xFF are the id -1 in every place.
            Some(history) => device.fill(&history.rows(slot, 1), 0xFF),
            None => Ok(()),
        }
    }

    /// Copies a page, in order with steps and without a wait.
    ///
    /// # Errors
    /// The device reports a fault.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn copy_page(&self, device: &dyn Device, from: usize, to: usize) -> Result<(), OpError> {
        device.copy(&self.all_pages.rows(to, 1), &self.all_pages.rows(from, 1))
    }

    /// A page: the entries of all KV sources for 128 tokens, `[1, page bytes]` U8.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn page(&self, page: usize) -> Tensor {
        self.all_pages.rows(page, 1)
    }

    /// The state slot of a request: all that it leaves on the device besides its pages, `[1, slot bytes]` U8.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn slot(&self, slot: usize) -> Tensor {
        self.all_slots.rows(slot, 1)
    }

    /// Pages.
    pub fn pages(&self) -> usize {
        self.all_pages.dim(0)
    }

    /// State slots.
    pub fn slots(&self) -> usize {
        self.all_slots.dim(0)
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        self.all_pages.bytes() + self.all_slots.bytes()
    }
}

/// Rows of bytes that have an allocation of their own.
pub(crate) fn bytes_on(device: &Rc<dyn Device>, rows: usize, bytes: usize) -> Result<Tensor, OpError> {
    Ok(Tensor::plain(&device.allocate(rows * bytes)?, 0, Format::U8, &[rows, bytes]))
}
