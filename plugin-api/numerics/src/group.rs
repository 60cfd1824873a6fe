//! One scale for each run of neighbouring elements: activations, cache entries and expert weights.
//!
//! A slice is cut into groups of [`FP8_GROUP`] or [`Fp4Scale::group`] elements. The scale byte of a group follows from its
//! largest magnitude by a rule of [`scale`]; each element is divided by the decoded scale (one binary32 rounding),
//! clamped to the element range and rounded to the nearest code. Reading back is one exact table entry times the scale.
//!
//! For a power-of-two scale the code multiplies by the exact reciprocal, which gives the bits of the division
//! ([`ue8m0::decode_reciprocal`]). For an E4M3 scale it divides: multiplying by a rounded reciprocal would move some ties.
//!
//! Values that are not finite:
//! - A UE8M0 scale cannot be finite if an element is not: a NaN or an infinity anywhere in the group gives the scale byte
//!   255, and the whole group reads back as NaN. The element codes are the largest of the format (NaN for FP8, 6 for
//!   FP4) with the sign of the element.
//! - An E4M3 scale saturates at 448, so an infinity is clipped to 6 * 448 and its neighbours are scaled by 448. A NaN
//!   gives the scale byte `0x7F`, and the whole group reads back as NaN, with codes as above.
//!
//! A bad value therefore never hides, and the stored bytes are the same on every machine.

use crate::{e2m1, e4m3, pack, scale, ue8m0};

/// Elements that share the scale of an FP8 group.
pub const FP8_GROUP: usize = 32;

/// The two kinds of scale that FP4 groups have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fp4Scale {
    /// A power of two per 32 elements: expert weights, index queries and keys.
    Ue8m0,
    /// An E4M3 value per 16 elements: compressed KV entries.
    E4m3,
}

impl Fp4Scale {
    /// Elements that share a scale.
    #[inline]
    #[must_use]
    pub const fn group(self) -> usize {
        match self {
            Self::Ue8m0 => 32,
            Self::E4m3 => 16,
        }
    }

    /// The value of a scale byte of this kind.
    #[inline]
    #[must_use]
    pub const fn decode(self, byte: u8) -> f32 {
        match self {
            Self::Ue8m0 => ue8m0::decode(byte),
            Self::E4m3 => e4m3::decode(byte),
        }
    }
}

/// Quantises `x` to E4M3 codes with one UE8M0 scale byte per 32 elements.
///
/// # Panics
///
/// If `x.len()` is not a multiple of 32, `codes.len() != x.len()` or `scales.len() != x.len() / 32`.
pub fn quantize_fp8(x: &[f32], codes: &mut [u8], scales: &mut [u8]) {
    assert_lengths(FP8_GROUP, x.len(), codes.len(), 1, scales.len());
    let groups = x.as_chunks::<FP8_GROUP>().0.iter().zip(codes.as_chunks_mut::<FP8_GROUP>().0);
    for ((x, codes), scale) in groups.zip(scales) {
        *scale = scale::fp8(scale::amax(x));
        encode_fp8(x, ue8m0::decode_reciprocal(*scale), codes);
    }
}

/// The values of FP8 groups: `out[i] = e4m3(codes[i]) * ue8m0(scales[i / 32])`, rounded once (exact unless the product
/// leaves the range of binary32).
///
/// # Panics
///
/// If `out.len()` is not a multiple of 32, `codes.len() != out.len()` or `scales.len() != out.len() / 32`.
pub fn dequantize_fp8(codes: &[u8], scales: &[u8], out: &mut [f32]) {
    assert_lengths(FP8_GROUP, out.len(), codes.len(), 1, scales.len());
    let groups = codes.as_chunks::<FP8_GROUP>().0.iter().zip(out.as_chunks_mut::<FP8_GROUP>().0);
    for ((codes, out), &scale) in groups.zip(scales) {
        decode_fp8(codes, ue8m0::decode(scale), out);
    }
}

/// Quantises `x` to packed E2M1 codes with one scale byte per [`Fp4Scale::group`] elements.
///
/// # Panics
///
/// If `x.len()` is not a multiple of the group, `packed.len() != x.len() / 2` or `scales.len() != x.len() / group`.
pub fn quantize_fp4(x: &[f32], packed: &mut [u8], scales: &mut [u8], kind: Fp4Scale) {
    let group = kind.group();
    assert_lengths(group, x.len(), packed.len(), 2, scales.len());
    for ((x, packed), scale) in x.chunks_exact(group).zip(packed.chunks_exact_mut(group / 2)).zip(scales) {
        match kind {
            Fp4Scale::Ue8m0 => {
                *scale = scale::fp4_ue8m0(scale::amax(x));
                let reciprocal = ue8m0::decode_reciprocal(*scale);
                encode_fp4(x, packed, |x| x * reciprocal);
            }
            Fp4Scale::E4m3 => {
                *scale = scale::fp4_e4m3(scale::amax(x));
                let divisor = e4m3::decode(*scale);
                encode_fp4(x, packed, |x| x / divisor);
            }
        }
    }
}

