//! The three scale rules: from the largest magnitude of a group to the byte stored for its scale.
//!
//! Each rule is `max(amax, floor) * f32(1 / element maximum)`, rounded up to a power of two or to the nearest E4M3 value.
//! The product with the rounded constant is part of the rule: it maps 448 and 6 to exactly 1, so that a group whose
//! largest magnitude is the element maximum gets the scale 1 (model specification, number formats).

use crate::{e2m1, e4m3, ue8m0};

/// Below this magnitude an FP8 group is scaled as if it held 1e-4.
pub const FP8_FLOOR: f32 = 1e-4;
/// Below this magnitude an FP4 group with a UE8M0 scale is scaled as if it held 6 * 2^-126: the scale stays normal.
pub const FP4_UE8M0_FLOOR: f32 = 6.0 * f32::MIN_POSITIVE;
/// Below this magnitude an FP4 group with an E4M3 scale is scaled as if it held 6 * 2^-9: the scale is never zero.
pub const FP4_E4M3_FLOOR: f32 = 6.0 / 512.0;

const FP8_MAX_RECIPROCAL: f32 = 1.0 / e4m3::MAX;
const FP4_MAX_RECIPROCAL: f32 = 1.0 / e2m1::MAX;

/// The UE8M0 scale byte of an FP8 group: `pow2_ceil(max(amax, 1e-4) * f32(1/448))`.
///
/// `amax` is the largest magnitude in the group. Infinity and NaN give [`ue8m0::NAN`].
#[inline]
#[must_use]
pub const fn fp8(amax: f32) -> u8 {
    ue8m0::pow2_ceil(at_least(amax, FP8_FLOOR) * FP8_MAX_RECIPROCAL)
}

/// The UE8M0 scale byte of an FP4 group: `pow2_ceil(max(amax, 6 * 2^-126) * f32(1/6))`.
///
/// `amax` is the largest magnitude in the group. Infinity and NaN give [`ue8m0::NAN`].
#[inline]
#[must_use]
pub const fn fp4_ue8m0(amax: f32) -> u8 {
    ue8m0::pow2_ceil(at_least(amax, FP4_UE8M0_FLOOR) * FP4_MAX_RECIPROCAL)
}

/// The E4M3 scale byte of an FP4 group: `e4m3(min(max(amax, 6 * 2^-9) * f32(1/6), 448))`.
///
/// `amax` is the largest magnitude in the group. The scale saturates at 448, so magnitudes above 6 * 448 (infinity
/// included) are clipped. NaN gives `0x7F`.
#[inline]
#[must_use]
pub const fn fp4_e4m3(amax: f32) -> u8 {
    // The conversion itself saturates at 448.
    e4m3::encode(at_least(amax, FP4_E4M3_FLOOR) * FP4_MAX_RECIPROCAL) & 0x7F
}

/// The largest magnitude in `x`, the input of the rules; 0 if `x` is empty.
///
/// Nothing is ignored: if any element is infinite the result is infinite, and if any is NaN the result is NaN, wherever
/// it stands.
#[inline]
#[must_use]
pub fn amax(x: &[f32]) -> f32 {
    // Bit patterns of magnitudes are ordered like the magnitudes, with NaN above infinity. An integer maximum does not
    // depend on the order of the elements, so a compiler may vectorise it.
    f32::from_bits(x.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7FFF_FFFF)))
}

