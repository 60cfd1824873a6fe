//! Sizes and places of cache entries: entry formats, pages of compressed entries, and the per-request state.
//!
//! Arithmetic only. A cache entry is the key and value of one position (or group of positions) of one layer; each entry
//! has its scales with it, so an entry's size follows from its channels alone.
#![forbid(unsafe_code)]

use deepinfer_ops::CacheFormat;
use serde::{Serialize, Serializer};

use crate::config::ModelConfig;

/// Tokens that one page of the compressed caches covers, at every ratio and for all KV sources together.
pub const PAGE_TOKENS: usize = 128;

/// Alignment of each part of a page, in bytes.
const PART_ALIGNMENT: usize = 32;

/// A page is a multiple of this many bytes, and of the entry size, so that any part of a pool of pages can be addressed in
/// whole entries and in whole lines of memory.
const PAGE_ALIGNMENT: usize = 128;

/// Positions by which a request can be set back, apart from rejected drafts.
pub const DEFAULT_BACKTRACKING: usize = 6;

/// Tokens drafted per step by default.
pub const DEFAULT_DRAFT_TOKENS: usize = 5;

/// The formats of the three caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CacheFormats {
    /// Window entries, [`ModelConfig::head_dim`] channels.
    #[serde(serialize_with = "by_name")]
    pub window: CacheFormat,
    /// Compressed key/value entries, [`ModelConfig::head_dim`] channels.
    #[serde(serialize_with = "by_name")]
    pub main: CacheFormat,
    /// Index keys, [`ModelConfig::index_head_dim`] channels.
    #[serde(serialize_with = "by_name")]
    pub index: CacheFormat,
}

impl CacheFormats {
    /// All caches in single precision.
    pub const UNROUNDED: Self = Self { window: CacheFormat::F32, main: CacheFormat::F32, index: CacheFormat::F32 };

    /// The formats that a deployed model of `config` stores.
    pub fn deployed(config: &ModelConfig) -> Self {
        let main = if config.use_fp4_sparse_kv { CacheFormat::Fp4Row16 } else { CacheFormat::Fp8 };
        Self { window: CacheFormat::Fp8, main, index: CacheFormat::Fp4Row32 }
    }

    /// Bytes that a token adds to the compressed caches, without page padding. Half bytes are possible: at ratio 2 two
    /// tokens share an entry.
    pub fn bytes_per_token(&self, config: &ModelConfig) -> f64 {
        let entry = self.main.entry_bytes(config.head_dim) + self.index.entry_bytes(config.index_head_dim);
        let entries_per_token = |&layer: &usize| 1.0 / config.compress_ratios[layer] as f64;
        entry as f64 * config.kv_source_layer_ids.iter().map(entries_per_token).sum::<f64>()
    }
}

fn by_name<S: Serializer>(format: &CacheFormat, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(format.name())
}

/// Where the entries of every KV source lie in a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PageLayout {
    /// One part per KV source, in order of layer.
    pub sources: Vec<PageSource>,
    /// Bytes of the entries of a page.
    pub used_bytes: usize,
    /// Bytes of a page, alignment included.
    pub bytes: usize,
}

/// The part of a page that belongs to one KV source. Offsets are in bytes from the start of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PageSource {
    /// The layer that writes the entries.
    pub layer: usize,
    /// Entries per page.
    pub entries: usize,
    /// Begin of the index keys.
    pub index_offset: usize,
    /// Bytes of the index keys.
    pub index_bytes: usize,
    /// Begin of the key/value entries.
    pub main_offset: usize,
    /// Bytes of the key/value entries.
    pub main_bytes: usize,
}

impl PageLayout {
    /// The page of a model of `config` with caches in `formats`: source by source, index keys before key/value entries.
    pub fn new(config: &ModelConfig, formats: CacheFormats) -> Self {
        let main_entry = formats.main.entry_bytes(config.head_dim);
        let index_entry = formats.index.entry_bytes(config.index_head_dim);
        let (mut end, mut used_bytes) = (0_usize, 0);
        let place = |&layer: &usize| {
            let entries = PAGE_TOKENS / config.compress_ratios[layer];
            let (index_bytes, main_bytes) = (entries * index_entry, entries * main_entry);
            let index_offset = end.next_multiple_of(PART_ALIGNMENT);
            let main_offset = (index_offset + index_bytes).next_multiple_of(PART_ALIGNMENT);
            end = main_offset + main_bytes;
            used_bytes += index_bytes + main_bytes;
            PageSource { layer, entries, index_offset, index_bytes, main_offset, main_bytes }
        };
        let sources = config.kv_source_layer_ids.iter().map(place).collect();
        let bytes = end.next_multiple_of(least_common_multiple(PAGE_ALIGNMENT, main_entry));
        Self { sources, used_bytes, bytes }
    }
}

/// Largest number of positions that a request may be set back: by `backtracking` itself, or because all `draft_tokens` of a
/// step are rejected together with the token that was computed with them.
pub const fn rollback_positions(backtracking: usize, draft_tokens: usize) -> usize {
    let drafts = draft_tokens + 1;
    if backtracking > drafts { backtracking } else { drafts }
}