/// The values of FP4 groups: `out[i] = e2m1(code i of packed) * scale(scales[i / group])`, rounded once (exact unless the
/// product leaves the range of binary32).
///
/// # Panics
///
/// If `out.len()` is not a multiple of the group, `packed.len() != out.len() / 2` or `scales.len() != out.len() / group`.
pub fn dequantize_fp4(packed: &[u8], scales: &[u8], out: &mut [f32], kind: Fp4Scale) {
    let group = kind.group();
    assert_lengths(group, out.len(), packed.len(), 2, scales.len());
    for ((packed, out), &scale) in packed.chunks_exact(group / 2).zip(out.chunks_exact_mut(group)).zip(scales) {
        let scale = kind.decode(scale);
        for (out, &byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(packed) {
            *out = e2m1::PAIRS[usize::from(byte)].map(|value| value * scale);
        }
    }
}

/// E4M3 codes of `x * reciprocal`.
#[inline]
pub(crate) fn encode_fp8(x: &[f32], reciprocal: f32, codes: &mut [u8]) {
    for (code, &x) in codes.iter_mut().zip(x) {
        // The sign of a NaN that arithmetic makes differs between machines: take it from the element.
        *code = e4m3::encode((x * reciprocal).copysign(x));
    }
}

/// E4M3 values times `scale`.
#[inline]
pub(crate) fn decode_fp8(codes: &[u8], scale: f32, out: &mut [f32]) {
    for (out, &code) in out.iter_mut().zip(codes) {
        *out = e4m3::decode(code) * scale;
    }
}

#[inline]
fn encode_fp4(x: &[f32], packed: &mut [u8], divide: impl Fn(f32) -> f32) {
    for (byte, x) in packed.iter_mut().zip(x.as_chunks::<2>().0) {
        // As in `encode_fp8`.
        let [even, odd] = x.map(|x| e2m1::encode(divide(x).copysign(x)));
        *byte = pack::pair(even, odd);
    }
}

fn assert_lengths(group: usize, values: usize, codes: usize, values_per_code: usize, scales: usize) {
    assert!(values.is_multiple_of(group), "{values} values are not whole groups of {group}");
    assert!(
        codes * values_per_code == values && scales * group == values,
        "{values} values in groups of {group} need {} code bytes and {} scale bytes, got {codes} and {scales}",
        values / values_per_code,
        values / group,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fp8(x: &[f32]) -> (Vec<u8>, Vec<u8>, Vec<f32>) {
        let (mut codes, mut scales, mut out) = (vec![0; x.len()], vec![0; x.len() / FP8_GROUP], vec![0.0; x.len()]);
        quantize_fp8(x, &mut codes, &mut scales);
        dequantize_fp8(&codes, &scales, &mut out);
        (codes, scales, out)
    }

    fn fp4(x: &[f32], kind: Fp4Scale) -> (Vec<u8>, Vec<u8>, Vec<f32>) {
        let (mut packed, mut scales, mut out) =
            (vec![0; x.len() / 2], vec![0; x.len() / kind.group()], vec![0.0; x.len()]);
        quantize_fp4(x, &mut packed, &mut scales, kind);
        dequantize_fp4(&packed, &scales, &mut out, kind);
        (packed, scales, out)
    }

    /// One group of each kind whose element `index` is `bad` and whose others are 1.
    fn with_one(bad: f32, index: usize) -> [f32; 32] {
        let mut x = [1.0; 32];
        x[index] = bad;
        x
    }

    #[test]
    fn a_nan_anywhere_marks_its_whole_group_and_no_other() {
        for index in 0..32 {
            for (bad, code) in [(f32::NAN, 0x7F), (-f32::NAN, 0xFF)] {
                let x = [with_one(bad, index), [1.0; 32]].concat();
                let (codes, scales, out) = fp8(&x);
                assert_eq!(scales[0], ue8m0::NAN);
                assert_eq!(codes[index], code);
                assert!((0..32).all(|i| i == index || codes[i] == 0x7F));
                assert!(out[..32].iter().all(|y| y.is_nan()) && out[32..].iter().all(|&y| y == 1.0));

                let (packed, scales, out) = fp4(&x, Fp4Scale::Ue8m0);
                assert_eq!(scales[0], ue8m0::NAN);
                assert_eq!(pack::split(packed[index / 2])[index % 2], code >> 4 | 7);
                assert!(out[..32].iter().all(|y| y.is_nan()) && out[32..].iter().all(|&y| y == 1.0));

                let (packed, scales, out) = fp4(&x, Fp4Scale::E4m3);
                assert_eq!(scales[index / 16], 0x7F);
                assert_eq!(pack::split(packed[index / 2])[index % 2], code >> 4 | 7);
                assert!((0..64).all(|i| out[i].is_nan() == (i / 16 == index / 16)));
            }
        }
    }

    #[test]
    fn an_infinity_marks_a_power_of_two_group_and_saturates_an_e4m3_group() {
        let x = with_one(f32::NEG_INFINITY, 3);
        let (codes, scales, _) = fp8(&x);
        assert_eq!((scales[0], codes[3], codes[4]), (ue8m0::NAN, 0xFF, 0x7F));
        let (packed, scales, _) = fp4(&x, Fp4Scale::Ue8m0);
        assert_eq!((scales[0], packed[1], packed[2]), (ue8m0::NAN, 0xF7, 0x77));
        let (_, scales, out) = fp4(&x, Fp4Scale::E4m3);
        assert_eq!((scales[0], out[3], out[4]), (e4m3::encode(448.0), -2688.0, 0.0));
    }

    #[test]
    fn zeros_keep_their_sign() {
        let x = with_one(-0.0, 7).map(|x| if x == 1.0 { 0.0 } else { x });
        assert!(fp8(&x).2.iter().zip(&x).all(|(y, x)| y.to_bits() == x.to_bits()));
        for kind in [Fp4Scale::Ue8m0, Fp4Scale::E4m3] {
            assert!(fp4(&x, kind).2.iter().zip(&x).all(|(y, x)| y.to_bits() == x.to_bits()));
        }
    }

    #[test]
    #[should_panic(expected = "40 values are not whole groups of 32")]
    fn a_partial_group_panics() {
        quantize_fp8(&[0.0; 40], &mut [0; 40], &mut [0; 2]);
    }

    #[test]
    #[should_panic(expected = "64 values in groups of 16 need 32 code bytes and 4 scale bytes, got 32 and 2")]
    fn too_few_scales_panic() {
        dequantize_fp4(&[0; 32], &[0; 2], &mut [0.0; 64], Fp4Scale::E4m3);
    }

    fn values(range: std::ops::Range<i32>) -> impl Strategy<Value = Vec<f32>> {
        (prop::collection::vec(-1f32..1.0, 64), range)
            .prop_map(|(x, exponent)| x.into_iter().map(|x| x * 2f32.powi(exponent)).collect())
    }

    proptest! {
        /// Half a step of the element format at the largest magnitude bounds the error of every element.
        #[test]
        fn the_error_is_at_most_half_a_step(x in values(-20..100)) {
            let (_, scales, out) = fp8(&x);
            for (i, (x, y)) in x.iter().zip(&out).enumerate() {
                prop_assert!((x - y).abs() <= 16.0 * ue8m0::decode(scales[i / 32]));
            }
            let (_, scales, out) = fp4(&x, Fp4Scale::Ue8m0);
            for (i, (x, y)) in x.iter().zip(&out).enumerate() {
                prop_assert!((x - y).abs() <= ue8m0::decode(scales[i / 32]));
            }
        }

        /// A scale rounded down by up to 1/16 lets the largest element reach 6 * 17/16 steps: clipping then costs 0.375.
        #[test]
        fn the_error_with_an_e4m3_scale_is_at_most_one_step(x in values(-2..11)) {
            let (_, scales, out) = fp4(&x, Fp4Scale::E4m3);
            for (i, (x, y)) in x.iter().zip(&out).enumerate() {
                prop_assert!((x - y).abs() <= e4m3::decode(scales[i / 16]) * (1.0 + f32::EPSILON));
            }
        }

        /// Each element divided by the decoded scale, clamped and rounded, one at a time as the definition reads.
        #[test]
        fn codes_follow_the_definition(x in values(-130..100)) {
            let (codes, scales, _) = fp8(&x);
            for i in 0..x.len() {
                prop_assert_eq!(codes[i], e4m3::encode(x[i] / ue8m0::decode(scales[i / 32])));
            }
            for kind in [Fp4Scale::Ue8m0, Fp4Scale::E4m3] {
                let (packed, scales, _) = fp4(&x, kind);
                for i in 0..x.len() {
                    let scaled = (x[i] / kind.decode(scales[i / kind.group()])).clamp(-6.0, 6.0);
                    prop_assert_eq!(pack::split(packed[i / 2])[i % 2], e2m1::encode(scaled));
                }
            }
        }

        /// What was read back quantises to itself: a second trip through a cache changes nothing.
        #[test]
        fn power_of_two_groups_are_stable(x in values(-20..100)) {
            let once = fp8(&x).2;
            prop_assert_eq!(&fp8(&once).2, &once);
            let once = fp4(&x, Fp4Scale::Ue8m0).2;
            prop_assert_eq!(&fp4(&once, Fp4Scale::Ue8m0).2, &once);
        }
    }
}
