//! Oracles of the paged caches and of the compressor.

use crate::bound::Bound;
use crate::cache_entries::CacheEntries;
use crate::call::Call;
use crate::tensor::HostTensor;
use crate::want::{Element, Want, Wants};

pub(crate) fn store_kv_cache(call: &Call, _: Bound) -> Wants {
    let (kv, slots, mut cache) = (call.tensor("kv"), call.tensor("slots").ints(), call.tensor("cache").clone());
    let (dim, values) = (kv.shape[1], kv.values());
    let entries = CacheEntries::new(call.size("format"), call.size("entries_per_page"), dim, cache.shape[1]);
    let alone = entries.alone();
    let mut rounded = Vec::new();
    for (t, &slot) in slots.iter().enumerate() {
        let row = &values[t * dim..][..dim];
        if let Ok(slot) = usize::try_from(slot) {
            entries.write(&mut cache.codes, slot, row);
        }
        let mut entry = vec![0; alone.entry_bytes()];
        alone.write(&mut entry, 0, row);
        rounded.extend(alone.read(&entry, 0));
    }
    let mut wants = vec![("cache", Want::Exact(cache))];
    if let Some(out) = call.optional("rounded") {
        wants.push(("rounded", Want::ExactButNan(HostTensor::floats(out.format, &out.shape, &rounded))));
    }
    wants
}

pub(crate) fn load_paged_kv_cache(call: &Call, _: Bound) -> Wants {
    let (cache, out) = (call.tensor("cache"), call.tensor("out"));
    let dim = out.shape[1];
    let entries = CacheEntries::new(call.size("format"), call.size("entries_per_page"), dim, cache.shape[1]);
    let row = |&slot: &i64| match usize::try_from(slot) {
        Ok(slot) => entries.read(&cache.codes, slot),
        Err(_) => vec![0.0; dim],
    };
    let values: Vec<f32> = call.tensor("slots").ints().iter().flat_map(row).collect();
    vec![("out", Want::ExactButNan(HostTensor::floats(out.format, &out.shape, &values)))]
}

pub(crate) fn convert_kv_index(call: &Call, _: Bound) -> Wants {
    let (positions, request) = (call.tensor("positions"), call.tensor("row_request").ints());
    let (table, pages, entries) =
        (call.tensor("block_table").ints(), call.dim("block_table", 1), call.size("entries_per_page") as i64);
    let slots = positions.ints().into_iter().enumerate().map(|(i, p)| {
        let q = request[i / positions.shape[1]] as usize;
        if p < 0 { -1 } else { table[q * pages + (p / entries) as usize] * entries + p % entries }
    });
    vec![("slots", Want::Elements(slots.map(Element::Int).collect()))]
}

pub(crate) fn compress_and_update_state(call: &Call, bound: Bound) -> Wants {
    let (latent, score, state) = (call.tensor("latent"), call.tensor("score"), call.tensor("state"));
    let (dim, ring, ratio) = (latent.shape[1], state.shape[1], call.size("ratio"));
    let positions = call.tensor("positions").ints();
    let (start, slot) = (call.tensor("request_start").ints(), call.tensor("state_slot").ints());
    let request = call.tensor("row_request").ints();
    let (latents, scores, kept) = (latent.wide(), score.wide(), state.wide());
    let ring_row = |q: usize, p: i64| ((slot[q] as usize * ring) + p as usize % ring) * 2;

    let mut out = Vec::new();
    for last in call.tensor("group_row").ints() {
        let q = request[last as usize] as usize;
        let end = positions[last as usize];
        let members: Vec<(&[f64], &[f64])> = (end - ratio as i64 + 1..=end)
            .map(|p| match (start[q]..start[q + 1]).find(|&t| positions[t as usize] == p) {
                Some(t) => (&scores[t as usize * dim..][..dim], &latents[t as usize * dim..][..dim]),
                None => {
                    let row = ring_row(q, p);
                    (&kept[row * dim..][..dim], &kept[(row + 1) * dim..][..dim])
                }
            })
            .collect();
        for d in 0..dim {
            let largest = members.iter().map(|m| m.0[d]).fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = members.iter().map(|m| (m.0[d] - largest).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let products = || weights.iter().zip(&members).map(|(w, m)| w / sum * m.1[d]);
            let spread = members.iter().map(|m| (m.0[d] - largest).abs()).fold(0.0, f64::max);
            let magnitude: f64 = products().map(f64::abs).sum();
            // Every weight counts twice: in its product, and in the sum of weights.
            let slack = bound.sum_error(magnitude) + 2.0 * (bound.relative() + spread * bound.unit()) * magnitude;
            out.push(Element::Near { value: products().sum(), slack });
        }
    }

    let mut after = state.clone();
    for q in 0..slot.len() {
        for t in start[q].max(start[q + 1] - ring as i64)..start[q + 1] {
            let row = ring_row(q, positions[t as usize]);
            for d in 0..dim {
                after.set_element(row * dim + d, score.element(t as usize * dim + d));
                after.set_element((row + 1) * dim + d, latent.element(t as usize * dim + d));
            }
        }
    }
    vec![("out", Want::Elements(out)), ("state", Want::Exact(after))]
}