/// Entries of a window ring. A rollback must find the whole window before the position that it returns to, so the ring keeps
/// `rollback` entries more than the window.
pub const fn ring_entries(window: usize, rollback: usize) -> usize {
    window + rollback
}

/// Bytes that a request owns besides its pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RequestState {
    /// Entries of each window ring.
    pub ring_entries: usize,
    /// Window rings of the backbone layers.
    pub window_ring_bytes: usize,
    /// Window rings of the draft stages.
    pub draft_ring_bytes: usize,
    /// Compressor inputs of recent positions, two f32 rows (latent and gate) each, for sources that pool positions.
    pub compressor_bytes: usize,
    /// Compressed token ids that the next n-grams begin with.
    pub ngram_history_bytes: usize,
    /// All of it without the drafter's part, in the slot where it lies, alignment included.
    pub slot_bytes: usize,
}

impl RequestState {
    /// The state of one request of a model of `config`, for rollbacks of at most `rollback` positions.
    pub fn new(config: &ModelConfig, formats: CacheFormats, rollback: usize) -> Self {
        let entries = ring_entries(config.sliding_window, rollback);
        let ring = entries * formats.window.entry_bytes(config.head_dim);
        let pooling = config.kv_source_layer_ids.iter().map(|&layer| config.compress_ratios[layer]).filter(|&r| r > 1);
        let compressor_rows: usize = pooling.map(|ratio| open_group_rows(ratio, rollback)).sum();
        Self {
            ring_entries: entries,
            window_ring_bytes: config.num_hidden_layers * ring,
            draft_ring_bytes: config.draft_stages() * ring,
            compressor_bytes: compressor_rows * 2 * config.head_dim * size_of::<f32>(),
            ngram_history_bytes: ngram_history(config) * size_of::<i32>(),
            slot_bytes: StateLayout::new(config, formats, rollback).bytes,
        }
    }

    /// Bytes of a slot without and with the drafter's part.
    pub fn total_bytes(&self, with_drafter: bool) -> usize {
        self.slot_bytes + if with_drafter { self.draft_ring_bytes } else { 0 }
    }
}

/// Where the parts of a request's state lie in its slot. A slot is one piece of memory, so that a copy of it is one copy.
/// Offsets are in bytes from the start of the slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateLayout {
    /// Bytes of a window ring; that of layer `l` begins at [`StateLayout::window_offset`].
    pub ring_bytes: usize,
    /// Bytes from ring to ring.
    pub ring_stride: usize,
    /// Rings of gates and latents, for sources that pool positions, in order of layer.
    pub open_groups: Vec<OpenGroups>,
    /// Begin of the n-gram history, I32; absent without Engram layers.
    pub history_offset: Option<usize>,
    /// Bytes of a slot, alignment included.
    pub bytes: usize,
}

/// The ring of a source that pools positions, `[rows, 2, head_dim]` F32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenGroups {
    /// The layer that writes it.
    pub layer: usize,
    /// Positions that it holds.
    pub rows: usize,
    /// Its begin.
    pub offset: usize,
}

impl StateLayout {
    /// The slot of a model of `config` with window rings in `formats`, for rollbacks of at most `rollback` positions.
    pub fn new(config: &ModelConfig, formats: CacheFormats, rollback: usize) -> Self {
        let entry = formats.window.entry_bytes(config.head_dim);
        let ring_bytes = ring_entries(config.sliding_window, rollback) * entry;
        let ring_stride = ring_bytes.next_multiple_of(PART_ALIGNMENT);
        let mut end = config.num_hidden_layers * ring_stride;
        let mut take = |bytes: usize| {
            let offset = end.next_multiple_of(PART_ALIGNMENT);
            end = offset + bytes;
            offset
        };
        let mut open_groups = Vec::new();
        for &layer in &config.kv_source_layer_ids {
            let ratio = config.compress_ratios[layer];
            if ratio > 1 {
                let rows = open_group_rows(ratio, rollback);
                let offset = take(rows * 2 * config.head_dim * size_of::<f32>());
                open_groups.push(OpenGroups { layer, rows, offset });
            }
        }
        let history = ngram_history(config) * size_of::<i32>();
        let history_offset = (history > 0).then(|| take(history));
        // As with pages: whole window entries and whole lines of memory.
        let bytes = end.next_multiple_of(least_common_multiple(PAGE_ALIGNMENT, entry));
        Self { ring_bytes, ring_stride, open_groups, history_offset, bytes }
    }

    /// Begin of the window ring of a layer.
    pub fn window_offset(&self, layer: usize) -> usize {
        layer * self.ring_stride
    }
}

/// Positions that the ring of a pooling source holds. A group that a rejected token completed is pooled again, so its
/// members stay until no rollback reaches them.
fn open_group_rows(ratio: usize, rollback: usize) -> usize {
    ratio + rollback.saturating_sub(1)
}

/// Compressed ids that the next n-grams begin with.
fn ngram_history(config: &ModelConfig) -> usize {
    if config.engram_layer_ids.is_empty() { 0 } else { config.engram_max_ngram_size - 1 }
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut gcd, mut rest) = (a, b);
    while rest != 0 {
        (gcd, rest) = (rest, gcd % rest);
    }
    a / gcd * b
}
