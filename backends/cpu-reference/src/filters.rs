//! The filters of `fused_sample`: which tokens of a row min_p, top_k and top_p leave.
//!
//! All three keep the beginning of one list, the tokens by descending score and ascending id, so what they leave is one key of
//! that [`order`]: the last one that stays. The vocabulary is never sorted. The largest logit of each block of columns is found
//! first, in the pass that looks for NaN; a block whose largest score lies beyond the cut is not visited again.
//!
//! top_k: the k-th best of the blocks' best scores cannot be better than the k-th best score, so only scores up to it are
//! candidates; a selection among those finds the last one. top_p: weights are summed in bands of the distance to the largest
//! score; the band in which the sum is reached holds the last token, and a selection by halves finds it.

use deepinfer_plugin_api::numerics::fixed_exp::{fixed, weight, weight_of_fixed};
use deepinfer_plugin_api::numerics::sampling::mass_needed;

use crate::order::{key, score};

/// Columns of a block.
pub(crate) const BLOCK: usize = 64;

/// Bands of the distance to the largest score: 64 to a unit, up to 32.
const BANDS: usize = 1 << 11;
/// Bits of a distance within its band.
const BAND_SHIFT: u32 = 32 - BANDS.trailing_zeros();

/// The last key that stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cut(u64);

impl Cut {
    /// Every token stays.
    pub(crate) const NONE: Cut = Cut(u64::MAX);

    /// Whether a token stays.
    #[inline]
    pub(crate) fn keeps(self, score: f32, token: usize) -> bool {
        self == Cut::NONE || key(score, token) <= self.0
    }
}

/// Memory that rows use one after the other.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The largest logit of each block.
    largest: Vec<f32>,
    work: Work,
}

/// Memory of the filters.
#[derive(Default)]
pub(crate) struct Work {
    keys: Vec<u64>,
    bands: Vec<u64>,
}

/// The logits of a row from which a token can be drawn, with the largest of each block.
pub(crate) struct Row<'a> {
    logits: &'a [f32],
    blocks: &'a [f32],
    /// The largest logit.
    largest: f32,
}

impl<'a> Row<'a> {
    /// Looks at a row; `None` if it holds a NaN or +infinity, or no finite logit.
    pub(crate) fn new(logits: &'a [f32], scratch: &'a mut Scratch) -> Option<(Self, &'a mut Work)> {
        let Scratch { largest: blocks, work } = scratch;
        blocks.clear();
        let mut is_bad = false;
        blocks.extend(logits.chunks(BLOCK).map(|block| {
            // Both loops have no branch, so that they become vector instructions.
            is_bad |= block.iter().fold(false, |bad, &logit| bad | logit.is_nan() | (logit == f32::INFINITY));
            block.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a })
        }));
        let largest = blocks.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
        let can_draw = !is_bad && largest > f32::NEG_INFINITY;
        can_draw.then_some((Self { logits, blocks, largest }, work))
    }

    /// The lowest token of the largest logit.
    pub(crate) fn argmax(&self) -> usize {
        let block = self.blocks.iter().position(|&largest| largest == self.largest).expect("one block has it");
        let first = block * BLOCK;
        let within = self.logits[first..].iter().position(|&logit| logit == self.largest);
        first + within.expect("the block has it")
    }

    /// The largest score: rounding a product with a positive factor does not change the order.
    fn top(&self, scale: f32) -> f32 {
        self.largest * scale
    }

    /// The blocks that hold candidates up to a cut: first token, logits, and largest score.
    #[inline]
    pub(crate) fn blocks(&self, scale: f32, cut: Cut) -> impl Iterator<Item = (usize, &'a [f32], f32)> {
        let blocks = self.logits.chunks(BLOCK).zip(self.blocks).enumerate();
        let candidates = blocks.filter(|(_, (_, largest))| **largest > f32::NEG_INFINITY);
        let scored = candidates.map(move |(b, (logits, largest))| (b * BLOCK, logits, largest * scale));
        scored.filter(move |&(first, _, top)| cut.keeps(top, first))
    }

    /// Calls `f` with score and token of every candidate up to a cut.
    #[inline]
    fn for_each(&self, scale: f32, cut: Cut, mut f: impl FnMut(f32, usize)) {
        for (first, logits, _) in self.blocks(scale, cut) {
            for (token, &logit) in (first..).zip(logits) {
                let score = logit * scale;
                if logit > f32::NEG_INFINITY && cut.keeps(score, token) {
                    f(score, token);
                }
            }
        }
    }

    /// Keeps the scores that are not below the sum of the largest and `min_p_log`.
    pub(crate) fn min_p(&self, scale: f32, min_p_log: f32) -> Cut {
        match min_p_log {
            f32::NEG_INFINITY => Cut::NONE,
            _ => Cut(key(self.top(scale) + min_p_log, u32::MAX as usize)),
        }
    }

    /// Keeps the first `k` of what `cut` keeps.
    pub(crate) fn top_k(&self, scale: f32, k: usize, cut: Cut, work: &mut Work) -> Cut {
        let keys = &mut work.keys;
        keys.clear();
        // A block's best key is at most that of its largest score in its last column.
        keys.extend(self.blocks(scale, cut).map(|(first, logits, top)| key(top, first + logits.len() - 1)));
        let bound = if k <= keys.len() { Cut(*keys.select_nth_unstable(k - 1).1) } else { Cut::NONE };
        let candidates = Cut(bound.0.min(cut.0));
        keys.clear();
        self.for_each(scale, candidates, |score, token| keys.push(key(score, token)));
        if keys.len() < k { cut } else { Cut(*keys.select_nth_unstable(k - 1).1) }
    }

    /// Keeps the shortest beginning of what `cut` keeps that has the share `top_p` of its weight.
    pub(crate) fn top_p(&self, scale: f32, top_p: f32, cut: Cut, work: &mut Work) -> Cut {
        let top = self.top(scale);
        let bands = &mut work.bands;
        bands.clear();
        bands.resize(BANDS, 0);
        self.for_each(scale, cut, |score, _| {
            if let Some(distance) = fixed(top - score) {
                bands[(distance >> BAND_SHIFT) as usize] += weight_of_fixed(distance);
            }
        });
        let mut needed = mass_needed(bands.iter().sum(), top_p);
        let mut band = 0;
        while bands[band] < needed {
            needed -= bands[band];
            band += 1;
        }
        let keys = &mut work.keys;
        keys.clear();
        self.for_each(scale, cut, |score, token| {
            if fixed(top - score).is_some_and(|distance| (distance >> BAND_SHIFT) as usize == band) {
                keys.push(key(score, token));
            }
        });
        Cut(last_of_mass(keys, needed, |key| weight(top - score(key))))
    }
}

