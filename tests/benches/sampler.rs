//! Time of a draw, of adjusted logits and of a mask per row of the released vocabulary: `cargo bench -p deepinfer-tests --bench
//! sampler`. The backend is that of `DEEPINFER_ACCELERATOR`, or cpu-reference.

#![allow(clippy::print_stdout)]

use std::time::Instant;

use deepinfer_ops::args::{AdjustLogits, ApplyTokenMask, FusedSample};
use deepinfer_ops::traits::SampleOps;
use deepinfer_ops::{Format, OpError, Tensor};
use deepinfer_tests::{Tensors, device};

const VOCABULARY: usize = 129_280;
const ROWS: usize = 16;
const RUNS: usize = 20;

/// The median of the runs, in microseconds a row.
fn report(name: &str, mut run: impl FnMut() -> Result<(), OpError>) {
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            run().unwrap_or_else(|e| panic!("{name}: {e}"));
            start.elapsed().as_secs_f64() * 1e6 / ROWS as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("| {name} | {:.1} | {:.1} |", times[RUNS / 2], times[0]);
}

fn main() {
    let t = Tensors(device());
    let hash = |v: usize| (v as u32).wrapping_mul(2_654_435_761) as f32 / 4_294_967_296.0;
    // Of a model: most of the probability on few tokens. Flat: much of it on all.
    let peaked: Vec<f32> = (0..ROWS * VOCABULARY).map(|v| -3.0 * (1.0 - hash(v)).max(1e-7).ln()).collect();
    let flat: Vec<f32> = (0..ROWS * VOCABULARY).map(|v| hash(v) * 2.0).collect();
    println!("| call | median, us per row | least |\n|---|---|---|");
    for (kind, logits) in [("peaked", peaked), ("flat", flat)] {
        let logits = t.f32(&[ROWS, VOCABULARY], &logits);
        draws(&t, kind, &logits);
    }
    let logits = t.f32(&[ROWS, VOCABULARY], &vec![1.0; ROWS * VOCABULARY]);
    changes(&t, &logits);
}

fn draws(t: &Tensors, kind: &str, logits: &Tensor) {
    let each = |value: f32| t.f32(&[ROWS], &[value; ROWS]);
    let position = t.i32(&[ROWS], &(0..ROWS as i32).collect::<Vec<_>>());
    let (seed, token) = (t.i64(&[ROWS], &[7; ROWS]), t.poisoned(Format::I32, &[ROWS]));
    let (greedy, one) = (each(0.0), each(1.0));
    let (min_p_log, top_p) = (each(-3.0), each(0.95));
    let [top_k, top_k_large] = [50, 50_000].map(|k| t.i32(&[ROWS], &[k; ROWS]));
    let plain = FusedSample {
        logits,
        inv_temperature: &one,
        seed: &seed,
        position: &position,
        token: &token,
        child: None,
        min_p_log: None,
        top_k: None,
        top_p: None,
    };
    let cases = [
        ("greedy", FusedSample { inv_temperature: &greedy, ..plain }),
        ("plain", FusedSample { ..plain }),
        ("min_p e^-3", FusedSample { min_p_log: Some(&min_p_log), ..plain }),
        ("top_k 50", FusedSample { top_k: Some(&top_k), ..plain }),
        ("top_k 50000", FusedSample { top_k: Some(&top_k_large), ..plain }),
        ("top_p 0.95", FusedSample { top_p: Some(&top_p), ..plain }),
        ("top_k 50, top_p 0.95", FusedSample { top_k: Some(&top_k), top_p: Some(&top_p), ..plain }),
    ];
    for (name, args) in &cases {
        report(&format!("{kind}, {name}"), || t.0.fused_sample(args));
    }
}

fn changes(t: &Tensors, logits: &Tensor) {
    const SEEN: usize = 4096;
    let each = |value: f32| t.f32(&[ROWS], &[value; ROWS]);
    let range: Vec<i32> = (0..ROWS as i32).flat_map(|n| [n * SEEN as i32, (n + 1) * SEEN as i32]).collect();
    let tokens: Vec<i32> = (0..ROWS * SEEN).map(|i| (i % SEEN * 31) as i32).collect();
    let (seen_range, none) = (t.i32(&[ROWS, 2], &range), t.i32(&[ROWS, 2], &[0; 2 * ROWS]));
    let (seen_token, seen_count) = (t.i32(&[ROWS * SEEN], &tokens), t.i32(&[ROWS * SEEN], &vec![2; ROWS * SEEN]));
    let args = AdjustLogits {
        logits,
        bias_range: &none,
        bias_token: &t.i32(&[0], &[]),
        bias_value: &t.f32(&[0], &[]),
        repetition: &each(1.1),
        inv_repetition: &each(1.0 / 1.1),
        frequency: &each(0.1),
        presence: &each(0.1),
        seen_range: &seen_range,
        seen_token: &seen_token,
        seen_count: &seen_count,
    };
    report(&format!("adjust_logits, {SEEN} tokens seen"), || t.0.adjust_logits(&args));
    let masks = t.i32(&[1, VOCABULARY.div_ceil(32)], &vec![0x5555_5555; VOCABULARY.div_ceil(32)]);
    let args = ApplyTokenMask { logits, mask_index: &t.i32(&[ROWS], &[0; ROWS]), masks: &masks };
    report("apply_token_mask", || t.0.apply_token_mask(&args));
}
