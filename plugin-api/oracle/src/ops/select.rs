//! Oracles of the choice of cache entries, and of the attention over them.

use deepinfer_plugin_api::Format;

use crate::bound::Bound;
use crate::cache_entries::CacheEntries;
use crate::call::Call;
use crate::formats;
use crate::rows::rows;
use crate::want::{Element, Want, Wants};

pub(crate) fn index_scores(call: &Call, bound: Bound) -> Wants {
    let (q, head_weight, keys) = (call.tensor("q"), call.tensor("head_weight"), call.tensor("keys"));
    let heads = head_weight.shape[1];
    let dim = q.shape[1] / heads;
    let entries = CacheEntries::new(call.size("format"), call.size("entries_per_page"), dim, keys.shape[1]);
    let per_page = call.size("entries_per_page");
    let (table, pages) = (call.tensor("block_table").ints(), call.dim("block_table", 1));
    let (request, visible) = (call.tensor("row_request").ints(), call.tensor("visible").ints());
    let scale = call.real("scale") as f32;
    let queries = q.wide();
    let weights: Vec<f64> = head_weight
        .values()
        .iter()
        .map(|&w| if head_weight.format == Format::Bf16 { formats::bf16(w * scale) } else { w * scale })
        .map(f64::from)
        .collect();
    let columns = call.dim("out", 1);
    let candidates = call.optional("candidates").map(|c| (c.ints(), c.shape[1], call.size("block_size")));
    let out = rows(q.shape[0], columns * heads * dim, |t| {
        let score = |c: usize| {
            let entry = match &candidates {
                None => Some(c),
                Some((blocks, count, size)) => {
                    let block = blocks[t * count + c / size];
                    usize::try_from(block).ok().map(|block| block * size + c % size)
                }
            };
            let Some(e) = entry.filter(|&e| (e as i64) < visible[t]) else {
                return Element::Near { value: f64::NEG_INFINITY, slack: 0.0 };
            };
            let page = table[request[t] as usize * pages + e / per_page] as usize;
            let key = entries.read_wide(&keys.codes, page * per_page + e % per_page);
            let (mut score, mut magnitude) = (0.0, 0.0);
            for h in 0..heads {
                let query = &queries[(t * heads + h) * dim..][..dim];
                let products = || query.iter().zip(&key).map(|(q, k)| q * k);
                let dot: f64 = products().sum();
                // Not `max`, which would drop a NaN.
                score += weights[t * heads + h] * if dot < 0.0 { 0.0 } else { dot };
                magnitude += weights[t * heads + h].abs() * products().map(f64::abs).sum::<f64>();
            }
            bound.sum(score, magnitude)
        };
        (0..columns).map(score).collect()
    });
    vec![("out", Want::Elements(out))]
}

pub(crate) fn candidate_block_max(call: &Call, _: Bound) -> Wants {
    let (scores, visible, size) = (call.tensor("scores"), call.tensor("visible").ints(), call.size("block_size"));
    let (columns, values) = (scores.shape[1], scores.values());
    let mut out = Vec::new();
    for (t, &visible) in visible.iter().enumerate() {
        for block in 0..columns.div_ceil(size) {
            let end = columns.min((block + 1) * size);
            let seen = (block * size..end).filter(|&c| (c as i64) < visible);
            let best = seen.map(|c| values[t * columns + c]).filter(|s| !s.is_nan()).fold(f32::NEG_INFINITY, f32::max);
            let is_newest = visible >= 1 && (visible - 1) as usize / size == block;
            let value = if is_newest { f64::INFINITY } else { f64::from(best) };
            // No tolerance, but +0 and -0 are both the largest of the two.
            out.push(if value == 0.0 {
                Element::Near { value, slack: 0.0 }
            } else {
                Element::Bits((value as f32).to_bits())
            });
        }
    }
    vec![("out", Want::Elements(out))]
}

pub(crate) fn topk_select(call: &Call, _: Bound) -> Wants {
    let (scores, k) = (call.tensor("scores"), call.dim("out", 1));
    let columns = scores.shape[1];
    let values = scores.values();
    let mut out = Vec::new();
    for t in 0..scores.shape[0] {
        let row = &values[t * columns..][..columns];
        let mut order: Vec<usize> = (0..columns).filter(|&c| row[c] > f32::NEG_INFINITY).collect();
        // The sort is stable: of equal scores the lower column stays first.
        order.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).expect("no NaN is above -infinity"));
        order.truncate(k);
        order.sort_unstable();
        out.extend(order.iter().map(|&c| Element::Int(c as i64)));
        out.extend(std::iter::repeat_n(Element::Int(-1), k - order.len()));
    }
    vec![("out", Want::Elements(out))]
}

