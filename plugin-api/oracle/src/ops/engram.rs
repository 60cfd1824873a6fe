//! Oracles of the n-gram memory.

use crate::bound::Bound;
use crate::call::{Call, Value};
use crate::tensor::HostTensor;
use crate::want::{Element, Want, Wants};

pub(crate) fn engram_hash(call: &Call, _: Bound) -> Wants {
    let (tokens, map) = (call.tensor("token_ids").ints(), call.tensor("token_map").ints());
    let mask = call.optional("image_mask").map(HostTensor::ints);
    let (start, slot) = (call.tensor("request_start").ints(), call.tensor("state_slot").ints());
    let (multipliers, primes, offsets) =
        (call.tensor("multipliers").ints(), call.tensor("primes").ints(), call.tensor("offsets").ints());
    let (layers, n, j) = (call.dim("multipliers", 0), call.dim("multipliers", 1), call.dim("primes", 1));
    let heads = j / (n - 1);
    let pad = match call.value("pad") {
        Value::I32(pad) => i64::from(*pad),
        _ => panic!("pad is an i32"),
    };
    let mut history = call.tensor("history").ints();
    let mut rows = vec![Element::Any; layers * tokens.len() * j];
    for (q, &slot) in slot.iter().enumerate() {
        let kept = slot as usize * (n - 1)..(slot as usize + 1) * (n - 1);
        let mut ids = history[kept.clone()].to_vec();
        for t in start[q] as usize..start[q + 1] as usize {
            let dead = mask.as_ref().is_some_and(|mask| mask[t] != 0);
            ids.push(if dead { -1 } else { map[tokens[t] as usize] });
            let back: Vec<i64> = ids.iter().rev().take(n).copied().collect();
            let alive = back.iter().take_while(|&&id| id >= 0).count();
            for layer in 0..layers {
                let term = |i: usize| (if i < alive { back[i] } else { pad }).wrapping_mul(multipliers[layer * n + i]);
                let mut hash = term(0);
                for i in 1..n {
                    hash ^= term(i);
                    for head in 0..heads {
                        let column = (i - 1) * heads + head;
                        let row = hash.rem_euclid(primes[layer * j + column]) + offsets[layer * j + column];
                        rows[(layer * tokens.len() + t) * j + column] = Element::Int(row);
                    }
                }
            }
        }
        history[kept].copy_from_slice(&ids[ids.len() - (n - 1)..]);
    }
    let history = history.into_iter().map(Element::Int).collect();
    vec![("rows", Want::Elements(rows)), ("history", Want::Elements(history))]
}

pub(crate) fn engram_gather(call: &Call, _: Bound) -> Wants {
    let (table, out) = (call.tensor("table"), call.tensor("out"));
    let (rows, columns, values) = (table.shape[0], table.shape[1], table.values());
    let mut wanted = Vec::new();
    for row in call.tensor("rows").ints() {
        match usize::try_from(row).ok().filter(|&row| row < rows) {
            Some(row) => wanted.extend_from_slice(&values[row * columns..][..columns]),
            None => wanted.extend(std::iter::repeat_n(0.0, columns)),
        }
    }
    vec![("out", Want::ExactButNan(HostTensor::floats(out.format, &out.shape, &wanted)))]
}

pub(crate) fn engram_gate(call: &Call, bound: Bound) -> Wants {
    let (x, kv) = (call.tensor("x"), call.tensor("kv").wide());
    let (q_weight, k_weight) = (call.tensor("q_weight").wide(), call.tensor("k_weight").wide());
    let mask = call.optional("image_mask").map(HostTensor::ints);
    let (copies, d, eps) = (x.shape[1], x.shape[2], call.real("eps"));
    let values = x.wide();
    let mean = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>() / d as f64 + eps;
    // Monotone in the dot product: the ends of its range bound the gate.
    let gate = |dot: f64| {
        let root = if dot.abs() < 1e-6 { 1e-3 } else { dot.abs().sqrt() };
        1.0 / (1.0 + (-root.copysign(dot)).exp())
    };
    let mut out = Vec::new();
    for t in 0..x.shape[0] {
        let row = &kv[t * (copies + 1) * d..][..(copies + 1) * d];
        let is_image = mask.as_ref().is_some_and(|mask| mask[t] != 0);
        for i in 0..copies {
            let (stream, key) = (&values[(t * copies + i) * d..][..d], &row[i * d..][..d]);
            let norm = 1.0 / (mean(stream) * mean(key) * d as f64).sqrt();
            let product = |c: usize| stream[c] * (q_weight[i * d + c] * k_weight[i * d + c]) * key[c] * norm;
            let dot: f64 = (0..d).map(product).sum();
            let error = bound.sum_error((0..d).map(|c| product(c).abs()).sum());
            // Around zero either sign may come out, also that of a zero.
            let nudge = if dot.abs() <= error { error + f64::MIN_POSITIVE } else { error };
            let (value, spread) = match is_image {
                true => (0.0, 0.0),
                false => (gate(dot), gate(dot + nudge) - gate(dot - nudge) + bound.relative()),
            };
            for (c, &x) in stream.iter().enumerate() {
                let v = row[copies * d + c];
                let slack = spread * v.abs() + bound.roundings(2) * (x.abs() + (value * v).abs());
                out.push(Element::Near { value: x + value * v, slack });
            }
        }
    }
    vec![("x", Want::Elements(out))]
}
