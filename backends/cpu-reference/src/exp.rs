//! The exponential of attention: many arguments at once, none of them positive.
//!
//! The bits are the same on every processor, as with the `libm` crate, at a fraction of its time: a prefill of 512 tokens
//! of the miniature takes six million exponentials.
//!
//! With n = x / ln 2 to the nearest integer and r = x - n ln 2, |r| <= 0.347, the result is 2^n times the Taylor
//! polynomial of degree 13 at r, whose remainder is below 2^-57. Each operation is one rounded F64 operation; nothing is
//! fused. The result is within 2 units in the last place of F64; below [`SMALLEST`], where it would be under 2^-1021, it
//! is 0.

use crate::simd::{Lanes, multiversion};

/// Arguments below give 0: 2^n must stay a normal number.
const SMALLEST: f64 = -708.0;

multiversion! {
    /// Replaces every value, at most 0 or NaN, by its exponential. NaN stays NaN.
    fn exp_all / exp_all_at(values: &mut [f64]) = exp_all_body
}

#[inline(always)]
fn exp_all_body<V: Lanes>(values: &mut [f64]) {
    for value in values {
        *value = exp(*value);
    }
}

#[inline(always)]
fn exp(x: f64) -> f64 {
    // Adding it leaves an integer in the low bits: numbers of this size have no fraction.
    const INTEGER: f64 = (3_u64 << 51) as f64;
    // ln 2 in two parts; the first has 21 zero bits at the end, so that its product with n is exact.
    const LN_2_HIGH: f64 = f64::from_bits(0x3FE6_2E42_FEE0_0000);
    const LN_2_LOW: f64 = f64::from_bits(0x3DEA_39EF_3579_3C76);
    const BIAS: u64 = 1023;

    let shifted = x * std::f64::consts::LOG2_E + INTEGER;
    let n = shifted - INTEGER;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    // 1/13!, 1/12!, ... 1/2!: each the quotient of exact numbers.
    let mut tail = 1.0 / 6_227_020_800.0;
    for factorial in
        [479_001_600.0, 39_916_800.0, 3_628_800.0, 362_880.0, 40_320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0]
    {
        tail = tail * r + 1.0 / factorial;
    }
    let polynomial = 1.0 + (r + r * r * tail);
    let power = f64::from_bits((shifted.to_bits() << 52).wrapping_add(BIAS << 52));
    if x < SMALLEST { 0.0 } else { polynomial * power }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Level;

    /// Distance in units in the last place of positive numbers.
    fn ulps(a: f64, b: f64) -> u64 {
        a.to_bits().abs_diff(b.to_bits())
    }

    fn arguments() -> impl Iterator<Item = f64> {
        // Every scale, and a lattice that meets no binary fraction.
        let small = (0..2000).map(|i| -(2.0_f64.powi(-60) * 1.035_f64.powi(i)));
        let lattice = (0..1_000_000).map(|i| f64::from(i) * -0.000_708_01);
        small.chain(lattice).filter(|&x| x >= SMALLEST)
    }

    #[test]
    fn within_two_units_of_libm() {
        let mut values: Vec<f64> = arguments().collect();
        exp_all(&mut values);
        let worst = arguments().zip(&values).map(|(x, &y)| ulps(y, libm::exp(x))).max();
        // libm itself is within one.
        assert!(worst <= Some(2), "{worst:?}");
    }

    #[test]
    fn the_ends() {
        let mut values = [0.0, -0.0, -1e-300, SMALLEST, SMALLEST.next_down(), -1e300, f64::NEG_INFINITY, f64::NAN];
        exp_all(&mut values);
        assert_eq!(values[..3], [1.0; 3]);
        assert!(ulps(values[3], libm::exp(SMALLEST)) <= 2);
        assert_eq!(values[4..7], [0.0; 3]);
        assert!(values[7].is_nan());
    }

    #[test]
    fn every_vector_width_gives_the_same_bits() {
        let mut plain: Vec<f64> = arguments().step_by(17).collect();
        let wide = plain.clone();
        exp_all_at(Level::Plain, &mut plain);
        for &level in Level::available() {
            let mut values = wide.clone();
            exp_all_at(level, &mut values);
            assert!(values.iter().zip(&plain).all(|(a, b)| a.to_bits() == b.to_bits()), "{level:?}");
        }
    }
}
