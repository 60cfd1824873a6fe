//! `sparse_attention`: attention of each row over listed cache entries, with a sink; keys and values are the same
//! vectors.
//!
//! Everything is F64 until the end. Scores: the sum over d in the order of [`crate::sum`], times `scale`. Probabilities:
//! [`crate::exp`] of the score minus the exact maximum; their sum in the order of [`crate::sum`] over the list, plus the
//! sink's. Values: the entries in list order, each as a rounded product and a rounded addition, from +0. One division,
//! one rounding to F32, one to BF16 if the output is.

use std::ops::Range;

use deepinfer_plugin_api::generated::SparseAttentionArgs;
use deepinfer_plugin_api::numerics::bf16;
use deepinfer_plugin_api::sdk::tensor::{FloatRowMut, FloatRows, Rows};
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::arguments;
use crate::cache::Pages;
use crate::exp::exp_all;
use crate::parallel;
use crate::simd::{LANES, Lanes, multiversion};
use crate::sum;
use crate::weights::load_columns;

deepinfer_plugin_api::kernel!(SparseAttention, sparse_attention);

/// Rough time per head, entry and channel, in picoseconds.
const COST_PS: usize = 200;

fn sparse_attention(_: &Cx<'_>, mut a: SparseAttentionArgs<'_>) -> Result<(), Fault> {
    let d = a.dims;
    if a.global.is_some() != a.global_slots.is_some() {
        return Err(Fault::invalid("sparse_attention: global and global_slots must be present together"));
    }
    let pages = Pages::new("sparse_attention", "window", &a.window, a.window_format, a.window_entries_per_page, d.d)?;
    let window = Source::new(pages, a.window_slots.rows()?, "window_slots")?;
    let global = match (&a.global, &a.global_slots) {
        (Some(pages), Some(slots)) => {
            let (format, entries) = (a.global_format, a.global_entries_per_page);
            let pages = Pages::new("sparse_attention", "global", pages, format, entries, d.d)?;
            Some(Source::new(pages, slots.rows()?, "global_slots")?)
        }
        _ => None,
    };
    let call = Call {
        heads: d.h,
        dim: d.d,
        q: a.q.floats()?,
        sources: [Some(window), global],
        sink: a.sink.slice()?,
        scale: f64::from(a.scale),
        rounds_probabilities: arguments::switch("sparse_attention", "round_probs", a.round_probs)?,
    };
    let row_ps = d.h * d.d * (d.w + d.k) * COST_PS;
    // Few rows are cut by heads as well, at the price of decoding entries more than once.
    let parts = parallel::pieces(d.t * row_ps / 1000).div_ceil(d.t.max(1)).clamp(1, d.h.max(1));
    let width = d.h.div_ceil(parts).max(1);
    let mut rows = a.out.float_rows_mut()?.into_iter();
    let mut pieces = Vec::with_capacity(d.t * parts);
    for row in 0..d.t {
        for first in (0..d.h).step_by(width) {
            let heads = first..d.h.min(first + width);
            let out = rows.by_ref().take(heads.len()).collect();
            pieces.push(Piece { row, heads, out });
        }
    }
    parallel::for_each_row_with(pieces, row_ps / parts / 1000, Scratch::default, |scratch, _, piece| {
        call.run(piece, scratch);
    });
    Ok(())
}

/// A cache, and the entries of each row in it.
struct Source<'a> {
    pages: Pages<'a>,
    slots: Rows<'a, i32>,
}

impl<'a> Source<'a> {
    fn new(pages: Pages<'a>, slots: Rows<'a, i32>, arg: &str) -> Result<Self, Fault> {
        for row in 0..slots.count() {
            pages.check_slots("sparse_attention", arg, slots.row(row))?;
        }
        Ok(Self { pages, slots })
    }
}

/// The arguments of a call.
struct Call<'a> {
    heads: usize,
    dim: usize,
    q: FloatRows<'a>,
    sources: [Option<Source<'a>>; 2],
    sink: &'a [f32],
    scale: f64,
    rounds_probabilities: bool,
}

/// Some heads of a row.
struct Piece<'a> {
    row: usize,
    heads: Range<usize>,
    /// One row of channels per head.
    out: Vec<FloatRowMut<'a>>,
}

/// Buffers of a piece.
#[derive(Default)]
struct Scratch {
    row: Vec<f32>,
    /// `[heads, dim]`.
    q: Vec<f32>,
    /// `[entries, dim]`.
    entries: Vec<f32>,
    /// `[heads, entries]`: scores, then probabilities.
    probabilities: Vec<f64>,
    /// `[heads]`.
    totals: Vec<f64>,
    /// `[heads, dim]`.
    values: Vec<f64>,
}

