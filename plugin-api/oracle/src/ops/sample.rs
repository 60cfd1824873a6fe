//! Oracles of the draw and of what changes logits before it. Noise and weights are those of `deepinfer-numerics`: the catalogue
//! defines them by that crate.

use deepinfer_plugin_api::Format;
use deepinfer_plugin_api::numerics::fixed_exp::weight;
use deepinfer_plugin_api::numerics::gumbel::{Domain, noise};

use crate::bound::Bound;
use crate::call::Call;
use crate::tensor::HostTensor;
use crate::want::{Element, Want, Wants};

pub(crate) fn fused_sample(call: &Call, _: Bound) -> Wants {
    let (logits, inverse) = (call.tensor("logits"), call.tensor("inv_temperature").values());
    let (seeds, positions) = (call.tensor("seed").ints(), call.tensor("position").ints());
    let (children, top_k) =
        (call.optional("child").map(HostTensor::ints), call.optional("top_k").map(HostTensor::ints));
    let min_p_log = call.optional("min_p_log").map(HostTensor::values);
    let top_p = call.optional("top_p").map(HostTensor::values);
    let (vocabulary, values) = (logits.shape[1], logits.values());
    let draw = |n: usize| {
        let row = &values[n * vocabulary..][..vocabulary];
        if row.iter().any(|x| x.is_nan() || *x == f32::INFINITY) {
            return -1;
        }
        let candidates = (0..vocabulary).filter(|&v| row[v] != f32::NEG_INFINITY);
        if inverse[n] == 0.0 {
            return highest(candidates.map(|v| (v, row[v])));
        }
        let mut list: Vec<(usize, f32)> = candidates.map(|v| (v, row[v] * inverse[n])).collect();
        // The sort is stable: of equal scores the lower token stays first.
        list.sort_by(|a, b| b.1.partial_cmp(&a.1).expect("no NaN"));
        if let (Some(bars), Some(&(_, top))) = (&min_p_log, list.first()) {
            let bar = top + bars[n];
            list.retain(|&(_, score)| score >= bar || bar.is_nan());
        }
        match &top_k {
            Some(top_k) if top_k[n] > 0 => list.truncate(top_k[n] as usize),
            _ => {}
        }
        if let Some(share) = top_p.as_ref().map(|top_p| top_p[n]).filter(|&share| share != 1.0) {
            keep_share(&mut list, share);
        }
        // The lowest token first, so that it wins a tie.
        list.sort_by_key(|&(v, _)| v);
        let child = children.as_ref().map_or(0, |children| children[n] as u32);
        let noise = |v: usize| noise(seeds[n] as u64, positions[n] as u32, v as u32, Domain::TargetDraw, child);
        highest(list.into_iter().map(|(v, score)| (v, score + noise(v))))
    };
    let tokens = (0..logits.shape[0]).map(draw).map(Element::Int).collect();
    vec![("token", Want::Elements(tokens))]
}

/// The first of the highest; -1 of nothing. Only a strictly higher one replaces an earlier one.
fn highest(values: impl Iterator<Item = (usize, f32)>) -> i64 {
    values.reduce(|best, next| if next.1 > best.1 { next } else { best }).map_or(-1, |(v, _)| v as i64)
}

/// Shortens a sorted list to the shortest beginning with this share of the weight.
fn keep_share(list: &mut Vec<(usize, f32)>, share: f32) {
    let Some(&(_, top)) = list.first() else { return };
    let weights: Vec<u128> = list.iter().map(|&(_, score)| u128::from(weight(top - score))).collect();
    // The share is an integer over a power of two.
    let (mut numerator, mut halvings) = (f64::from(share), 0);
    while numerator.fract() != 0.0 {
        numerator *= 2.0;
        halvings += 1;
    }
    let wanted = weights.iter().sum::<u128>() * numerator as u128;
    let mut sum = 0;
    for (kept, weight) in weights.into_iter().enumerate() {
        sum += weight;
        // Sums have at most 63 bits; where the shift would lose some, any sum is above a product of at most 87.
        if halvings > 64 || sum << halvings >= wanted {
            list.truncate(kept + 1);
            return;
        }
    }
}

pub(crate) fn adjust_logits(call: &Call, _: Bound) -> Wants {
    let logits = call.tensor("logits");
    let (vocabulary, mut values) = (logits.shape[1], logits.values());
    let floats = |name: &str| call.tensor(name).values();
    let [bias_range, bias_token, seen_range, seen_token, seen_count] =
        ["bias_range", "bias_token", "seen_range", "seen_token", "seen_count"].map(|name| call.tensor(name).ints());
    let (bias_value, repetition, inverse) = (floats("bias_value"), floats("repetition"), floats("inv_repetition"));
    let (frequency, presence) = (floats("frequency"), floats("presence"));
    for n in 0..logits.shape[0] {
        let list = |range: &[i64]| range[2 * n] as usize..range[2 * n + 1] as usize;
        let row = &mut values[n * vocabulary..][..vocabulary];
        for i in list(&bias_range) {
            row[bias_token[i] as usize] += bias_value[i];
        }
        for i in list(&seen_range) {
            let logit = &mut row[seen_token[i] as usize];
            *logit *= if *logit > 0.0 { inverse[n] } else { repetition[n] };
            if seen_count[i] > 0 {
                let product = frequency[n] * seen_count[i] as f32;
                let penalty = product + presence[n];
                *logit -= penalty;
            }
        }
    }
    vec![("logits", Want::ExactButNan(HostTensor::floats(Format::F32, &logits.shape, &values)))]
}

pub(crate) fn apply_token_mask(call: &Call, _: Bound) -> Wants {
    let (logits, masks) = (call.tensor("logits"), call.tensor("masks"));
    let (vocabulary, words, index) = (logits.shape[1], masks.ints(), call.tensor("mask_index").ints());
    let element = |i: usize| {
        let (n, v) = (i / vocabulary, i % vocabulary);
        match usize::try_from(index[n]) {
            Ok(mask) if words[mask * masks.shape[1] + v / 32] >> (v % 32) & 1 == 0 => {
                Element::Bits(f32::NEG_INFINITY.to_bits())
            }
            _ => Element::Kept,
        }
    };
    vec![("logits", Want::Elements((0..logits.len()).map(element).collect()))]
}
