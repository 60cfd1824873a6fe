//! FP4 E2M1: 1 sign, 2 exponent (bias 1) and 1 mantissa bit; the magnitudes are 0, 0.5, 1, 1.5, 2, 3, 4 and 6.
//!
//! A code is the low four bits of a byte, with the sign in bit 3. There is neither infinity nor NaN.

/// The largest magnitude; conversion saturates here.
pub const MAX: f32 = 6.0;

/// The value of every code.
pub static TABLE: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The two values packed in every byte: `PAIRS[b]` is `[TABLE[b & 15], TABLE[b >> 4]]`, the even element first.
pub static PAIRS: [[f32; 2]; 256] = {
    let mut pairs = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [TABLE[byte & 15], TABLE[byte >> 4]];
        byte += 1;
    }
    pairs
};

/// The value of the code in the low four bits; exact. The upper four bits are ignored. Code 8 is `-0.0`.
#[inline]
#[must_use]
pub const fn decode(code: u8) -> f32 {
    TABLE[(code & 15) as usize]
}

/// The nearest code, ties to the even code (0.25 to 0, 0.75 to 1, 1.25 to 1, 1.75 to 2, 2.5 to 2, 3.5 to 4, 5 to 4).
///
/// The sign is kept, also of a value that rounds to zero. Magnitudes above 6, infinity and NaN included, saturate to 6
/// with their sign: the format cannot say "not a number", which is why the scale of a group with a NaN does
/// (see [`group`](crate::group)).
#[inline]
#[must_use]
pub const fn encode(x: f32) -> u8 {
    let bits = x.to_bits();
    // Magnitudes of one sign are ordered like their bit patterns, with NaN above all: no case needs a branch.
    let magnitude = bits & 0x7FFF_FFFF;
    const fn above(magnitude: u32, tie: f32) -> u32 {
        (magnitude > tie.to_bits()) as u32
    }
    const fn from(magnitude: u32, tie: f32) -> u32 {
        (magnitude >= tie.to_bits()) as u32
    }
    let code = above(magnitude, 0.25)
        + from(magnitude, 0.75)
        + above(magnitude, 1.25)
        + from(magnitude, 1.75)
        + above(magnitude, 2.5)
        + from(magnitude, 3.5)
        + above(magnitude, 5.0);
    ((bits >> 28) & 8 | code) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition: scan all magnitudes for the nearest, ties to the even code.
    fn nearest(x: f32) -> u8 {
        let distance = |code: u8| (f64::from(decode(code)) - f64::from(x.abs())).abs();
        let best = (0..8u8).min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
        best.unwrap() | if x.is_sign_negative() { 8 } else { 0 }
    }

    #[test]
    fn the_table_follows_from_the_bit_fields() {
        for code in 0..16u8 {
            let (exponent, mantissa) = (i32::from(code >> 1 & 3), f32::from(code & 1));
            let magnitude =
                if exponent == 0 { mantissa / 2.0 } else { (1.0 + mantissa / 2.0) * 2f32.powi(exponent - 1) };
            let value = if code & 8 == 0 { magnitude } else { -magnitude };
            assert_eq!(decode(code).to_bits(), value.to_bits(), "code {code}");
        }
    }

    #[test]
    fn every_code_survives_a_round_trip() {
        for code in 0..16 {
            assert_eq!(encode(decode(code)), code);
            assert_eq!(decode(code | 0xF0).to_bits(), decode(code).to_bits());
        }
    }

    #[test]
    fn midpoints_go_to_the_even_code_and_their_neighbours_to_the_nearer() {
        for low in 0..7 {
            let midpoint = (decode(low) + decode(low + 1)) / 2.0;
            for (x, code) in [(midpoint.next_down(), low), (midpoint, low + (low & 1)), (midpoint.next_up(), low + 1)] {
                assert_eq!([encode(x), encode(-x)], [code, code | 8], "{x:e}");
            }
        }
    }

    #[test]
    fn overflow_and_nan_saturate_with_their_sign() {
        for x in
            [6.0f32.next_up(), 7.0, f32::MAX, f32::INFINITY, f32::from_bits(0x7F80_0001), f32::from_bits(0x7FC0_0000)]
        {
            assert_eq!([encode(x), encode(-x)], [7, 15]);
        }
        assert_eq!([encode(f32::from_bits(1)), encode(-f32::from_bits(1))], [0, 8]);
    }

    #[test]
    fn pairs_put_the_low_nibble_first() {
        for byte in 0..=u8::MAX {
            let pair = PAIRS[usize::from(byte)].map(f32::to_bits);
            assert_eq!(pair, [decode(byte & 15).to_bits(), decode(byte >> 4).to_bits()]);
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_search_for_the_nearest_value(x in -8f32..8.0) {
            prop_assert_eq!(encode(x), nearest(x));
        }
    }
}