impl Call<'_> {
    fn run(&self, mut piece: Piece<'_>, scratch: &mut Scratch) {
        let count = self.load_entries(piece.row, &mut scratch.entries);
        if count == 0 || self.dim == 0 {
            piece.out.iter_mut().for_each(FloatRowMut::zero);
            return;
        }
        scratch.q.resize(piece.heads.len() * self.dim, 0.0);
        for (head, q) in piece.heads.clone().zip(scratch.q.chunks_exact_mut(self.dim)) {
            load_columns(&self.q, piece.row * self.heads + head, 0..self.dim, q, &mut scratch.row);
        }
        scratch.probabilities.resize(piece.heads.len() * count, 0.0);
        sum::products(&scratch.q, &scratch.entries, self.dim, &mut scratch.probabilities);
        scratch.totals.clear();
        for (head, scores) in piece.heads.clone().zip(scratch.probabilities.chunks_exact_mut(count)) {
            scratch.totals.push(self.softmax(scores, f64::from(self.sink[head])));
        }
        scratch.values.resize(piece.heads.len() * self.dim, 0.0);
        weighted_sums(&scratch.probabilities, &scratch.entries, count, self.dim, &mut scratch.values);
        for ((out, values), total) in
            piece.out.iter_mut().zip(scratch.values.chunks_exact(self.dim)).zip(&scratch.totals)
        {
            values.iter().enumerate().for_each(|(channel, value)| out.set(channel, (value / total) as f32));
        }
    }

    /// Decodes the entries of a row in list order; returns how many there are.
    fn load_entries(&self, row: usize, entries: &mut Vec<f32>) -> usize {
        let mut count = 0;
        for source in self.sources.iter().flatten() {
            for slot in source.slots.row(row).iter().filter_map(|&slot| usize::try_from(slot).ok()) {
                let end = (count + 1) * self.dim;
                if entries.len() < end {
                    entries.resize(end, 0.0);
                }
                source.pages.decode(slot, &mut entries[count * self.dim..end]);
                count += 1;
            }
        }
        entries.truncate(count * self.dim);
        count
    }

    /// Turns the products of one head into the probabilities of the value product; returns the sum that divides them.
    fn softmax(&self, scores: &mut [f64], sink: f64) -> f64 {
        scores.iter_mut().for_each(|score| *score *= self.scale);
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        scores.iter_mut().for_each(|score| *score -= max);
        exp_all(scores);
        let total = sum::sum_by(scores.len(), |entry| scores[entry]) + libm::exp(sink - max);
        if self.rounds_probabilities {
            scores.iter_mut().for_each(|p| *p = f64::from(bf16::round(*p as f32)));
        }
        total
    }
}

multiversion! {
    /// `out[h, d]` is the sum over `j` of `p[h, j] * entries[j, d]`, with `h` from the lengths.
    fn weighted_sums / weighted_sums_at(p: &[f64], entries: &[f32], count: usize, dim: usize, out: &mut [f64]) =
        weighted_sums_body
}

#[inline(always)]
fn weighted_sums_body<V: Lanes>(p: &[f64], entries: &[f32], count: usize, dim: usize, out: &mut [f64]) {
    let heads = out.len() / dim;
    assert!(p.len() == heads * count && entries.len() == count * dim && out.len() == heads * dim);
    let whole = dim - dim % LANES;
    let mut head = 0;
    // Sums of several heads at once: an entry is widened once for all of them.
    while head + 4 <= heads {
        for channel in (0..whole).step_by(LANES) {
            channels::<V, 4>(p, entries, count, dim, head, channel, out);
        }
        head += 4;
    }
    for head in head..heads {
        for channel in (0..whole).step_by(LANES) {
            channels::<V, 1>(p, entries, count, dim, head, channel, out);
        }
    }
    for head in 0..heads {
        for channel in whole..dim {
            let mut sum = 0.0;
            for (entry, p) in entries.chunks_exact(dim).zip(&p[head * count..][..count]) {
                sum += p * f64::from(entry[channel]);
            }
            out[head * dim + channel] = sum;
        }
    }
}

/// Eight channels of `H` heads. Plain loops: a closure would hide the vectors from the optimiser.
#[inline(always)]
fn channels<V: Lanes, const H: usize>(
    p: &[f64],
    entries: &[f32],
    count: usize,
    dim: usize,
    head: usize,
    channel: usize,
    out: &mut [f64],
) {
    let rows: [&[f64]; H] = std::array::from_fn(|h| &p[(head + h) * count..][..count]);
    let mut sums = [V::splat(0.0); H];
    for j in 0..count {
        let chunk = entries[j * dim + channel..].first_chunk().expect("eight channels of an entry");
        let entry = V::widen(chunk);
        for (sum, p) in sums.iter_mut().zip(rows) {
            *sum = sum.add(V::splat(p[j]).mul(entry));
        }
    }
    for (h, sum) in sums.iter().enumerate() {
        out[(head + h) * dim + channel..][..LANES].copy_from_slice(&sum.to_array());
    }
}