/// The last of the smallest keys whose weights sum to at least `needed`, which all keys together do.
fn last_of_mass(mut keys: &mut [u64], mut needed: u64, weight: impl Fn(u64) -> u64) -> u64 {
    while keys.len() > 1 {
        let half = keys.len() / 2;
        keys.select_nth_unstable(half);
        let (smaller, larger) = keys.split_at_mut(half);
        let mass: u64 = smaller.iter().map(|&key| weight(key)).sum();
        keys = if mass >= needed {
            smaller
        } else {
            needed -= mass;
            larger
        };
    }
    keys[0]
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::numerics::sampling::Draw;

    use super::*;
    use crate::random;

    /// The tokens that the filters leave, by id.
    fn kept(logits: &[f32], draw: &Draw, scratch: &mut Scratch) -> Vec<u32> {
        let (row, work) = Row::new(logits, scratch).unwrap();
        let scale = draw.inv_temperature;
        let mut cut = row.min_p(scale, draw.min_p_log);
        if draw.top_k > 0 {
            cut = row.top_k(scale, draw.top_k as usize, cut, work);
        }
        if draw.top_p < 1.0 {
            cut = row.top_p(scale, draw.top_p, cut, work);
        }
        let mut tokens = Vec::new();
        row.for_each(scale, cut, |_, token| tokens.push(token as u32));
        tokens
    }

    fn check(logits: &[f32], draw: &Draw, scratch: &mut Scratch) {
        let mut order = vec![0; logits.len()];
        let mut wanted = draw.survivors(logits, &mut order).to_vec();
        wanted.sort_unstable();
        assert_eq!(kept(logits, draw, scratch), wanted, "{draw:?} of {} logits", logits.len());
    }

    /// Contents with and without ties, banned tokens and overflow; scratch that the row before left.
    #[test]
    fn the_tokens_left_are_those_of_the_definition() {
        let mut scratch = Scratch::default();
        for (seed, len) in [(1, 1), (2, 63), (3, 64), (4, 65), (5, 1000), (6, 4096)] {
            let plain = random::floats(seed, len);
            let ties: Vec<f32> = plain.iter().map(|v| (v * 2.0).round()).collect();
            let mut banned = plain.clone();
            banned.iter_mut().step_by(3).for_each(|v| *v = f32::NEG_INFINITY);
            banned[len / 2] = 1.0;
            let huge: Vec<f32> = plain.iter().map(|v| v * 1e30).collect();
            let low = vec![-1e30; len];
            for logits in [plain.clone(), ties, banned, huge, low, vec![0.0; len], vec![-0.0; len]] {
                for inv_temperature in [1.0, 0.25, 8.0, 1e30, 1e-30] {
                    for (min_p_log, top_k, top_p) in [
                        (-1.0, 0, 1.0),
                        (f32::NEG_INFINITY, 1, 1.0),
                        (f32::NEG_INFINITY, 40, 1.0),
                        (f32::NEG_INFINITY, 5000, 1.0),
                        (f32::NEG_INFINITY, 0, 0.9),
                        (f32::NEG_INFINITY, 0, 1.0 - f32::EPSILON / 2.0),
                        (f32::NEG_INFINITY, 0, f32::from_bits(1)),
                        (-0.0, 0, 0.5),
                        (-3.0, 70, 0.7),
                    ] {
                        let plain = Draw::unfiltered(inv_temperature, 0, 0);
                        check(&logits, &Draw { min_p_log, top_k, top_p, ..plain }, &mut scratch);
                    }
                }
            }
        }
    }

    #[test]
    fn exactly_k_stay() {
        let mut scratch = Scratch::default();
        let logits: Vec<f32> = random::floats(7, 2000).iter().map(|v| v.round()).collect();
        for top_k in (1..2000).step_by(37) {
            let draw = Draw { top_k, ..Draw::unfiltered(1.0, 0, 0) };
            assert_eq!(kept(&logits, &draw, &mut scratch).len(), top_k as usize);
        }
    }

    #[test]
    fn halves_find_the_last_key_of_a_mass() {
        let weights = [5u64, 0, 3, 1, 0, 7];
        for needed in 1..=16 {
            let sums = (1..=weights.len()).map(|count| weights[..count].iter().sum::<u64>());
            let wanted = sums.take_while(|&sum| sum < needed).count();
            let mut keys = [3, 0, 5, 1, 4, 2];
            assert_eq!(last_of_mass(&mut keys, needed, |key| weights[key as usize]), wanted as u64, "{needed}");
        }
    }
}
