//! Oracles of the mixture of experts.

use deepinfer_plugin_api::Format;

use crate::bound::Bound;
use crate::call::Call;
use crate::formats;
use crate::tensor::HostTensor;
use crate::want::{Element, Want, Wants, half_ulp};

pub(crate) fn moe_gate(call: &Call, bound: Bound) -> Wants {
    let (logits, bias) = (call.tensor("logits"), call.tensor("bias").values());
    let bias_vl = call.optional("bias_vl").map(HostTensor::values);
    let mask = call.optional("image_mask").map(HostTensor::ints);
    let (e, k) = (logits.shape[1], call.dim("experts", 1));
    let error = bound.relative();
    let normalises = call.size("normalize") == 1 && k > 1;
    let values = logits.wide();
    let (mut experts, mut weights) = (Vec::new(), Vec::new());
    for t in 0..logits.shape[0] {
        let row = &values[t * e..][..e];
        let scores: Vec<f32> = scores(row, call.size("scoring")).into_iter().map(|s| s as f32).collect();
        let is_image = mask.as_ref().is_some_and(|mask| mask[t] != 0);
        let bias = match &bias_vl {
            Some(bias_vl) if is_image => bias_vl,
            _ => &bias,
        };
        let biased: Vec<f32> = scores.iter().zip(bias).map(|(s, b)| s + b).collect();
        let rank = |e: usize| if biased[e].is_nan() { f32::NEG_INFINITY } else { biased[e] };
        let mut order: Vec<usize> = (0..e).collect();
        // Stable: of equal values the lower expert stays first. A NaN comes after -infinity.
        order.sort_by(|&a, &b| {
            rank(b).total_cmp(&rank(a)).then(biased[a].is_nan().cmp(&biased[b].is_nan())).then(a.cmp(&b))
        });
        // Different inputs with almost equal biased scores may change places.
        let tied = |a: usize, b: usize| {
            let same_input = row[a].to_bits() == row[b].to_bits() && bias[a].to_bits() == bias[b].to_bits();
            !same_input && (biased[a] - biased[b]).abs() <= error as f32 * (scores[a].abs() + bias[a].abs())
        };
        let ambiguous = order.windows(2).take(k).any(|pair| tied(pair[0], pair[1]));
        let chosen = &order[..k];
        let sum: f64 = chosen.iter().map(|&e| f64::from(scores[e])).sum::<f64>() + 1e-20;
        for &e in chosen {
            let weight = call.real("route_scale") * f64::from(scores[e]) / if normalises { sum } else { 1.0 };
            experts.push(if ambiguous { Element::Any } else { Element::Int(e as i64) });
            weights.push(if ambiguous { Element::Any } else { Element::relative(weight, error) });
        }
    }
    vec![("experts", Want::Elements(experts)), ("weights", Want::Elements(weights))]
}

fn scores(logits: &[f64], scoring: usize) -> Vec<f64> {
    match scoring {
        // ln(1 + exp(z)) without overflow.
        0 => logits.iter().map(|&z| (z.max(0.0) + (-z.abs()).exp().ln_1p()).sqrt()).collect(),
        1 => logits.iter().map(|&z| 1.0 / (1.0 + (-z).exp())).collect(),
        _ => {
            let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = logits.iter().map(|z| (z - largest).exp()).sum();
            logits.iter().map(|z| (z - largest).exp() / sum).collect()
        }
    }
}

