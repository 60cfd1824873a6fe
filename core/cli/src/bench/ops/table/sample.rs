//! From logits to tokens.

use deepinfer_ops::Format::{F32, I32, I64};

use super::VOCABULARY;
use crate::bench::ops::case::{Bar, Bound, Case, Content, Scale};

/// Rows of a large batch.
const ROWS: usize = 256;
/// Passes over the logits that a draw may take.
const PASSES: f64 = 1.3;

pub(super) fn cases(scale: Scale) -> Vec<Case> {
    let mut cases: Vec<Case> = Draw::ALL.into_iter().map(|draw| sample(scale, ROWS, draw)).collect();
    cases.iter_mut().for_each(|case| case.bar = Some(Bar::Passes(PASSES)));
    cases.extend(Draw::ALL.into_iter().map(|draw| sample(scale, 1, draw).bound(Bound::Latency)));
    cases.push(adjust(scale, ROWS).bound(Bound::Latency));
    cases.push(mask(scale, ROWS).bar(Bar::CopyShare(0.9)));
    cases
}

/// How a token is drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Draw {
    Greedy,
    Temperature,
    Filtered,
}

impl Draw {
    const ALL: [Draw; 3] = [Draw::Greedy, Draw::Temperature, Draw::Filtered];

    fn name(self) -> &'static str {
        match self {
            Draw::Greedy => "greedy",
            Draw::Temperature => "temperature",
            Draw::Filtered => "top_k 50 top_p 0.95",
        }
    }
}

fn sample(scale: Scale, rows: usize, draw: Draw) -> Case {
    let (n, v) = (scale.of(rows), scale.to(VOCABULARY, 32));
    let heat = if draw == Draw::Greedy { Content::Between(0.0, 0.0) } else { Content::Between(0.8, 1.2) };
    let case = Case::new("fused_sample", format!("{} {n}x{v}", draw.name()))
        .tensor("logits", F32, &[n, v], Content::Random(3.0))
        .tensor("inv_temperature", F32, &[n], heat)
        .tensor("seed", I64, &[n], Content::Integers(Box::new(|rng, _| rng.next() as i64)))
        .integers("position", &[n], |rng, _| rng.below(65_536) as i64)
        .random("token", I32, &[n]);
    match draw {
        Draw::Filtered => case.integers("top_k", &[n], move |_, _| 50.min(v) as i64).tensor(
            "top_p",
            F32,
            &[n],
            Content::Between(0.95, 0.95),
        ),
        _ => case,
    }
}

/// Penalties for 4096 tokens that each row has seen.
fn adjust(scale: Scale, rows: usize) -> Case {
    let (n, v) = (scale.of(rows), scale.to(VOCABULARY, 32));
    let seen = scale.of(4096).min(v);
    let step = v / seen;
    // In place, again and again: a penalty so close to 1 changes little in a few thousand calls.
    Case::new("adjust_logits", format!("seen{seen} {n}x{v}"))
        .partly("logits", F32, &[n, v], Content::Random(3.0), n * seen * 8)
        .integers("bias_range", &[n, 2], |_, _| 0)
        .integers("bias_token", &[0], |_, _| 0)
        .random("bias_value", F32, &[0])
        .tensor("repetition", F32, &[n], Content::Between(1.0001, 1.0002))
        .tensor("inv_repetition", F32, &[n], Content::Between(0.9998, 0.9999))
        .tensor("frequency", F32, &[n], Content::Between(1e-4, 2e-4))
        .tensor("presence", F32, &[n], Content::Between(1e-4, 2e-4))
        .integers("seen_range", &[n, 2], move |_, at| (at.div_ceil(2) * seen) as i64)
        .integers("seen_token", &[n * seen], move |_, at| (at % seen * step) as i64)
        .integers("seen_count", &[n * seen], |rng, _| rng.below(5) as i64)
}

fn mask(scale: Scale, rows: usize) -> Case {
    let (n, v) = (scale.of(rows), scale.to(VOCABULARY, 32));
    // Bits are even: half of the logits are written, in almost every sector.
    Case::new("apply_token_mask", format!("{n}x{v}"))
        .partly("logits", F32, &[n, v], Content::Random(3.0), n * v * 4)
        .integers("mask_index", &[n], |_, row| row as i64)
        .random("masks", I32, &[n, v / 32])
}
