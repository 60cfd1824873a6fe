//! UE8M0: a scale byte that holds only a biased exponent; the value is 2^(byte - 127), and 255 is NaN.

/// The byte that stands for NaN.
pub const NAN: u8 = 255;

/// The value of a scale byte; exact. Byte 0 is 2^-127, a binary32 subnormal; byte 255 is NaN.
#[inline]
#[must_use]
pub const fn decode(byte: u8) -> f32 {
    const TWO_POW_MINUS_127: u32 = 1 << 22;
    const QUIET_NAN: u32 = 0x7FC0_0000;
    let normal = (byte as u32) << 23;
    let bits = if byte == 0 { TWO_POW_MINUS_127 } else { normal };
    f32::from_bits(if byte == NAN { QUIET_NAN } else { bits })
}

/// The value of 1 / [`decode`]`(byte)`; exact for every byte, since the reciprocal of each power of two from 2^-127 to
/// 2^127 is again a binary32 value. Byte 255 gives NaN.
///
/// Multiplying by it and dividing by the scale therefore round the same real number once: the results are the same bits.
#[inline]
#[must_use]
pub const fn decode_reciprocal(byte: u8) -> f32 {
    decode(if byte == NAN { NAN } else { 254 - byte })
}

/// The byte of a positive power of two between 2^-127 and 2^127; inverse of [`decode`].
///
/// # Panics
///
/// If `x` is not such a power of two: a scale that was not rounded with [`pow2_ceil`] is a bug in the caller.
#[inline]
#[must_use]
pub const fn encode_pow2(x: f32) -> u8 {
    let byte = (x.to_bits() >> 23) as u8;
    assert!(decode(byte).to_bits() == x.to_bits(), "a UE8M0 scale must be a power of two from 2^-127 to 2^127");
    byte
}

/// The byte of the smallest normal power of two that is not below `x`, by exponent-field arithmetic: the exponent field
/// of `x`, plus one if any mantissa bit is set. A logarithm in floating point would misplace values next to a power of
/// two.
///
/// `x` must not be negative. Zero gives byte 0; every other value below 2^-126 gives byte 1. Values above 2^127, infinity
/// and NaN give 255, which decodes to NaN.
#[inline]
#[must_use]
pub const fn pow2_ceil(x: f32) -> u8 {
    let bits = x.to_bits() & 0x7FFF_FFFF;
    let byte = (bits >> 23) + (bits & 0x7F_FFFF != 0) as u32;
    (if byte > 255 { 255 } else { byte }) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_decodes_to_its_power_of_two() {
        for byte in 0..NAN {
            assert_eq!(f64::from(decode(byte)), 2f64.powi(i32::from(byte) - 127), "byte {byte}");
            assert_eq!(encode_pow2(decode(byte)), byte);
            assert_eq!(decode(byte) * decode_reciprocal(byte), 1.0);
        }
        assert!(decode(NAN).is_nan() && decode_reciprocal(NAN).is_nan());
    }

    #[test]
    fn the_reciprocal_product_equals_the_quotient() {
        for byte in 0..NAN {
            for x in [1.0, -3.3, 1.0e-38, f32::from_bits(1), f32::from_bits(0x7FFFFF), f32::MAX, 0.1, -0.0] {
                let (product, quotient) = (x * decode_reciprocal(byte), x / decode(byte));
                assert_eq!(product.to_bits(), quotient.to_bits(), "{x:e} with byte {byte}");
            }
        }
    }

    #[test]
    fn pow2_ceil_is_the_next_power_of_two() {
        for byte in 1..NAN {
            let power = decode(byte);
            assert_eq!(pow2_ceil(power), byte);
            assert_eq!(pow2_ceil(power.next_up()), byte + 1);
            assert_eq!(pow2_ceil(power.next_down()), byte);
        }
        assert_eq!([0.0, f32::from_bits(1), decode(0), decode(1)].map(pow2_ceil), [0, 1, 1, 1]);
        assert_eq!([f32::MAX, f32::INFINITY, f32::NAN, -f32::NAN].map(pow2_ceil), [NAN; 4]);
    }

    #[test]
    #[should_panic(expected = "must be a power of two")]
    fn encoding_three_panics() {
        let _ = encode_pow2(3.0);
    }

    #[test]
    #[should_panic(expected = "must be a power of two")]
    fn encoding_a_negative_power_panics() {
        let _ = encode_pow2(-2.0);
    }
}
