//! Engram: hashes, looked-up rows and the gate.

use deepinfer_ops::Format::{Bf16, Fp8Row32, I32, I64};

use super::{COPIES, HIDDEN, VOCABULARY};
use crate::bench::ops::case::{Bar, Bound, Case, Content, Scale};

/// Rows of the table that is measured: of the released 384 million as many as a device has room for beside other things.
const TABLE: usize = 16_000_000;
/// Channels of a row.
const CHANNELS: usize = 256;
/// Looked-up rows of a token: 8 heads of 2-, 3- and 4-grams.
const COLUMNS: usize = 24;
/// Tokens of the longest n-gram.
const NGRAM: usize = 4;
/// Layers with tables.
const LAYERS: usize = 2;

pub(super) fn cases(scale: Scale) -> Vec<Case> {
    vec![
        hash(scale, 64, 1).bound(Bound::Latency),
        hash(scale, 1, 16_384).bound(Bound::Latency),
        gather(scale, 64).bound(Bound::Latency),
        gather(scale, 16_384).bar(Bar::CopyShare(0.9)),
        gate(scale, 64).bound(Bound::Latency),
        gate(scale, 8192).bar(Bar::CopyShare(0.9)),
    ]
}

fn hash(scale: Scale, requests: usize, tokens: usize) -> Case {
    let (requests, tokens, v) = (scale.of(requests), scale.of(tokens), scale.of(VOCABULARY));
    let t = requests * tokens;
    let (buckets, compressed) = (scale.of(16_000_000), scale.of(99_092));
    Case::new("engram_hash", format!("requests{requests} tokens{tokens}"))
        .integers("token_ids", &[t], move |rng, _| rng.below(v) as i64)
        .partly("token_map", I32, &[v], Content::Integers(Box::new(move |rng, _| rng.below(compressed) as i64)), t * 4)
        .integers("history", &[requests, NGRAM - 1], move |rng, _| rng.below(compressed) as i64)
        .integers("request_start", &[requests + 1], move |_, request| (request * tokens) as i64)
        .integers("state_slot", &[requests], |_, request| request as i64)
        .pad(2)
        .tensor(
            "multipliers",
            I64,
            &[LAYERS, NGRAM],
            Content::Integers(Box::new(|rng, _| (rng.below(1 << 40) * 2 + 1) as i64)),
        )
        .tensor("primes", I64, &[LAYERS, COLUMNS], Content::Integers(Box::new(move |_, at| (buckets + at) as i64)))
        .tensor(
            "offsets",
            I64,
            &[LAYERS, COLUMNS],
            Content::Integers(Box::new(move |_, at| (at % COLUMNS * (buckets + 100)) as i64)),
        )
        .random("rows", I32, &[LAYERS, t, COLUMNS])
}

fn gather(scale: Scale, rows: usize) -> Case {
    let (n, t, c) = (scale.of(TABLE), scale.of(rows), scale.to(CHANNELS, 32));
    Case::new("engram_gather", format!("fp8 c{c} of{COLUMNS} rows{t}"))
        .shared("table", Fp8Row32, &[n, c], Content::Random(1.0), t * COLUMNS * (c + c / 32))
        .integers("rows", &[t, COLUMNS], move |rng, _| rng.below(n) as i64)
        .random("out", Bf16, &[t, COLUMNS * c])
}

fn gate(scale: Scale, rows: usize) -> Case {
    let (t, d) = (scale.of(rows), scale.to(HIDDEN, 32));
    Case::new("engram_gate", format!("bf16 d{d} rows{t}"))
        .random("x", Bf16, &[t, COPIES, d])
        .tensor("kv", Bf16, &[t, (COPIES + 1) * d], Content::Random(0.1))
        .random("q_weight", Bf16, &[COPIES, d])
        .random("k_weight", Bf16, &[COPIES, d])
        .f32("eps", 1e-20)
}
