//! Negative exponentials in fixed point: products of 32-bit integers, additions and shifts only, so every device computes
//! the same bits, and a sum of them does not depend on its order.
//!
//! The weight of a binary32 `x >= 0` is about `2^46 e^-x`. With `e^-x = 2^-n 2^(-i/256) e^-r`, a table supplies the second
//! factor and a short series the third:
//!
//! ```text
//! y = x log2(e)                n its integer part, i the next eight bits, t the rest, 0 <= t < 2^-8
//! r = t ln(2)                  0 <= r < 2^-8.5
//! 1 - e^-r = r - r r (1/2 - r/6)
//! ```
//!
//! Formats: `x` is cut to 27 fraction bits, `y` has 58; `t`, `r` and the series have 40 and fit into 32 bits, the table has
//! 31. Every product is one of two 32-bit integers, cut to the bits that are kept: a vector unit without wide products needs
//! four small ones for each of the six. Unlike the noise, of which few are needed, a weight is needed for every
//! token, which is why 64-bit products are avoided here.
//!
//! Error, relative to the weight: 2^-27 from cutting `x`, 2^-27.9 from `log2(e)` at the far end, 2^-31 from the rest; and
//! the last cut, less than one unit. A run over all arguments (`examples/exp_exhaustive.rs`) found the weights to never
//! rise with `x`, and the error beside the cuts of `x` and of the result to stay below 2^-28.

/// Fraction bits of a weight. 2^17 of them sum to at most 2^63.
pub const WEIGHT_BITS: u32 = 46;

/// Fraction bits to which an argument is cut: below [`FAR`] it then has 32 bits.
pub const ARGUMENT_BITS: u32 = 27;

/// From here on a weight is less than one unit: e^-32 < 2^-46.
pub const FAR: f32 = 32.0;

/// log2(e) in Q1.31, to nearest.
const LOG2_E: u64 = 0xB8AA_3B29;
/// ln(2) in Q0.32, to nearest.
const LN_2: u64 = 0xB172_17F8;
/// 1/2 and 1/6 in Q0.32, the second rounded down.
const HALF: u64 = 1 << 31;
const SIXTH: u64 = (1 << 32) / 6;

/// Leading fraction bits of `y` that select a table entry.
const INDEX_BITS: u32 = 8;

/// `2^(-i/256)` in Q1.31, to nearest.
static TABLE: [u32; 1 << INDEX_BITS] = {
    let mut table = [0; 1 << INDEX_BITS];
    let mut i = 0;
    while i < table.len() {
        table[i] = power_of_two(i as u64);
        i += 1;
    }
    table
};

/// For kernels in other languages: `2^(-i/256)` in Q1.31, to nearest.
#[must_use]
pub fn table() -> [u32; 1 << INDEX_BITS] {
    TABLE
}

/// `2^46 e^-x`; exactly `2^46` at 0, and 0 for `x >= 32`. It never rises with `x`.
///
/// `x` must not be negative and not NaN; both count as zero.
#[inline]
#[must_use]
pub const fn weight(x: f32) -> u64 {
    match fixed(x) {
        Some(x) => weight_of_fixed(x),
        None => 0,
    }
}

/// `x` with 27 fraction bits, further ones cut; `None` for `x >= 32`. Negative numbers and NaN give 0.
#[inline]
#[must_use]
pub const fn fixed(x: f32) -> Option<u32> {
    const SCALE: f32 = (1u32 << ARGUMENT_BITS) as f32;
    // The product with a power of two is exact; the conversion cuts it, and takes NaN and negative numbers to 0.
    if x >= FAR { None } else { Some((x * SCALE) as u32) }
}

/// The weight of `x` with 27 fraction bits.
#[inline]
#[must_use]
pub const fn weight_of_fixed(x: u32) -> u64 {
    let y = x as u64 * LOG2_E;
    let (n, i, t) = (y >> 58, (y >> (58 - INDEX_BITS)) as usize % TABLE.len(), (y >> 18) & 0xFFFF_FFFF);
    let r = (t * LN_2) >> 32;
    let series = HALF - ((r * SIXTH) >> 40);
    let fall = r - ((r * ((r * series) >> 32)) >> 40);
    let factor = TABLE[i] as u64;
    ((factor << 15) - ((factor * fall) >> 25)) >> n
}

/// `2^(-i/256)` in Q1.31, to nearest, for `i < 256`: a product of square roots of one half, each with 62 fraction bits.
/// Evaluated by the compiler.
const fn power_of_two(i: u64) -> u32 {
    const ONE: u64 = 1 << 62;
    let (mut power, mut root) = (ONE, ONE >> 1);
    let mut bit = INDEX_BITS;
    while bit > 0 {
        bit -= 1;
        // 2^(-1/2), 2^(-1/4), ...: each the square root of the one before.
        root = (root as u128 * ONE as u128).isqrt() as u64;
        if i >> bit & 1 == 1 {
            power = ((power as u128 * root as u128) >> 62) as u64;
        }
    }
    ((power + (1 << 30)) >> 31) as u32
}
