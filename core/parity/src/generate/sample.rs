//! Cases of the draw and of what changes logits before it.

use deepinfer_oracle::{Call, HostTensor, Value};

use super::dense::set_int;
use super::{Content, Generator, OpSpec, Refusal, Rows};

use Content::{Equal, Huge, Infinite, Nan, Plain, Ties, Tiny, Wide, Zeros};

pub(crate) const SPECS: &[OpSpec] = &[
    OpSpec {
        name: "fused_sample",
        generate: fused_sample,
        rows: Rows::Any("N"),
        empty: &["N", "V"],
        contents: &[Plain, Wide, Ties, Equal, Zeros, Nan, Infinite],
        refusals: &[
            Refusal { names: &["position"], change: |call| set_int(call, "position", 0, -1) },
            Refusal { names: &["inv_temperature"], change: |call| set_float(call, "inv_temperature", -1.0) },
            Refusal { names: &["inv_temperature"], change: |call| set_float(call, "inv_temperature", f32::NAN) },
            Refusal { names: &["child"], change: |call| set_int(call, "child", -1, -1) },
            Refusal { names: &["min_p_log"], change: |call| set_float(call, "min_p_log", 0.5) },
            Refusal { names: &["min_p_log"], change: |call| set_float(call, "min_p_log", f32::NAN) },
            Refusal { names: &["top_k"], change: |call| set_int(call, "top_k", -1, -1) },
            Refusal { names: &["top_p"], change: |call| set_float(call, "top_p", 0.0) },
            Refusal { names: &["top_p"], change: |call| set_float(call, "top_p", 1.5) },
            Refusal { names: &["top_p"], change: |call| set_float(call, "top_p", f32::NAN) },
        ],
    },
    OpSpec {
        name: "adjust_logits",
        generate: adjust_logits,
        rows: Rows::Any("N"),
        empty: &["N"],
        contents: &[Plain, Wide, Tiny, Huge, Zeros, Nan, Infinite],
        refusals: &[
            Refusal { names: &["bias_range"], change: |call| set_int(call, "bias_range", 0, -1) },
            Refusal { names: &["bias_range"], change: |call| set_int(call, "bias_range", 1, 1 << 20) },
            Refusal { names: &["seen_range"], change: |call| set_int(call, "seen_range", 0, 1 << 20) },
            Refusal { names: &["bias_token"], change: |call| set_int(call, "bias_token", 0, 1 << 20) },
            Refusal { names: &["seen_token"], change: |call| set_int(call, "seen_token", 0, -1) },
            // The first list begins at 0 and has two tokens.
            Refusal { names: &["bias_token"], change: |call| repeat_first(call, "bias_token") },
            Refusal { names: &["seen_token"], change: |call| repeat_first(call, "seen_token") },
            Refusal { names: &["seen_count"], change: |call| set_int(call, "seen_count", 0, -1) },
            Refusal { names: &["bias_value"], change: |call| set_float(call, "bias_value", f32::INFINITY) },
            Refusal { names: &["repetition"], change: |call| set_float(call, "repetition", 0.0) },
            Refusal { names: &["inv_repetition"], change: |call| set_float(call, "inv_repetition", f32::INFINITY) },
            Refusal { names: &["frequency"], change: |call| set_float(call, "frequency", f32::NAN) },
            Refusal { names: &["presence"], change: |call| set_float(call, "presence", f32::INFINITY) },
        ],
    },
    OpSpec {
        name: "apply_token_mask",
        generate: apply_token_mask,
        rows: Rows::Any("N"),
        empty: &["N"],
        contents: &[Plain, Zeros, Nan, Infinite],
        refusals: &[
            Refusal { names: &["mask_index"], change: |call| set_int(call, "mask_index", 0, -2) },
            Refusal { names: &["mask_index"], change: |call| set_int(call, "mask_index", -1, 1 << 20) },
        ],
    },
];

/// Sets the first element of an F32 argument.
fn set_float(call: &mut Call, name: &str, value: f32) {
    call.tensor_mut(name).set_element(0, &value.to_le_bytes());
}

/// Gives the second entry of a list of tokens the token of the first.
fn repeat_first(call: &mut Call, name: &str) {
    let first = call.tensor(name).ints()[0] as i32;
    set_int(call, name, 1, first);
}

