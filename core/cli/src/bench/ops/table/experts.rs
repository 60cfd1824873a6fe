//! The mixture of experts: products in FP4, the gate, and the rows on their way there and back.

use deepinfer_ops::Format::{Bf16, F32, Fp4Row32, Fp8Row32, I32};

use super::HIDDEN;
use crate::bench::ops::case::{Bar, Bound, Case, Content, Scale};

/// Routed experts.
const EXPERTS: usize = 384;
/// Experts of a row.
const CHOSEN: usize = 6;
/// Width of an expert.
const INNER: usize = 2304;

pub(super) fn cases(scale: Scale) -> Vec<Case> {
    let mut cases = vec![
        grouped(scale, 32, 4096, HIDDEN, 8).bar(Bar::Microseconds(120.0)),
        grouped(scale, 32, 4096, HIDDEN, 1),
        grouped(scale, 32, 4096, HIDDEN, 64),
        grouped(scale, EXPERTS, INNER, HIDDEN, 1),
        grouped(scale, EXPERTS, HIDDEN, INNER, 1),
        grouped(scale, 32, INNER, HIDDEN, 512).bound(Bound::Compute),
    ];
    cases.extend([1, 64].map(|rows| gate(scale, rows).bound(Bound::Latency)));
    cases.push(gate(scale, 65_536).bar(Bar::CopyShare(0.9)));
    cases.extend([1, 64].map(|rows| dispatch(scale, rows).bound(Bound::Latency)));
    cases.push(dispatch(scale, 16_384).bar(Bar::CopyShare(0.9)));
    cases.extend([1, 64].map(|rows| combine(scale, rows).bound(Bound::Latency)));
    cases.push(combine(scale, 16_384).bar(Bar::CopyShare(0.9)));
    cases.push(swiglu(scale, 384).bound(Bound::Latency));
    cases.push(swiglu(scale, 98_304).bar(Bar::CopyShare(0.9)));
    cases
}

/// Rows of each of several experts with its matrix.
fn grouped(scale: Scale, experts: usize, n: usize, k: usize, rows: usize) -> Case {
    let (experts, n, k, rows) = (scale.of(experts), scale.to(n, 32), scale.to(k, 32), scale.of(rows));
    let m = experts * rows;
    Case::new("grouped_linear", format!("fp4 experts{experts} n{n} k{k} rows{rows}"))
        .random("x", Fp8Row32, &[m, k])
        .integers("expert_start", &[experts + 1], move |_, expert| (expert * rows) as i64)
        .list("weight", experts, Fp4Row32, &[n, k])
        .partly("out", Bf16, &[m, n], Content::Random(1.0), m * n * 2)
        .flops(2 * m * n * k)
}

fn gate(scale: Scale, rows: usize) -> Case {
    let (t, e) = (scale.of(rows), scale.to(EXPERTS, 8));
    Case::new("moe_gate", format!("experts{e} of{CHOSEN} rows{t}"))
        .random("logits", F32, &[t, e])
        .tensor("bias", F32, &[e], Content::Random(0.1))
        .u32("scoring", 0)
        .u32("normalize", 1)
        .f32("route_scale", 1.5)
        .random("experts", I32, &[t, CHOSEN])
        .random("weights", F32, &[t, CHOSEN])
}

fn dispatch(scale: Scale, rows: usize) -> Case {
    let (t, n, e) = (scale.of(rows), scale.to(HIDDEN, 32), scale.to(EXPERTS, 8));
    let m = t * CHOSEN;
    let row = n + n / 32;
    Case::new("moe_dispatch", format!("fp8 n{n} experts{e} of{CHOSEN} rows{t}"))
        .random("x", Fp8Row32, &[t, n])
        // Different experts of a row, any of each row.
        .integers("experts", &[t, CHOSEN], move |rng, place| {
            let part = e / CHOSEN;
            (place % CHOSEN * part + rng.below(part)) as i64
        })
        .tensor("weights", F32, &[t, CHOSEN], Content::Between(0.1, 1.0))
        .partly("out", Fp8Row32, &[m, n], Content::Random(1.0), m * row)
        .random("row_weight", F32, &[m])
        .random("expert_start", I32, &[e + 1])
        .random("row_of", I32, &[t, CHOSEN])
}

fn combine(scale: Scale, rows: usize) -> Case {
    let (t, n) = (scale.of(rows), scale.to(HIDDEN, 32));
    let m = t * CHOSEN;
    Case::new("moe_combine", format!("bf16 n{n} of{CHOSEN} rows{t}"))
        .random("y", Bf16, &[m, n])
        // Each row of y once: an odd multiple of the place is a permutation if m is a power of two times three.
        .integers("row_of", &[t, CHOSEN], move |_, place| ((place * 7919) % m) as i64)
        .random("shared", Bf16, &[t, n])
        .random("out", Bf16, &[t, n])
}

fn swiglu(scale: Scale, rows: usize) -> Case {
    let (m, n) = (scale.of(rows), scale.to(INNER, 32));
    Case::new("swiglu_quantize", format!("bf16 to fp8 n{n} rows{m}"))
        .random("gate", Bf16, &[m, n])
        .random("up", Bf16, &[m, n])
        .tensor("row_weight", F32, &[m], Content::Between(0.1, 1.0))
        .f32("limit", 10.0)
        .u32("mid", 1)
        .random("out", Fp8Row32, &[m, n])
}
