//! The index: scores of keys, and the best of them.

use deepinfer_ops::CacheFormat::Fp4Row32 as Keys;
use deepinfer_ops::Format::{Bf16, F32, Fp4Row32, I32, U8};

use crate::bench::ops::case::{Bar, Bound, Case, Content, Scale};

/// Heads of the index queries.
const HEADS: usize = 32;
/// Channels of an index key.
const DIM: usize = 128;
/// Keys of a page.
const PAGE: usize = 128;
/// Selected entries.
const CHOSEN: usize = 512;
/// Entries of a candidate block.
const BLOCK: usize = 8;
/// Candidate blocks.
const BLOCKS: usize = 2048;

pub(super) fn cases(scale: Scale) -> Vec<Case> {
    let mut cases = vec![
        // Requests that decode, each with keys of its own; a request that is prefilled.
        scores(scale, 64, 65_536, true).bound(Bound::Compute),
        scores(scale, 1, 65_536, true),
        scores(scale, 2048, 16_384, false).bound(Bound::Compute),
        topk(scale, 1, 65_536, CHOSEN).bound(Bound::Latency),
        topk(scale, 64, 65_536, CHOSEN).bar(Bar::Microseconds(12.0)),
        topk(scale, 64, 16_384, CHOSEN).bound(Bound::Latency),
        topk(scale, 2048, 16_384, CHOSEN),
        topk(scale, 64, 8192, BLOCKS).bound(Bound::Latency),
    ];
    cases.push(block_max(scale, 64, 65_536));
    cases.push(block_max(scale, 2048, 16_384).bar(Bar::CopyShare(0.9)));
    cases.push(restore(scale, 64).bound(Bound::Latency));
    cases.push(convert(scale, 64).bound(Bound::Latency));
    cases.push(convert(scale, 16_384));
    cases
}

/// Index queries of `rows` rows with `keys` keys: of a request each, or all of one request.
fn scores(scale: Scale, rows: usize, keys: usize, is_decode: bool) -> Case {
    let (t, n, h, d) = (scale.of(rows), scale.to(keys, PAGE), scale.of(HEADS), scale.to(DIM, 32));
    let (requests, of_request) = (if is_decode { t } else { 1 }, n / PAGE);
    let pages = requests * of_request;
    let what = if is_decode { "decode" } else { "prefill" };
    let key_bytes = pages * PAGE * Keys.entry_bytes(d);
    Case::new("index_scores", format!("{what} h{h} d{d} rows{t} keys{n}"))
        .random("q", Fp4Row32, &[t, h * d])
        .random("head_weight", Bf16, &[t, h])
        .f32("scale", 1.0 / 64.0)
        .tensor("keys", U8, &[pages, PAGE * Keys.entry_bytes(d)], Content::Entries(Keys, d, PAGE))
        .u32("format", Keys as usize)
        .u32("entries_per_page", PAGE)
        .integers("row_request", &[t], move |_, row| (row % requests) as i64)
        // Each page once, in another order.
        .integers("block_table", &[requests, of_request], move |_, place| scattered(place, pages) as i64)
        .integers("visible", &[t], move |_, _| n as i64)
        .u32("block_size", BLOCK)
        .random("out", F32, &[t, n])
        .flops(2 * t * n * h * d)
        .bound(if key_bytes > 0 { Bound::Memory } else { Bound::Latency })
}

/// Place number `place` of a permutation of `count` places.
pub(super) fn scattered(place: usize, count: usize) -> usize {
    const PRIME: usize = 1_000_003;
    // A prime that does not divide the count makes a permutation of multiples.
    if count.is_multiple_of(PRIME) { place } else { place * PRIME % count }
}

fn topk(scale: Scale, rows: usize, columns: usize, chosen: usize) -> Case {
    let (t, n, k) = (scale.of(rows), scale.of(columns), scale.of(chosen));
    Case::new("topk_select", format!("{k} of {t}x{n}")).random("scores", F32, &[t, n]).random("out", I32, &[t, k])
}

fn block_max(scale: Scale, rows: usize, columns: usize) -> Case {
    let (t, n) = (scale.of(rows), scale.to(columns, BLOCK));
    Case::new("candidate_block_max", format!("{t}x{n}"))
        .random("scores", F32, &[t, n])
        .integers("visible", &[t], move |_, _| n as i64)
        .u32("block_size", BLOCK)
        .random("out", F32, &[t, n / BLOCK])
}

fn restore(scale: Scale, rows: usize) -> Case {
    let (t, k, blocks) = (scale.of(rows), scale.of(CHOSEN), scale.of(BLOCKS));
    Case::new("restore_candidate_indices_inplace", format!("rows{t}"))
        .integers("columns", &[t, k], move |rng, _| rng.below(blocks * BLOCK) as i64)
        // Block b stands in place b, so that a second call finds what the first one found.
        .integers("candidates", &[t, blocks], move |_, place| (place % blocks) as i64)
        .u32("block_size", BLOCK)
}

fn convert(scale: Scale, rows: usize) -> Case {
    let (t, k) = (scale.of(rows), scale.of(CHOSEN));
    let (requests, pages) = (t.min(64), scale.of(512));
    Case::new("convert_kv_index", format!("rows{t} k{k}"))
        .integers("positions", &[t, k], move |rng, _| rng.below(pages * PAGE) as i64)
        .integers("row_request", &[t], move |_, row| (row % requests) as i64)
        .integers("block_table", &[requests, pages], move |rng, _| rng.below(1 << 20) as i64)
        .u32("entries_per_page", PAGE)
        .random("slots", I32, &[t, k])
}
