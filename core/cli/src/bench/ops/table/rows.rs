//! Row by row: copies, norms, quantisation, rotation and the hyper-connections.

use deepinfer_ops::Format::{self, Bf16, F32, Fp4Row32, Fp8Row32};

use super::{COPIES, HEAD, HEADS, HIDDEN, VOCABULARY};
use crate::bench::ops::case::{Bar, Bound, Case, Content, Scale};

/// Numbers that a hyper-connection mixes with.
const MIX: usize = 2 * COPIES + COPIES * COPIES;
/// Rows of a decoding step, and of one that is bound by memory.
const SIZES: [usize; 2] = [64, 16_384];

pub(super) fn cases(scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    // A small case is bound by its launch; a large one has the bar.
    let both = |of: &dyn Fn(usize) -> Case| {
        let [few, many] = SIZES.map(of);
        [few.bound(Bound::Latency), many.bar(Bar::CopyShare(0.9))]
    };
    cases.extend(both(&|rows| gather(scale, rows, 1)));
    cases.push(gather(scale, 4096, COPIES).bar(Bar::CopyShare(0.9)));
    cases.extend(both(&|rows| rms_norm(scale, rows, HIDDEN)));
    cases.push(rms_norm(scale, 131_072, HEAD).bar(Bar::CopyShare(0.9)));
    cases.push(rstd(scale, 1).bound(Bound::Latency));
    cases.extend(both(&|rows| rstd(scale, rows)));
    cases.extend(both(&|rows| quantize(scale, rows, Fp8Row32, "fp8")));
    cases.push(quantize(scale, SIZES[1], Fp4Row32, "fp4").bar(Bar::CopyShare(0.9)));
    cases.extend(both(&|rows| rope(scale, rows, HEADS)));
    cases.push(rope(scale, 64, 1).bound(Bound::Latency));
    cases.push(hc_mix(scale, 1).bound(Bound::Latency));
    cases.push(hc_mix(scale, 4096).bound(Bound::Latency));
    cases.push(hc_mix(scale, 262_144));
    cases.push(mixing(scale, 1).bar(Bar::Microseconds(4.0)));
    cases.extend([64, 4096].map(|rows| mixing(scale, rows)));
    cases.extend(both(&|rows| hc_collapse(scale, rows)));
    cases.extend(both(&|rows| hc_expand(scale, rows)));
    cases
}

fn gather(scale: Scale, rows: usize, repeat: usize) -> Case {
    let (n, m, c) = (scale.of(VOCABULARY), scale.of(rows), scale.to(HIDDEN, 32));
    Case::new("gather", format!("bf16 c{c} repeat{repeat} rows{m}"))
        .shared("table", Bf16, &[n, c], Content::Random(1.0), m * c * 2)
        .integers("index", &[m], move |rng, _| rng.below(n) as i64)
        .u32("repeat", repeat)
        .random("out", Bf16, &[m, repeat, c])
}

fn rms_norm(scale: Scale, rows: usize, width: usize) -> Case {
    let (t, n) = (scale.of(rows), scale.to(width, 32));
    Case::new("rms_norm", format!("bf16 n{n} rows{t}"))
        .random("x", Bf16, &[t, n])
        .random("weight", Bf16, &[n])
        .f32("eps", 1e-20)
        .random("out", Bf16, &[t, n])
}

fn rstd(scale: Scale, rows: usize) -> Case {
    let (t, n) = (scale.of(rows), scale.to(COPIES * HIDDEN, 32));
    Case::new("rstd", format!("bf16 n{n} rows{t}")).random("x", Bf16, &[t, n]).f32("eps", 1e-20).random(
        "out",
        F32,
        &[t],
    )
}

fn quantize(scale: Scale, rows: usize, format: Format, what: &str) -> Case {
    let (t, n) = (scale.of(rows), scale.to(HIDDEN, 32));
    Case::new("quantize", format!("bf16 to {what} n{n} rows{t}")).random("x", Bf16, &[t, n]).random(
        "out",
        format,
        &[t, n],
    )
}

fn rope(scale: Scale, rows: usize, heads: usize) -> Case {
    // The last 64 channels are rotated.
    const PAIRS: usize = 32;
    let (t, h, d) = (scale.of(rows), scale.of(heads), HEAD);
    let moved = t * h * 2 * PAIRS * 2 * 2;
    Case::new("rope", format!("bf16 h{h} d{d} rows{t}"))
        .partly("x", Bf16, &[t, h, d], Content::Random(1.0), moved)
        .integers("positions", &[t], |rng, _| rng.below(65_536) as i64)
        .tensor("freqs", F32, &[PAIRS], Content::Between(1e-4, 1.0))
        .u32("inverse", 0)
}

fn hc_mix(scale: Scale, rows: usize) -> Case {
    let t = scale.of(rows);
    Case::new("hc_mix", format!("copies{COPIES} iters20 rows{t}"))
        .random("mix", F32, &[t, MIX])
        .tensor("rstd", F32, &[t], Content::Between(0.5, 1.5))
        .tensor("base", F32, &[MIX], Content::Random(0.5))
        .tensor("scale", F32, &[3], Content::Between(0.5, 1.0))
        .u32("copies", COPIES)
        .u32("iters", 20)
        .f32("eps", 1e-6)
        .random("pre", F32, &[t, COPIES])
        .random("post", F32, &[t, COPIES])
        .random("comb", F32, &[t, COPIES, COPIES])
}

/// All of a hyper-connection's mixing: the norm of the stream, the projections and the coefficients.
fn mixing(scale: Scale, rows: usize) -> Case {
    let (t, k) = (scale.of(rows), scale.to(COPIES * HIDDEN, 32));
    let project = Case::new("linear", String::new())
        .partly("x", Bf16, &[t, k], Content::Random(1.0), 0)
        .random("weight", F32, &[MIX, k])
        .u32("groups", 1)
        .random("out", F32, &[t, MIX])
        .flops(2 * t * MIX * k);
    Case::chain("mhc", format!("rstd + linear + hc_mix rows{t}"), vec![rstd(scale, rows), project, hc_mix(scale, rows)])
}

fn hc_collapse(scale: Scale, rows: usize) -> Case {
    let (t, d) = (scale.of(rows), scale.to(HIDDEN, 32));
    Case::new("hc_collapse", format!("bf16 d{d} rows{t}"))
        .random("x", Bf16, &[t, COPIES, d])
        .tensor("pre", F32, &[t, COPIES], Content::Between(0.1, 1.0))
        .random("out", Bf16, &[t, d])
}

fn hc_expand(scale: Scale, rows: usize) -> Case {
    let (t, d) = (scale.of(rows), scale.to(HIDDEN, 32));
    // In place, again and again: columns that sum to at most 0.8 keep the stream bounded.
    Case::new("hc_expand", format!("bf16 d{d} rows{t}"))
        .random("x", Bf16, &[t, COPIES, d])
        .random("y", Bf16, &[t, d])
        .tensor("post", F32, &[t, COPIES], Content::Between(0.1, 1.0))
        .tensor("comb", F32, &[t, COPIES, COPIES], Content::Between(0.1, 0.2))
}