pub(crate) fn moe_dispatch(call: &Call, _: Bound) -> Wants {
    let (x, experts, weights) = (call.tensor("x"), call.tensor("experts"), call.tensor("weights").values());
    let (k, e) = (experts.shape[1], call.dim("expert_start", 0) - 1);
    let chosen = experts.ints();
    let mut pairs: Vec<usize> = (0..chosen.len()).filter(|&pair| chosen[pair] >= 0).collect();
    // Stable: within an expert the pairs keep their order.
    pairs.sort_by_key(|&pair| chosen[pair]);

    let tokens: Vec<usize> = pairs.iter().map(|pair| pair / k).collect();
    let mut out = call.tensor("out").clone();
    let written = x.select(0, &tokens);
    out.codes[..written.codes.len()].copy_from_slice(&written.codes);
    out.scales[..written.scales.len()].copy_from_slice(&written.scales);
    // The weight of a row that is not there is nowhere defined.
    let mut row_weight = vec![Element::Any; chosen.len()];
    let mut row_of = vec![Element::Int(-1); chosen.len()];
    for (m, &pair) in pairs.iter().enumerate() {
        row_weight[m] = Element::Bits(weights[pair].to_bits());
        row_of[pair] = Element::Int(m as i64);
    }
    let before = |expert: usize| pairs.iter().filter(|&&pair| chosen[pair] < expert as i64).count() as i64;
    vec![
        ("out", Want::Exact(out)),
        ("row_weight", Want::Elements(row_weight)),
        ("row_of", Want::Elements(row_of)),
        ("expert_start", Want::Elements((0..=e).map(|e| Element::Int(before(e))).collect())),
    ]
}

pub(crate) fn swiglu_quantize(call: &Call, bound: Bound) -> Wants {
    let (gate, up, out) = (call.tensor("gate").wide(), call.tensor("up").wide(), call.tensor("out"));
    let row_weight = call.optional("row_weight").map(HostTensor::wide);
    let (limit, columns) = (call.real("limit"), call.dim("gate", 1));
    let hidden: Vec<f64> = gate
        .iter()
        .zip(&up)
        .enumerate()
        .map(|(i, (&gate, &up))| {
            // Comparisons let a NaN through.
            let g = if limit > 0.0 && gate > limit { limit } else { gate };
            let u = if limit > 0.0 { up.clamp(-limit, limit) } else { up };
            let weight = row_weight.as_ref().map_or(1.0, |w| w[i / columns]);
            g / (1.0 + (-g).exp()) * u * weight
        })
        .collect();
    let to_bf16 = call.size("mid") == 1;
    let error = bound.relative();
    // Before the first rounding, which is to F32 or BF16.
    let slack = |h: f64| error * h.abs();
    let want = match out.format {
        Format::Fp8Row32 => {
            let mid = |h: f64| if to_bf16 { formats::bf16(h as f32) } else { h as f32 };
            let bound = |sign: f64| hidden.iter().map(|&h| mid(h + sign * slack(h))).collect();
            Want::Fp8Between(bound(-1.0), bound(1.0))
        }
        _ => {
            let middle =
                |h: f64| if to_bf16 { half_ulp(Format::Bf16, h.abs() + slack(h)) } else { half_ulp(Format::F32, h) };
            Want::Elements(hidden.iter().map(|&h| Element::Near { value: h, slack: slack(h) + middle(h) }).collect())
        }
    };
    vec![("out", want)]
}

pub(crate) fn moe_combine(call: &Call, _: Bound) -> Wants {
    let (y, row_of, out) = (call.tensor("y").values(), call.tensor("row_of"), call.tensor("out"));
    let shared = call.optional("shared").map(HostTensor::values);
    let (k, columns) = (row_of.shape[1], out.shape[1]);
    let rows = row_of.ints();
    let mut sums = Vec::new();
    for t in 0..out.shape[0] {
        let mut mine: Vec<i64> = rows[t * k..][..k].iter().copied().filter(|&m| m >= 0).collect();
        mine.sort_unstable();
        for n in 0..columns {
            let routed = mine.iter().fold(0f32, |sum, &m| sum + y[m as usize * columns + n]);
            sums.push(shared.as_ref().map_or(routed, |shared| routed + shared[t * columns + n]));
        }
    }
    vec![("out", Want::ExactButNan(HostTensor::floats(out.format, &out.shape, &sums)))]
}