pub(crate) fn restore_candidate_indices_inplace(call: &Call, _: Bound) -> Wants {
    let (columns, candidates) = (call.tensor("columns"), call.tensor("candidates"));
    let (size, listed, blocks) = (call.size("block_size") as i64, candidates.shape[1], candidates.ints());
    let entry = |(i, c): (usize, i64)| {
        let row = &blocks[i / columns.shape[1] * listed..][..listed];
        match row.get(usize::try_from(c).map_or(usize::MAX, |c| c / size as usize)) {
            Some(&block) if block >= 0 => block * size + c % size,
            _ => -1,
        }
    };
    let out = columns.ints().into_iter().enumerate().map(entry).map(Element::Int).collect();
    vec![("columns", Want::Elements(out))]
}

pub(crate) fn sparse_attention(call: &Call, bound: Bound) -> Wants {
    let q = call.tensor("q");
    let (heads, dim, queries) = (q.shape[1], q.shape[2], q.wide());
    let (sink, scale, rounds) = (call.tensor("sink").wide(), call.real("scale"), call.size("round_probs") == 1);
    let mut sources = vec![(
        call.tensor("window"),
        call.tensor("window_slots"),
        call.size("window_format"),
        call.size("window_entries_per_page"),
    )];
    if let Some(global) = call.optional("global") {
        let slots = call.tensor("global_slots");
        sources.push((global, slots, call.size("global_format"), call.size("global_entries_per_page")));
    }
    let lists: Vec<Vec<i64>> = sources.iter().map(|(_, slots, ..)| slots.ints()).collect();
    let listed: usize = sources.iter().map(|(_, slots, ..)| slots.shape[1]).sum();
    let out = rows(q.shape[0], 2 * heads * listed * dim, |t| {
        let (mut entries, mut out) = (Vec::new(), Vec::new());
        for ((cache, slots, format, per_page), list) in sources.iter().zip(&lists) {
            let place = CacheEntries::new(*format, *per_page, dim, cache.shape[1]);
            let listed = slots.shape[1];
            for &slot in list[t * listed..][..listed].iter().filter(|&&slot| slot >= 0) {
                entries.push(place.read_wide(&cache.codes, slot as usize));
            }
        }
        for h in 0..heads {
            let query = &queries[(t * heads + h) * dim..][..dim];
            attend(bound, query, &entries, (sink[h], scale, rounds), &mut out);
        }
        out
    });
    vec![("out", Want::Elements(out))]
}

/// One row and head. The error of a probability is that of its score; where it may round to either of two BF16 values,
/// their difference is allowed.
fn attend(
    bound: Bound,
    query: &[f64],
    entries: &[Vec<f64>],
    (sink, scale, rounds): (f64, f64, bool),
    out: &mut Vec<Element>,
) {
    if entries.is_empty() {
        out.extend(query.iter().map(|_| Element::Near { value: 0.0, slack: 0.0 }));
        return;
    }
    let products = |kv: &Vec<f64>| -> Vec<f64> { query.iter().zip(kv).map(|(q, k)| scale * q * k).collect() };
    let scores: Vec<f64> = entries.iter().map(|kv| products(kv).iter().sum()).collect();
    let magnitude = entries.iter().map(|kv| products(kv).iter().map(|p| p.abs()).sum::<f64>()).fold(0.0, f64::max);
    let score_error = bound.sum_error(magnitude);
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // Of a probability: the scores and the largest of them, their difference, and the exponential.
    let error = |s: f64| 2.0 * score_error + bound.relative() + (s - largest).abs() * bound.unit();

    let probabilities: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
    let sum = probabilities.iter().sum::<f64>() + (sink - largest).exp();
    let rounded = |p: f64| if rounds { f64::from(formats::bf16(p as f32)) } else { p };
    let weights: Vec<(f64, f64)> = scores
        .iter()
        .zip(&probabilities)
        .map(|(s, &p)| {
            let flip = (rounded(p * (1.0 + error(*s))) - rounded(p * (1.0 - error(*s)))).abs();
            (rounded(p), flip.max(p * error(*s)))
        })
        .collect();
    let worst = scores.iter().map(|&s| error(s)).fold(error(sink), f64::max);
    for d in 0..query.len() {
        let column = || weights.iter().zip(entries).map(|(w, kv)| (w, kv[d]));
        let value = column().map(|(w, v)| w.0 * v).sum::<f64>() / sum;
        let total: f64 = column().map(|(w, v)| (w.0 * v).abs()).sum();
        let moved: f64 = column().map(|(w, v)| w.1 * v.abs()).sum();
        let roundings = bound.sum_error_of(entries.len() + 4, 1.0) + worst;
        out.push(Element::Near { value, slack: (moved + total * roundings) / sum });
    }
}
