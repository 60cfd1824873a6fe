//! Entries of the caches, stored and loaded.

use deepinfer_ops::CacheFormat::{self, Fp4Row16, Fp4Row32, Fp8};
use deepinfer_ops::Format::{Bf16, F32, U8};

use super::HEAD;
use super::select::scattered;
use crate::bench::ops::case::{Bar, Bound, Case, Content, Scale};

/// Entries of a page.
const PAGE: usize = 128;
/// Rows of a large store or load.
const MANY: usize = 524_288;

pub(super) fn cases(scale: Scale) -> Vec<Case> {
    vec![
        store(scale, Fp8, HEAD, MANY, false).bar(Bar::CopyShare(0.9)),
        store(scale, Fp8, HEAD, MANY, true).bar(Bar::CopyShare(0.8)),
        store(scale, Fp4Row16, HEAD, MANY, false).bar(Bar::CopyShare(0.9)),
        store(scale, Fp4Row16, HEAD, MANY, true).bar(Bar::CopyShare(0.8)),
        store(scale, Fp4Row32, 128, MANY, false),
        store(scale, Fp8, HEAD, 64, true).bound(Bound::Latency),
        load(scale, Fp8, HEAD, MANY, false).bar(Bar::CopyShare(0.9)),
        load(scale, Fp8, HEAD, MANY, true),
        load(scale, Fp4Row16, HEAD, MANY, false).bar(Bar::CopyShare(0.9)),
        compress(scale, 64, 1).bound(Bound::Latency),
        compress(scale, 1, 65_536).bar(Bar::CopyShare(0.9)),
    ]
}

fn order(is_scattered: bool) -> &'static str {
    if is_scattered { "scattered" } else { "sequential" }
}

fn store(scale: Scale, format: CacheFormat, dim: usize, rows: usize, is_scattered: bool) -> Case {
    let (t, d) = (scale.to(rows, 64), scale.to(dim, 32));
    let (page, entry) = (PAGE.min(t), format.entry_bytes(d));
    let pages = t / page;
    let slots = pages * page;
    let written = t * entry;
    Case::new("store_kv_cache", format!("{} d{d} rows{t} {}", short(format), order(is_scattered)))
        .random("kv", Bf16, &[t, d])
        .integers("slots", &[t], move |_, row| if is_scattered { scattered(row, slots) } else { row } as i64)
        .partly("cache", U8, &[pages, page * entry], Content::Entries(format, d, page), written)
        .u32("format", format as usize)
        .u32("entries_per_page", page)
}

fn load(scale: Scale, format: CacheFormat, dim: usize, rows: usize, is_scattered: bool) -> Case {
    let (m, d) = (scale.to(rows, 64), scale.to(dim, 32));
    let (page, entry) = (PAGE.min(m), format.entry_bytes(d));
    let pages = m / page;
    let slots = pages * page;
    Case::new("load_paged_kv_cache", format!("{} d{d} rows{m} {}", short(format), order(is_scattered)))
        .tensor("cache", U8, &[pages, page * entry], Content::Entries(format, d, page))
        .integers("slots", &[m], move |_, row| if is_scattered { scattered(row, slots) } else { row } as i64)
        .u32("format", format as usize)
        .u32("entries_per_page", page)
        .random("out", Bf16, &[m, d])
}

fn short(format: CacheFormat) -> &'static str {
    match format {
        CacheFormat::F32 => "f32",
        CacheFormat::Bf16 => "bf16",
        Fp8 => "fp8",
        Fp4Row16 => "fp4",
        Fp4Row32 => "fp4 key",
    }
}

/// Groups of two tokens: `requests` requests with `tokens` tokens each.
fn compress(scale: Scale, requests: usize, tokens: usize) -> Case {
    const RATIO: usize = 2;
    const RING: usize = 8;
    let (requests, tokens, d) = (scale.of(requests), scale.of(tokens), scale.to(HEAD, 32));
    // A single token ends the group that the one before it began.
    let first = if tokens == 1 { 1 } else { 0 };
    let (t, of_request) = (requests * tokens, (tokens + first) / RATIO);
    let groups = requests * of_request;
    // A group reads its rows, or the ring; the ring is written at most once.
    let ring_rows = requests * (tokens.min(RING) + first);
    Case::new("compress_and_update_state", format!("ratio{RATIO} d{d} requests{requests} tokens{tokens}"))
        .random("latent", F32, &[t, d])
        .random("score", F32, &[t, d])
        .partly("state", F32, &[requests, RING, 2, d], Content::Random(1.0), ring_rows * 2 * d * 4)
        .integers("group_row", &[groups], move |_, group| {
            let end = group % of_request * RATIO + RATIO - 1 - first;
            (group / of_request * tokens + end) as i64
        })
        .integers("positions", &[t], move |_, row| (row % tokens + first) as i64)
        .integers("row_request", &[t], move |_, row| (row / tokens) as i64)
        .integers("request_start", &[requests + 1], move |_, request| (request * tokens) as i64)
        .integers("state_slot", &[requests], |_, request| request as i64)
        .u32("ratio", RATIO)
        .random("out", Bf16, &[groups, d])
}
