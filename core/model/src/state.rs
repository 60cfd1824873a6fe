//! What requests leave on the device between steps: pages of compressed entries, and a state slot per request.

use std::rc::Rc;

use deepinfer_ops::{CacheFormat, Device, Format, OpError, Tensor};

use crate::cache_format::{
    CacheFormats, DEFAULT_BACKTRACKING, DEFAULT_DRAFT_TOKENS, PAGE_TOKENS, PageLayout, RequestState, ring_entries,
    rollback_positions,
};
use crate::config::ModelConfig;
use crate::numerics::Numerics;

/// Positions by which a request can be set back.
pub(crate) const ROLLBACK: usize = rollback_positions(DEFAULT_BACKTRACKING, DEFAULT_DRAFT_TOKENS);

/// The caches of all requests on one device.
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
    pages: usize,
    slots: usize,
    bytes: usize,
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
        let layout = PageLayout::new(config, formats);
        let ring = ring_entries(config.sliding_window, ROLLBACK);
        let mut bytes = 0;
        let mut tensor = |format: Format, shape: &[usize]| {
            let size = Tensor::bytes_of(format, shape);
            bytes += size;
            Ok::<_, OpError>(Tensor::plain(&device.allocate(size)?, 0, format, shape))
        };
        let all_pages = tensor(Format::U8, &[pages, layout.bytes])?;
        let ring_bytes = ring * formats.window.entry_bytes(config.head_dim);
        let windows = (0..config.num_hidden_layers)
            .map(|_| tensor(Format::U8, &[slots, ring_bytes]))
            .collect::<Result<Vec<_>, _>>()?;
        let mut sources: Vec<Option<SourceCache>> = (0..config.num_hidden_layers).map(|_| None).collect();
        for part in &layout.sources {
            let ratio = config.compress_ratios[part.layer];
            let open_groups = if ratio > 1 {
                // A group that a rejected token completed is pooled again, so its members stay that long.
                let rows = ratio + ROLLBACK.saturating_sub(1);
                Some(tensor(Format::F32, &[slots, rows, 2, config.head_dim])?)
            } else {
                None
            };
            sources[part.layer] = Some(SourceCache {
                entries: part.entries,
                main: all_pages.columns(part.main_offset, part.main_bytes),
                main_format: formats.main,
                keys: all_pages.columns(part.index_offset, part.index_bytes),
                keys_format: formats.index,
                open_groups,
            });
        }
        let history = if config.engram_layer_ids.is_empty() {
            None
        } else {
            Some(tensor(Format::I32, &[slots, config.engram_max_ngram_size - 1])?)
        };
        let cache = Self { formats, ring, windows, sources, history, pages, slots, bytes };
        for slot in 0..slots {
            cache.reset_slot(device.as_ref(), slot)?;
        }
        Ok(cache)
    }

    /// Device bytes of caches with this much room, without making them.
    pub fn bytes_for(config: &ModelConfig, numerics: &Numerics, pages: usize, slots: usize) -> u64 {
        let formats = numerics.cache_formats(config);
        let page = PageLayout::new(config, formats).bytes as u64;
        let state = RequestState::new(config, formats, ROLLBACK).total_bytes(false) as u64;
        pages as u64 * page + slots as u64 * state
    }

    /// Pages that a sequence of `tokens` needs.
    pub fn pages_for(tokens: usize) -> usize {
        tokens.div_ceil(PAGE_TOKENS)
    }

    /// Prepares a state slot for a new request: no token precedes its first one. Rings need no clearing, since positions
    /// say which of their entries exist.
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

    /// Pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// State slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
