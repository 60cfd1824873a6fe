//! The natural logarithm in fixed point: integer multiplications, additions and shifts only, so every device computes the
//! same bits.
//!
//! An argument is written as `2^e * m` with `1 <= m < 2`. A table over the seven leading fraction bits of `m` supplies
//! a short number `c` just above `1 / m` and `-ln(c)`. The rest is close to 1, where the logarithm is a short series:
//!
//! ```text
//! ln(2^e m) = e ln(2) - ln(c) + ln(1 + z),   z = m c - 1,   0 <= z < 2^-6.9
//! ln(1 + z) = z - z (z (1/2 - z (1/3 - z (1/4 - z (1/5 - z (1/6 - z (1/7 - z (1/8))))))))
//! ```
//!
//! Formats: `m` has 63 fraction bits (Q1.63), `c` has 15, and `z`, the series coefficients, the table logarithms and
//! the result have 64 (Q0.64). Every product of two Q0.64 numbers keeps the upper 64 bits of the 128-bit product.
//!
//! Error of [`ln_mantissa`], in units of 2^-64: under 1 from cutting `z`, under 1 from each of the two outer products,
//! under 0.1 from the inner ones (each is scaled by a power of `z`) and from the first omitted term `z^9 / 9 < 2^-66`,
//! and 0.5 from the table: less than 3.6 in all. [`ln`] adds 0.5 for each unit of `|e|`, and 2 for the bits of its
//! argument below the 64 leading ones.

/// ln(2) in Q0.64, rounded to nearest.
pub const LN_2: u64 = ln_of_ratio(2, 1);

/// Fraction bits of the reciprocals in the table.
const RECIPROCAL_BITS: u32 = 15;
/// Leading fraction bits of the mantissa that select a table entry.
const INDEX_BITS: u32 = 7;
const TABLE_LEN: usize = 1 << INDEX_BITS;

/// The last power of `z` in the series.
const TERMS: usize = 8;

struct Entry {
    /// `c` with 15 fraction bits; entry `i` is `ceil(2^22 / (128 + i))`, so that `m c >= 1` for all `m` of the entry.
    reciprocal: u16,
    /// `-ln(c)` in Q0.64, rounded to nearest.
    ln: u64,
}

static TABLE: [Entry; TABLE_LEN] = {
    let mut table = [const { Entry { reciprocal: 0, ln: 0 } }; TABLE_LEN];
    let mut i = 0;
    while i < TABLE_LEN {
        let reciprocal = (1u32 << (INDEX_BITS + RECIPROCAL_BITS)).div_ceil((TABLE_LEN + i) as u32);
        table[i] = Entry { reciprocal: reciprocal as u16, ln: ln_of_ratio(1 << RECIPROCAL_BITS, reciprocal) };
        i += 1;
    }
    table
};

/// For kernels in other languages: `-ln(c)` in Q0.64, to nearest, for `c = ceil(2^22 / (128 + i)) / 2^15`.
#[must_use]
pub fn table() -> [u64; TABLE_LEN] {
    std::array::from_fn(|i| TABLE[i].ln)
}

/// `1 / k` in Q0.64, rounded down, for the series; entries 0 and 1 are not used.
const INVERSES: [u64; TERMS + 1] = {
    let mut inverses = [u64::MAX; TERMS + 1];
    let mut k = 2;
    while k <= TERMS {
        inverses[k] = ((1u128 << 64) / k as u128) as u64;
        k += 1;
    }
    inverses
};

/// The natural logarithm of `x * 2^-fraction_bits`, with 64 fraction bits.
///
/// The error is below `(5.6 + |e| / 2) * 2^-64`, where `2^e` is the largest power of two that is not above the argument;
/// below `(3.6 + |e| / 2) * 2^-64` if `x < 2^64`.
///
/// # Panics
///
/// If `x` is zero, where the logarithm has no value.
#[inline]
#[must_use]
pub const fn ln(x: u128, fraction_bits: u32) -> i128 {
    assert!(x != 0, "the logarithm of zero");
    let leading_zeros = x.leading_zeros();
    let mantissa = ((x << leading_zeros) >> 64) as u64;
    let exponent = 127 - leading_zeros as i128 - fraction_bits as i128;
    exponent * LN_2 as i128 + ln_mantissa(mantissa) as i128
}

/// The natural logarithm of `m`, between 1 and 2 in Q1.63, as a Q0.64 number between 0 and ln(2).
///
/// The error is below 3.6 * 2^-64. The highest bit of `m` must be set; it is taken as set if it is not.
#[inline]
#[must_use]
pub const fn ln_mantissa(m: u64) -> u64 {
    debug_assert!(m >> 63 == 1, "a mantissa in Q1.63 has its highest bit set");
    let entry = &TABLE[(m >> (63 - INDEX_BITS)) as usize % TABLE_LEN];
    // m c has 63 + 15 fraction bits. Cutting to 64 drops the integer part, which is 1, with the conversion to u64.
    let z = ((m as u128 * entry.reciprocal as u128) >> (63 + RECIPROCAL_BITS - 64)) as u64;
    let mut series = INVERSES[TERMS];
    let mut k = TERMS - 1;
    while k >= 2 {
        series = INVERSES[k] - multiply(z, series);
        k -= 1;
    }
    entry.ln + (z - multiply(z, multiply(z, series)))
}

/// The product of two Q0.64 numbers, rounded down.
#[inline]
const fn multiply(a: u64, b: u64) -> u64 {
    ((a as u128 * b as u128) >> 64) as u64
}

/// `ln(p / q)` in Q0.64, rounded to nearest, for `q <= p <= 2 q` and `p + q <= 2^16`.
///
/// The series of `2 atanh((p - q) / (p + q))` with 96 fraction bits: its 30 or fewer terms are each cut once, so the sum
/// is good to 2^-90. Evaluated by the compiler, for the constants above.
const fn ln_of_ratio(p: u32, q: u32) -> u64 {
    let (numerator, denominator) = ((p - q) as u128, (p + q) as u128);
    let mut power = (numerator << 96) / denominator;
    let mut sum = 0;
    let mut k = 1;
    while power != 0 {
        sum += power / k;
        power = power * (numerator * numerator) / (denominator * denominator);
        k += 2;
    }
    ((2 * sum + (1 << 31)) >> 32) as u64
}
