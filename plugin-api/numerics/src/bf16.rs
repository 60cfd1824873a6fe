//! bfloat16: the upper half of an IEEE 754 binary32 value (1 sign, 8 exponent, 7 mantissa bits).

/// A bfloat16 value, held as its bit pattern.
///
/// `==` compares bit patterns, not numbers: `-0.0` differs from `0.0`, and a NaN equals itself. This is what tests of
/// stored data need; convert with [`Bf16::to_f32`] for arithmetic comparison.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Bf16(pub u16);

impl Bf16 {
    /// Rounds to nearest, ties to even.
    ///
    /// Values beyond the largest finite bfloat16 round to infinity as IEEE 754 asks. A NaN keeps its sign and the upper
    /// six payload bits and becomes quiet, so it can never turn into infinity when its payload is cut off.
    #[inline]
    #[must_use]
    pub const fn from_f32(x: f32) -> Self {
        let bits = x.to_bits();
        let ties_to_even = 0x7FFF + ((bits >> 16) & 1);
        // Wraps only for NaN patterns, whose result is discarded.
        let rounded = bits.wrapping_add(ties_to_even) >> 16;
        let quiet = (bits >> 16) | 0x0040;
        let is_nan = bits & 0x7FFF_FFFF > 0x7F80_0000;
        Self(if is_nan { quiet } else { rounded } as u16)
    }

    /// The same value as binary32; exact.
    #[inline]
    #[must_use]
    pub const fn to_f32(self) -> f32 {
        f32::from_bits((self.0 as u32) << 16)
    }
}

impl From<Bf16> for f32 {
    #[inline]
    fn from(x: Bf16) -> Self {
        x.to_f32()
    }
}

/// Rounds a binary32 value to the nearest bfloat16 and returns that value as binary32.
#[inline]
#[must_use]
pub const fn round(x: f32) -> f32 {
    Bf16::from_f32(x).to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn every_code() -> impl Iterator<Item = Bf16> {
        (0..=u16::MAX).map(Bf16)
    }

    #[test]
    fn every_code_survives_a_round_trip() {
        for code in every_code() {
            let expected = if code.to_f32().is_nan() { Bf16(code.0 | 0x0040) } else { code };
            assert_eq!(Bf16::from_f32(code.to_f32()), expected, "code {:#06x}", code.0);
        }
    }

    /// Between a finite code and the next one up in magnitude: below the midpoint, the midpoint, above it.
    #[test]
    fn midpoints_go_to_the_even_code_and_their_neighbours_to_the_nearer() {
        for low in every_code().filter(|c| c.to_f32().is_finite()) {
            let midpoint = u32::from(low.0) << 16 | 0x8000;
            let round = |bits| Bf16::from_f32(f32::from_bits(bits)).0;
            let even = low.0 + (low.0 & 1);
            assert_eq!([round(midpoint - 1), round(midpoint), round(midpoint + 1)], [low.0, even, low.0 + 1]);
        }
    }

    #[test]
    fn special_values() {
        assert_eq!(Bf16::from_f32(f32::INFINITY).0, 0x7F80);
        assert_eq!(Bf16::from_f32(f32::NEG_INFINITY).0, 0xFF80);
        assert_eq!(Bf16::from_f32(-0.0).0, 0x8000);
        assert_eq!(Bf16::from_f32(f32::MAX).0, 0x7F80);
        // A signalling NaN whose payload lies wholly in the lower half, and the pattern that would wrap when rounded.
        assert_eq!(Bf16::from_f32(f32::from_bits(0x7F80_0001)).0, 0x7FC0);
        assert_eq!(Bf16::from_f32(f32::from_bits(0xFFFF_FFFF)).0, 0xFFFF);
    }

    proptest! {
        /// Against the definition: no bfloat16 neighbour is nearer than the one chosen.
        #[test]
        fn rounding_is_to_nearest(bits in 0u32..0x7F7F_0000) {
            let x = f64::from(f32::from_bits(bits));
            let chosen = Bf16::from_f32(f32::from_bits(bits));
            let distance = |code: u16| (f64::from(Bf16(code).to_f32()) - x).abs();
            prop_assert!(distance(chosen.0) <= distance(chosen.0 + 1));
            prop_assert!(chosen.0 == 0 || distance(chosen.0) <= distance(chosen.0 - 1));
        }
    }
}
