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
const COST_PS: usize = 250;

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

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::generated::SparseAttention;

    use super::*;
    use crate::cache::Layout;
    use crate::golden::{Golden, assert_close};
    use crate::random;
    use crate::simd::Level;
    use crate::testing::{Tensor, call};

    /// Pages of random entries, and the entries as a reader sees them.
    fn cache(format: u32, pages: usize, per_page: usize, dim: usize) -> (Tensor, Vec<f32>) {
        let bytes = per_page * dim * 4;
        let layout = Layout::new("test", "cache", format, per_page as u32, dim, bytes).unwrap();
        let (mut cache, mut values) = (vec![0xFF; pages * bytes], vec![0.0; pages * per_page * dim]);
        for slot in 0..pages * per_page {
            let page = &mut cache[slot / per_page * bytes..][..bytes];
            layout.encode_entry(page, slot % per_page, &random::floats(slot as u64 + 50, dim));
            layout.decode_entry(page, slot % per_page, &mut values[slot * dim..][..dim]);
        }
        (Tensor::u8(&[pages, bytes], &cache), values)
    }

    struct Case {
        heads: usize,
        dim: usize,
        q: Tensor,
        out: Format,
        window: (Tensor, Vec<f32>),
        window_slots: Vec<i32>,
        global: Option<(Tensor, Vec<f32>)>,
        global_slots: Option<Vec<i32>>,
        sink: Vec<f32>,
        round_probs: u32,
    }

    const ROWS: usize = 5;
    const PER_PAGE: u32 = 4;
    const SCALE: f32 = 0.3;

    impl Case {
        fn new(q_format: Format, heads: usize, dim: usize) -> Self {
            let slots = |seed, count, below: u32| -> Vec<i32> {
                random::indices(seed, ROWS * count, below + 2).into_iter().map(|slot| slot - 2).collect()
            };
            Self {
                heads,
                dim,
                q: Tensor::floating(q_format, &[ROWS, heads, dim], &random::floats(1, ROWS * heads * dim)),
                out: q_format,
                window: cache(2, 3, PER_PAGE as usize, dim),
                window_slots: slots(2, 6, 12),
                global: Some(cache(3, 5, PER_PAGE as usize, dim)),
                global_slots: Some(slots(3, 9, 20)),
                sink: random::floats(4, heads),
                round_probs: 0,
            }
        }

        fn run(&self) -> Result<Vec<f32>, String> {
            let rows = self.window_slots.len() / 6;
            let window_slots = Tensor::i32(&[rows, 6], &self.window_slots);
            let global_slots = self.global_slots.as_ref().map(|slots| Tensor::i32(&[rows, 9], slots));
            let sink = Tensor::f32(&[self.heads], &self.sink);
            let mut out = Tensor::unwritten(self.out, &[rows, self.heads, self.dim]);
            call::<SparseAttention>(|a| {
                (a.q, a.sink, a.scale, a.round_probs) = (self.q.input(), sink.input(), SCALE, self.round_probs);
                (a.window, a.window_format, a.window_entries_per_page) = (self.window.0.input(), 2, PER_PAGE);
                a.window_slots = window_slots.input();
                if let Some(global) = &self.global {
                    (a.global, a.global_format, a.global_entries_per_page) = (global.0.input(), 3, PER_PAGE);
                }
                if let Some(slots) = &global_slots {
                    a.global_slots = slots.input();
                }
                a.out = out.output();
            })?;
            Ok(out.floats())
        }

        /// One head of one row from the definition, in F64 with the exponential of `libm`.
        fn expected<'a>(&'a self, row: usize, head: usize) -> Vec<f64> {
            let mut entries: Vec<&[f32]> = Vec::new();
            let mut list = |slots: &[i32], values: &'a [f32]| {
                for slot in slots.iter().filter_map(|&slot| usize::try_from(slot).ok()) {
                    entries.push(&values[slot * self.dim..][..self.dim]);
                }
            };
            list(&self.window_slots[row * 6..][..6], &self.window.1);
            if let (Some(slots), Some(global)) = (&self.global_slots, &self.global) {
                list(&slots[row * 9..][..9], &global.1);
            }
            let q = self.q.floats();
            let q = &q[(row * self.heads + head) * self.dim..][..self.dim];
            let score = |kv: &&[f32]| -> f64 {
                f64::from(SCALE) * q.iter().zip(*kv).map(|(q, kv)| f64::from(*q) * f64::from(*kv)).sum::<f64>()
            };
            let scores: Vec<f64> = entries.iter().map(score).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let p: Vec<f64> = scores.iter().map(|s| libm::exp(s - max)).collect();
            let total = p.iter().sum::<f64>() + libm::exp(f64::from(self.sink[head]) - max);
            let weight = |p: f64| if self.round_probs == 1 { f64::from(bf16::round(p as f32)) } else { p };
            (0..self.dim)
                .map(|d| p.iter().zip(&entries).map(|(&p, kv)| weight(p) * f64::from(kv[d])).sum::<f64>() / total)
                .collect()
        }

        #[track_caller]
        fn check(&self) {
            let out = self.run().unwrap();
            // Half a unit in the last place of the output, and nothing that F64 would show.
            let half = if self.out == Format::Bf16 { 1.0 / 256.0 } else { 1.0 / 16_777_216.0 };
            for (index, out) in out.chunks(self.dim).enumerate() {
                for (out, expected) in out.iter().zip(self.expected(index / self.heads, index % self.heads)) {
                    let error = (f64::from(*out) - expected).abs();
                    assert!(error <= expected.abs() * half * 1.001 + 1e-12, "{out} instead of {expected}");
                }
            }
        }
    }

    #[test]
    fn golden() {
        let file = Golden::open("sparse_attention");
        let (kv, indices) = (file.f32("kv"), file.i32("indices"));
        // Two batches of 30 entries become two pages; page 0 of each source is the batch's own.
        let cache = Tensor::u8(&[2, 30 * 256], &kv.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
        let slots: Vec<i32> = indices
            .iter()
            .enumerate()
            .map(|(i, &slot)| if slot < 0 { -1 } else { slot + (i / 60) as i32 * 30 })
            .collect();
        // Half of each list as the window, half as the global cache.
        let half = |from: usize| slots.chunks(12).flat_map(|row| row[from..from + 6].to_vec()).collect::<Vec<_>>();
        let (window_slots, global_slots) = (Tensor::i32(&[10, 6], &half(0)), Tensor::i32(&[10, 6], &half(6)));
        let q = Tensor::f32(&[10, 4, 64], &file.f32("q"));
        let sink = Tensor::f32(&[4], &file.f32("sink"));
        let mut out = Tensor::unwritten(Format::F32, &[10, 4, 64]);
        call::<SparseAttention>(|a| {
            (a.q, a.sink, a.scale, a.out) = (q.input(), sink.input(), 0.125, out.output());
            (a.window, a.window_entries_per_page, a.window_slots) = (cache.input(), 30, window_slots.input());
            (a.global, a.global_entries_per_page, a.global_slots) = (cache.input(), 30, global_slots.input());
        })
        .unwrap();
        assert_close(&out.floats(), &file.f32("out"), 1e-5, 0.0);
    }

    #[test]
    fn every_shape_against_the_definition() {
        for (heads, dim) in [(8, 64), (5, 32), (1, 96)] {
            for q_format in [Format::F32, Format::Bf16] {
                for round_probs in [0, 1] {
                    let mut case = Case::new(q_format, heads, dim);
                    case.round_probs = round_probs;
                    case.check();
                    (case.global, case.global_slots) = (None, None);
                    case.check();
                }
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_company() {
        let mut case = Case::new(Format::F32, 8, 64);
        let together = case.run().unwrap();
        let (q, window, global) = (case.q.floats(), case.window_slots.clone(), case.global_slots.clone().unwrap());
        for row in 0..ROWS {
            case.q = Tensor::f32(&[1, 8, 64], &q[row * 512..][..512]);
            case.window_slots = window[row * 6..][..6].to_vec();
            case.global_slots = Some(global[row * 9..][..9].to_vec());
            assert_eq!(case.run().unwrap(), together[row * 512..][..512]);
        }
    }

    #[test]
    fn a_row_without_entries_gives_zeros_and_a_nan_stays_in_its_head() {
        let mut case = Case::new(Format::F32, 2, 32);
        case.window_slots[6..12].fill(-1);
        case.global_slots.as_mut().unwrap()[9..18].fill(-7);
        let mut q = case.q.floats();
        // Row 3, head 1.
        q[(3 * 2 + 1) * 32 + 5] = f32::NAN;
        case.q = Tensor::f32(&[ROWS, 2, 32], &q);
        for (head, out) in case.run().unwrap().chunks(32).enumerate() {
            assert_eq!(out.iter().all(|v| v.is_nan()), head == 7, "head {head}");
            assert_eq!(out.iter().all(|v| *v == 0.0), head / 2 == 1, "head {head}");
        }
    }

    /// A sink that outweighs every entry beyond the range of the exponential leaves nothing, not NaN.
    #[test]
    fn extreme_sinks() {
        let mut case = Case::new(Format::F32, 2, 32);
        case.sink = vec![1e30, f32::NEG_INFINITY];
        let out = case.run().unwrap();
        assert!(out.chunks(32).step_by(2).flatten().all(|v| *v == 0.0));
        case.check();
    }

    #[test]
    fn no_rows() {
        let mut case = Case::new(Format::F32, 2, 32);
        case.q = Tensor::f32(&[0, 2, 32], &[]);
        (case.window_slots, case.global_slots) = (vec![], Some(vec![]));
        assert!(case.run().unwrap().is_empty());
    }

    #[test]
    fn refusals() {
        let case = |change: &dyn Fn(&mut Case)| {
            let mut case = Case::new(Format::F32, 2, 32);
            change(&mut case);
            case.run().unwrap_err()
        };
        assert_eq!(
            case(&|c| c.window_slots[3] = 12),
            "sparse_attention: window_slots holds slot 12, but the cache has 12 entries"
        );
        assert_eq!(
            case(&|c| c.global_slots.as_mut().unwrap()[0] = i32::MAX),
            "sparse_attention: global_slots holds slot 2147483647, but the cache has 20 entries"
        );
        assert_eq!(
            case(&|c| c.global_slots = None),
            "sparse_attention: global and global_slots must be present together"
        );
        assert_eq!(case(&|c| c.round_probs = 2), "sparse_attention: round_probs is 2, but must be 0 or 1");
    }

    #[test]
    fn every_vector_width_gives_the_same_bits() {
        for (heads, dim, count) in [(4, 64, 33), (7, 20, 5), (1, 8, 1), (2, 3, 4)] {
            let p: Vec<f64> = random::floats(1, heads * count).into_iter().map(|v| f64::from(v).exp2()).collect();
            let entries = random::floats(2, count * dim);
            for &level in Level::available() {
                let mut out = vec![f64::NAN; heads * dim];
                weighted_sums_at(level, &p, &entries, count, dim, &mut out);
                for (at, &value) in out.iter().enumerate() {
                    let term = |j: usize| p[at / dim * count + j] * f64::from(entries[j * dim + at % dim]);
                    let expected = (0..count).fold(0.0, |sum, j| sum + term(j));
                    assert_eq!(value.to_bits(), expected.to_bits(), "{level:?}, {heads} x {dim}, element {at}");
                }
            }
        }
    }
}