/// `max(amax, floor)` that lets NaN through; `f32::max` would drop it.
const fn at_least(amax: f32, floor: f32) -> f32 {
    if amax < floor { floor } else { amax }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_reciprocals_are_the_nearest_to_the_real_quotients() {
        assert_eq!(FP8_MAX_RECIPROCAL, (1.0f64 / 448.0) as f32);
        assert_eq!(FP4_MAX_RECIPROCAL, (1.0f64 / 6.0) as f32);
    }

    /// A group whose largest magnitude is the element maximum times a power of two gets exactly that power.
    #[test]
    fn element_maxima_get_exact_powers_of_two() {
        for exponent in -120..=119i32 {
            let (power, byte) = (2f32.powi(exponent), (exponent + 127) as u8);
            assert_eq!(fp4_ue8m0(6.0 * power), byte);
            assert_eq!(fp4_ue8m0((6.0 * power).next_up().next_up()), byte + 1);
            if exponent >= -22 {
                assert_eq!(fp8(448.0 * power), byte);
                assert_eq!(fp8((448.0 * power).next_up().next_up()), byte + 1);
            }
        }
        assert_eq!([6.0, 12.0, 1536.0, 2688.0].map(|amax| e4m3::decode(fp4_e4m3(amax))), [1.0, 2.0, 256.0, 448.0]);
    }

    #[test]
    fn floors_hold_for_zero() {
        // 1e-4 / 448 lies between 2^-23 and 2^-22.
        assert_eq!([fp8(0.0), fp8(FP8_FLOOR)], [127 - 22; 2]);
        assert_eq!([fp4_ue8m0(0.0), fp4_ue8m0(FP4_UE8M0_FLOOR)], [1; 2]);
        assert_eq!([fp4_e4m3(0.0), fp4_e4m3(FP4_E4M3_FLOOR)], [1; 2]);
    }

    /// The other common form of the rules divides by the element maximum. The forms differ only for a binary32 `amax` next to
    /// a tie of the E4M3 scale, such as the one below.
    #[test]
    fn the_quotient_form_gives_the_same_byte_for_every_bfloat16() {
        for amax in (0..0x7F80).map(|bits| crate::Bf16(bits).to_f32()) {
            assert_eq!(fp8(amax), ue8m0::pow2_ceil(amax.max(FP8_FLOOR) / e4m3::MAX));
            assert_eq!(fp4_ue8m0(amax), ue8m0::pow2_ceil(amax.max(FP4_UE8M0_FLOOR) / e2m1::MAX));
            assert_eq!(fp4_e4m3(amax), e4m3::encode(amax.max(FP4_E4M3_FLOOR) / e2m1::MAX));
        }
        let below_a_tie = (6.0 * 19.0f32 / 1024.0).next_down();
        assert_eq!([fp4_e4m3(below_a_tie), e4m3::encode(below_a_tie / e2m1::MAX)], [10, 9]);
    }

    #[test]
    fn not_a_number_is_never_hidden() {
        for nan in [f32::NAN, -f32::NAN] {
            assert_eq!([fp8(nan), fp4_ue8m0(nan), fp4_e4m3(nan)], [ue8m0::NAN, ue8m0::NAN, 0x7F]);
        }
        assert_eq!([fp8(f32::INFINITY), fp4_ue8m0(f32::INFINITY)], [ue8m0::NAN; 2]);
        assert_eq!(fp4_e4m3(f32::INFINITY), e4m3::encode(e4m3::MAX));
        assert!(fp8(f32::MAX) < ue8m0::NAN && fp4_ue8m0(f32::MAX) < ue8m0::NAN);
    }

    #[test]
    fn amax_ignores_nothing() {
        assert_eq!(amax(&[]), 0.0);
        assert_eq!(amax(&[1.0, -3.0, 2.0]), 3.0);
        assert_eq!(amax(&[f32::NEG_INFINITY, f32::MAX]), f32::INFINITY);
        assert!(amax(&[1.0, -f32::NAN, f32::INFINITY]).is_nan());
    }

    proptest! {
        /// The reason for rounding up: the largest element fits. The product may lie one rounding below the real quotient.
        #[test]
        fn the_largest_element_fits(bits in 0u32..f32::INFINITY.to_bits()) {
            let amax = f32::from_bits(bits);
            prop_assert!(amax / ue8m0::decode(fp8(amax)) <= 448.0 * (1.0 + f32::EPSILON));
            prop_assert!(amax / ue8m0::decode(fp4_ue8m0(amax)) <= 6.0 * (1.0 + f32::EPSILON));
        }
    }
}
