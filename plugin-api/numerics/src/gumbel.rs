//! Gumbel noise for drawing a token, the same bits on every device. The definition, with vectors: [`sampling`](crate::sampling).

use crate::fixed_log;
use crate::philox::philox4x32_10;

/// What a random number is drawn for; the third counter word. Numbers of different domains are independent.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Domain {
    /// The target model draws the next token.
    TargetDraw = 0,
    /// The coin that accepts or rejects a draft token.
    AcceptCoin = 1,
    /// The draw from the residual distribution after a rejection.
    ResidualDraw = 2,
    /// A draft model draws with noise of its own, instead of sharing that of the target.
    DraftDraw = 3,
}

/// The Gumbel noise of one token; a pure function of its arguments.
///
/// - `seed`: the seed of the request.
/// - `position`: the absolute index, in the sequence, of the token being drawn.
/// - `token_id`: the candidate; never its rank in a sorted list.
/// - `child`: which of several continuations of one request.
#[inline]
#[must_use]
pub fn noise(seed: u64, position: u32, token_id: u32, domain: Domain, child: u32) -> f32 {
    from_lane(lanes(seed, position, token_id / 4, domain, child)[token_id as usize % 4])
}

/// The noise of the tokens `4 * block` to `4 * block + 3`; each is equal to [`noise`], at a quarter of its Philox cost.
#[inline]
#[must_use]
pub fn noise4(seed: u64, position: u32, block: u32, domain: Domain, child: u32) -> [f32; 4] {
    lanes(seed, position, block, domain, child).map(from_lane)
}

/// The uniform 32-bit integers behind [`noise4`].
#[inline]
#[must_use]
pub const fn lanes(seed: u64, position: u32, block: u32, domain: Domain, child: u32) -> [u32; 4] {
    philox4x32_10([position, block, domain as u32, child], [seed as u32, (seed >> 32) as u32])
}

/// The noise of a uniform 32-bit integer: [`fixed_from_lane`] rounded to the nearest binary32, ties to even.
///
/// The result falls as `lane` grows, from 22.87 at lane 0 to -3.13 at the last.
#[inline]
#[must_use]
pub const fn from_lane(lane: u32) -> f32 {
    const TWO_POW_MINUS_64: f32 = f32::from_bits((127 - 64) << 23);
    // The conversion rounds once; the product with a power of two is exact.
    fixed_from_lane(lane) as f32 * TWO_POW_MINUS_64
}

/// The noise of a uniform 32-bit integer before its rounding to binary32, with 64 fraction bits.
#[inline]
#[must_use]
pub const fn fixed_from_lane(lane: u32) -> i128 {
    // 1 - v in units of 2^-33: odd, hence never zero.
    let survival = (1u64 << 33) - 1 - 2 * lane as u64;
    let exponential = -fixed_log::ln(survival as u128, 33);
    -fixed_log::ln(exponential as u128, 64)
}