fn fused_sample(g: &mut Generator) {
    let (n, v) = (g.rows(), g.extent(&[1, 3, 31, 33, 130, 1000], &[4097, 30_001, 129_280]));
    g.subject("logits", &[n, v]);
    if g.rng.one_in(4) {
        // A row that allows nothing, and one that allows one token.
        let mut values = vec![0.0; n * v];
        values[..v].fill(f32::NEG_INFINITY);
        values[(n - 1) * v..][1..].fill(f32::NEG_INFINITY);
        g.values("logits", &[n, v], &values);
    }
    let of_each = |g: &mut Generator, choices: &[f32]| -> Vec<f32> { (0..n).map(|_| g.rng.pick(choices)).collect() };
    // Of few values that weigh almost alike a list mostly ends among equals, whose mass then decides about top_p.
    let has_ties = g.content == Ties;
    let scales = if has_ties { [0.001, 1.0, 0.001, 0.001, 4.0, 0.001] } else { [0.0, 1.0, 1.25, 0.001, 4.0, 1e38] };
    let inverse = of_each(g, &scales);
    g.values("inv_temperature", &[n], &inverse);
    let seeds: Vec<i64> = (0..n).map(|_| g.rng.next() as i64).collect();
    g.set("seed", Value::Tensor(HostTensor::i64(&[n], &seeds)));
    g.ints("position", &[n], |rng| rng.below(1 << 20) as i32);
    g.out("token", &[n]);
    let child: Vec<i32> = (0..n).map(|_| g.rng.below(4) as i32).collect();
    // Four fifths of them end in the middle of the zeros.
    let few = if has_ties { [(v * 4 / 5).max(1) as i32; 3] } else { [0, 1, 2] };
    let top_k: Vec<i32> = (0..n).map(|_| g.rng.pick(&[few[0], few[1], few[2], 20, v as i32, i32::MAX])).collect();
    let min_p_log = of_each(g, &[f32::NEG_INFINITY, -0.0, -0.5, -5.0, -1e30]);
    let all_but_one = 1.0 - f32::EPSILON / 2.0;
    let shares = if has_ties {
        [0.9, 0.95, 0.9, 0.85, 0.999, 0.8, all_but_one]
    } else {
        [1.0, 0.999, 0.9, 0.5, 1e-6, f32::from_bits(1), all_but_one]
    };
    let top_p = of_each(g, &shares);
    // All of them, none, each alone, and all filters.
    let given = g.turn(&[0b1111, 0, 0b0001, 0b0010, 0b0100, 0b1000, 0b1110, 0b1111]);
    let given = if has_ties { given | 0b1100 } else { given };
    let optional = [
        ("child", HostTensor::i32(&[n], &child)),
        ("min_p_log", HostTensor::floats(g.format("min_p_log"), &[n], &min_p_log)),
        ("top_k", HostTensor::i32(&[n], &top_k)),
        ("top_p", HostTensor::floats(g.format("top_p"), &[n], &top_p)),
    ];
    for (i, (name, tensor)) in optional.into_iter().enumerate() {
        g.set(name, if given >> i & 1 == 1 { Value::Tensor(tensor) } else { Value::Absent });
    }
}

fn adjust_logits(g: &mut Generator) {
    let (n, v) = (g.rows(), g.extent(&[2, 31, 33, 300], &[5001, 129_280]));
    g.subject("logits", &[n, v]);
    let (range, tokens) = lists(g, n, v);
    let values: Vec<f32> = tokens.iter().map(|_| g.rng.pick(&[1.5, -0.1, 0.0, 1e-40, f32::NEG_INFINITY])).collect();
    g.i32("bias_range", &[n, 2], &range);
    g.i32("bias_token", &[tokens.len()], &tokens);
    g.values("bias_value", &[tokens.len()], &values);
    let repetition: Vec<f32> = (0..n).map(|_| g.rng.pick(&[1.0, 1.1, 0.7, 3.0])).collect();
    let inverse: Vec<f32> = repetition.iter().map(|r| 1.0 / r).collect();
    g.values("repetition", &[n], &repetition);
    g.values("inv_repetition", &[n], &inverse);
    for name in ["frequency", "presence"] {
        let values: Vec<f32> = (0..n).map(|_| g.rng.pick(&[0.0, 0.1, -0.7, 2.0])).collect();
        g.values(name, &[n], &values);
    }
    let (range, tokens) = lists(g, n, v);
    g.i32("seen_range", &[n, 2], &range);
    g.i32("seen_token", &[tokens.len()], &tokens);
    // Beyond 2^24 the conversion to F32 rounds.
    g.ints("seen_count", &[tokens.len()], |rng| rng.pick(&[0, 0, 1, 2, 7, 1000, (1 << 24) + 1]));
}

/// Lists of ascending tokens, one per row: ranges and tokens. The first has at least two tokens and begins at 0; entries between
/// the lists belong to none.
fn lists(g: &mut Generator, rows: usize, vocabulary: usize) -> (Vec<i32>, Vec<i32>) {
    let (mut range, mut tokens) = (Vec::new(), Vec::new());
    for row in 0..rows {
        let one_in = g.rng.pick(&[1, 3, 20]);
        let first = tokens.len() as i32;
        tokens.extend((0..vocabulary as i32).filter(|&token| g.rng.one_in(one_in) || (row == 0 && token < 2)));
        range.extend([first, tokens.len() as i32]);
        if g.rng.one_in(2) {
            tokens.push(-1);
        }
    }
    (range, tokens)
}

fn apply_token_mask(g: &mut Generator) {
    let (n, v, q) = (g.rows(), g.extent(&[1, 31, 32, 33, 64, 300], &[5001, 129_280]), g.rng.pick(&[1, 2, 5]));
    g.subject("logits", &[n, v]);
    g.ints("mask_index", &[n], |rng| rng.below(q + 1) as i32 - 1);
    g.ints("masks", &[q, v.div_ceil(32)], |rng| match rng.below(4) {
        0 => 0,
        1 => -1,
        _ => rng.next() as i32,
    });
}
