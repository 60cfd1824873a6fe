//! FP8 E4M3: 1 sign, 4 exponent (bias 7) and 3 mantissa bits; no infinity, NaN is `0x7F` and `0xFF`.
//!
//! Magnitudes run from 2^-9 (the smallest subnormal) through 2^-6 (the smallest normal) to 448.

/// The largest finite magnitude; conversion saturates here.
pub const MAX: f32 = 448.0;

/// The value of every code: `TABLE[c]` is [`decode`]`(c)`.
pub static TABLE: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = value(code as u8);
        code += 1;
    }
    table
};

/// The value of a code; exact. `0x7F` gives a positive and `0xFF` a negative quiet NaN.
#[inline]
#[must_use]
pub const fn decode(code: u8) -> f32 {
    TABLE[code as usize]
}

/// The nearest code, ties to the code with an even mantissa.
///
/// - Magnitudes above 448, infinity included, saturate to 448 of the same sign.
/// - A magnitude of at most 2^-10 becomes a zero that keeps the sign.
/// - NaN becomes `0x7F` with the sign of the argument.
#[inline]
#[must_use]
pub const fn encode(x: f32) -> u8 {
    const INFINITY: u32 = f32::INFINITY.to_bits();
    const LARGEST: u32 = MAX.to_bits();
    const SMALLEST_NORMAL: u32 = (1.0f32 / 64.0).to_bits();
    // The spacing of binary32 at 2^14 is 2^-9, the spacing of E4M3 subnormals: adding it rounds a subnormal to an integer
    // number of steps, which stands in the low bits of the sum.
    const SUBNORMAL_ROUNDER: f32 = 16384.0;
    // Exponent 0 of binary32 (bias 127) seen from E4M3 (bias 7), placed above three mantissa bits.
    const REBIAS: u32 = (127 - 7) << 3;

    let bits = x.to_bits();
    let magnitude = bits & 0x7FFF_FFFF;
    let clamped = if magnitude > LARGEST { LARGEST } else { magnitude };

    // Both paths are computed and one selected, so that a loop over a slice has no branch.
    let normal = (clamped.wrapping_add(0x7_FFFF).wrapping_add((clamped >> 20) & 1) >> 20).wrapping_sub(REBIAS);
    let subnormal = (f32::from_bits(clamped) + SUBNORMAL_ROUNDER).to_bits().wrapping_sub(SUBNORMAL_ROUNDER.to_bits());
    let finite = if clamped < SMALLEST_NORMAL { subnormal } else { normal };
    let code = if magnitude > INFINITY { 0x7F } else { finite };
    ((bits >> 24) & 0x80 | code) as u8
}

const fn value(code: u8) -> f32 {
    let sign = (code as u32 & 0x80) << 24;
    let exponent = (code as u32 >> 3) & 0xF;
    let mantissa = code as u32 & 7;
    let magnitude = if code & 0x7F == 0x7F {
        f32::from_bits(0x7FC0_0000)
    } else if exponent == 0 {
        mantissa as f32 / 512.0
    } else {
        f32::from_bits((exponent + 120) << 23 | mantissa << 20)
    };
    f32::from_bits(sign | magnitude.to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LARGEST_CODE: u8 = 0x7E;

    /// The definition, in f64: scan all magnitudes for the nearest, ties to the even code.
    fn nearest(x: f32) -> u8 {
        let distance = |code: u8| (f64::from(value(code)) - f64::from(x.abs())).abs();
        let best = (0..=LARGEST_CODE).min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
        best.unwrap() | if x.is_sign_negative() { 0x80 } else { 0 }
    }

    #[test]
    fn landmarks() {
        assert_eq!(decode(LARGEST_CODE), MAX);
        assert_eq!([decode(0x01), decode(0x08), decode(0x38), decode(0xC0)], [2f32.powi(-9), 2f32.powi(-6), 1.0, -2.0]);
        assert_eq!(decode(0x80).to_bits(), (-0.0f32).to_bits());
        assert_eq!([decode(0x7F).to_bits(), decode(0xFF).to_bits()], [0x7FC0_0000, 0xFFC0_0000]);
    }

    #[test]
    fn every_code_survives_a_round_trip() {
        for code in 0..=u8::MAX {
            assert_eq!(encode(decode(code)), code, "code {code:#04x}");
        }
    }

    #[test]
    fn midpoints_go_to_the_even_code_and_their_neighbours_to_the_nearer() {
        for low in 0..LARGEST_CODE {
            let midpoint = (value(low) + value(low + 1)) / 2.0;
            for (x, code) in [(midpoint.next_down(), low), (midpoint, low + (low & 1)), (midpoint.next_up(), low + 1)] {
                assert_eq!([encode(x), encode(-x)], [code, code | 0x80], "{x:e}");
            }
        }
    }

    #[test]
    fn overflow_saturates_and_nan_keeps_its_sign() {
        for x in [448.0f32.next_up(), 464.0, 480.0, 1e30, f32::INFINITY] {
            assert_eq!([encode(x), encode(-x)], [LARGEST_CODE, LARGEST_CODE | 0x80]);
        }
        for bits in [0x7F80_0001, 0x7FC0_0000, 0x7FFF_FFFF] {
            assert_eq!(encode(f32::from_bits(bits)), 0x7F);
            assert_eq!(encode(f32::from_bits(bits | 0x8000_0000)), 0xFF);
        }
        assert_eq!([encode(f32::from_bits(1)), encode(-f32::from_bits(1))], [0x00, 0x80]);
    }

    /// All sign, exponent and upper mantissa patterns, with the lower bits at both ends: every binade is covered.
    #[test]
    fn agrees_with_a_search_for_the_nearest_value() {
        for upper in 0..=u16::MAX {
            for lower in [0, 1, 0xFFFF] {
                let x = f32::from_bits(u32::from(upper) << 16 | lower);
                if x.is_finite() && x.abs() < 1e4 && x.abs() > 1e-4 {
                    assert_eq!(encode(x), nearest(x), "{x:e}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_search_on_random_values(x in -500f32..500.0, shift in 0i32..18) {
            let x = x * 2f32.powi(-shift);
            prop_assert_eq!(encode(x), nearest(x));
        }
    }
}
