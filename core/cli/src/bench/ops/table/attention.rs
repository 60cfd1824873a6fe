//! Sparse attention of decoding: a window and the entries that were selected, under one softmax.

use deepinfer_ops::CacheFormat::{Fp4Row16, Fp8};
use deepinfer_ops::Format::{Bf16, F32, U8};

use super::{HEAD, HEADS};
use crate::bench::ops::case::{Bar, Bound, Case, Content, Scale};

/// Entries of the window.
const WINDOW: usize = 128;
/// Entries of a ring: the window, and what can be set back.
const RING: usize = 134;
/// Rings of the cache: more than the L2 holds.
const RINGS: usize = 4096;
/// Entries of a page of the compressed cache.
const PAGE: usize = 128;
/// Pages of the compressed cache.
const PAGES: usize = 8192;

pub(super) fn cases(scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    for chosen in [512, 2048] {
        for batch in [1, 16, 128] {
            let case = decode(scale, batch, chosen);
            let is_of_the_issue = (batch, chosen) == (128, 512);
            cases.push(if is_of_the_issue { case.bar(Bar::Microseconds(30.0)) } else { case });
        }
    }
    cases.push(decode(scale, 4096, 512).bound(Bound::Compute));
    cases
}

fn decode(scale: Scale, batch: usize, chosen: usize) -> Case {
    let (t, h, d) = (scale.of(batch), scale.of(HEADS), scale.to(HEAD, 32));
    let (w, k) = (scale.of(WINDOW), scale.of(chosen));
    let (ring, rings) = (w + RING - WINDOW, scale.of(RINGS));
    let (page, pages) = (PAGE, scale.of(PAGES));
    let (of_window, of_global) = (Fp8.entry_bytes(d), Fp4Row16.entry_bytes(d));
    let keys = w + k;
    Case::new("sparse_attention", format!("b{t} h{h} d{d} k{keys}"))
        .random("q", Bf16, &[t, h, d])
        .shared("window", U8, &[rings, ring * of_window], Content::Entries(Fp8, d, ring), t * w * of_window)
        .u32("window_format", Fp8 as usize)
        .u32("window_entries_per_page", ring)
        // A ring of its own for each row, which begins somewhere in it.
        .integers("window_slots", &[t, w], {
            move |rng, place| {
                let own = place / w * 2_654_435_761 % rings;
                let shift = if place.is_multiple_of(w) { rng.below(ring) } else { place / w % ring };
                (own * ring + (place % w + shift) % ring) as i64
            }
        })
        .shared("global", U8, &[pages, page * of_global], Content::Entries(Fp4Row16, d, page), t * k * of_global)
        .u32("global_format", Fp4Row16 as usize)
        .u32("global_entries_per_page", page)
        // Ascending: one of each part of the cache.
        .integers("global_slots", &[t, k], move |rng, place| {
            let part = pages * page / k;
            (place % k * part + rng.below(part)) as i64
        })
        .tensor("sink", F32, &[h], Content::Random(1.0))
        .f32("scale", (d as f32).sqrt().recip() / 8.0)
        .u32("round_probs", 1)
        .random("out", Bf16, &[t, h, d])
        .flops(4 * t * h * keys * d)
        .bound(Bound::Memory)
}
