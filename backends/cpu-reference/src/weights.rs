//! Rows of weights, and columns of input rows, as F32, whatever their format.
//!
//! Every value is `element * scale`, one F32 product, with the bits of the tables in `deepinfer_numerics`, except that the
//! sign of a NaN under a NaN scale is the processor's choice. The tables are not used: elements are made from their bit
//! fields, which a vector unit does for many at once.

use std::ops::Range;

use deepinfer_plugin_api::numerics::{Bf16, ue8m0};
use deepinfer_plugin_api::sdk::Fault;
use deepinfer_plugin_api::sdk::tensor::{FloatRows, In, Rows};
use deepinfer_plugin_api::{Format, Shaped};

use crate::simd::{Lanes, multiversion};

/// Columns under one scale.
const GROUP: usize = 32;

/// A matrix whose rows are the weights of one output each.
#[derive(Clone, Copy)]
pub(crate) enum Weights<'a> {
    F32(Rows<'a, f32>),
    Bf16(Rows<'a, Bf16>),
    /// E4M3 codes, and the scales of each band of 32 rows.
    Fp8Tile32(Rows<'a, u8>, Rows<'a, u8>),
    /// Packed E2M1 codes, and the scales of each row.
    Fp4Row32(Rows<'a, u8>, Rows<'a, u8>),
}

impl<'a> Weights<'a> {
    /// Wraps a `[rows, columns]` matrix.
    ///
    /// # Errors
    /// The format is another one, or the scales do not fit the shape.
    pub(crate) fn new(tensor: &In<'a>) -> Result<Self, Fault> {
        Ok(match tensor.format() {
            Some(Format::F32) => Weights::F32(tensor.rows()?),
            Some(Format::Fp8Tile32) => Weights::Fp8Tile32(tensor.codes()?, tensor.scales()?),
            Some(Format::Fp4Row32) => Weights::Fp4Row32(tensor.codes()?, tensor.scales()?),
            // Any other format gets the sentence of the typed view.
            _ => Weights::Bf16(tensor.rows()?),
        })
    }

    /// Decodes row `row` into `out`.
    ///
    /// # Panics
    /// If there is no such row, or `out` does not have its columns.
    pub(crate) fn decode(&self, row: usize, out: &mut [f32]) {
        match self {
            Weights::F32(rows) => out.copy_from_slice(rows.row(row)),
            Weights::Bf16(rows) => decode_bf16(rows.row(row), out),
            Weights::Fp8Tile32(codes, scales) => decode_fp8(codes.row(row), scales.row(row / GROUP), out),
            Weights::Fp4Row32(codes, scales) => decode_fp4(codes.row(row), scales.row(row), out),
        }
    }
}

/// Copies `columns` of row `row` of `x` to `out`, decoded. `scratch` serves formats whose groups the columns may cut.
///
/// # Panics
/// If there is no such row or column, or `out` does not have as many elements as there are columns.
pub(crate) fn load_columns(
    x: &FloatRows<'_>,
    row: usize,
    columns: Range<usize>,
    out: &mut [f32],
    scratch: &mut Vec<f32>,
) {
    match x {
        FloatRows::F32(rows) => out.copy_from_slice(&rows.row(row)[columns]),
        FloatRows::Bf16(rows) => decode_bf16(&rows.row(row)[columns], out),
        FloatRows::Fp8(codes, scales) => {
            let start = columns.start - columns.start % GROUP;
            let codes = &codes.row(row)[start..columns.end];
            scratch.resize(codes.len(), 0.0);
            decode_fp8(codes, &scales.row(row)[start / GROUP..], scratch);
            out.copy_from_slice(&scratch[columns.start - start..]);
        }
        FloatRows::Fp4(..) => out.copy_from_slice(&x.load(row, scratch)[columns]),
    }
}

multiversion! {
    /// Widens `values`.
    ///
    /// # Panics
    /// If the lengths differ.
    fn decode_bf16 / decode_bf16_at(values: &[Bf16], out: &mut [f32]) = decode_bf16_body
}

multiversion! {
    /// E4M3 codes with one UE8M0 scale per 32; the last group may be partial.
    ///
    /// # Panics
    /// If `out` does not have one element per code, or there are too few scales.
    fn decode_fp8 / decode_fp8_at(codes: &[u8], scales: &[u8], out: &mut [f32]) = decode_fp8_body
}

multiversion! {
    /// E2M1 codes, two to a byte, with one UE8M0 scale per 32; the last group, and then the last byte, may be partial.
    ///
    /// # Panics
    /// If `out` does not have the elements of `codes`, or there are too few scales.
    fn decode_fp4 / decode_fp4_at(codes: &[u8], scales: &[u8], out: &mut [f32]) = decode_fp4_body
}

#[inline(always)]
fn decode_bf16_body<V: Lanes>(values: &[Bf16], out: &mut [f32]) {
    assert_eq!(values.len(), out.len());
    for (out, value) in out.iter_mut().zip(values) {
        *out = value.to_f32();
    }
}

#[inline(always)]
fn decode_fp8_body<V: Lanes>(codes: &[u8], scales: &[u8], out: &mut [f32]) {
    assert!(codes.len() == out.len() && scales.len() >= out.len().div_ceil(GROUP));
    let (groups, rest) = codes.as_chunks::<GROUP>();
    let (out_groups, out_rest) = out.as_chunks_mut::<GROUP>();
    for ((out, codes), &scale) in out_groups.iter_mut().zip(groups).zip(scales) {
        let scale = ue8m0::decode(scale);
        for (out, &code) in out.iter_mut().zip(codes) {
            *out = e4m3_value(code) * scale;
        }
    }
    for (out, &code) in out_rest.iter_mut().zip(rest) {
        *out = e4m3_value(code) * ue8m0::decode(scales[groups.len()]);
    }
}

#[inline(always)]
fn decode_fp4_body<V: Lanes>(codes: &[u8], scales: &[u8], out: &mut [f32]) {
    assert!(codes.len() == out.len().div_ceil(2) && scales.len() >= out.len().div_ceil(GROUP));
    let (out_groups, out_rest) = out.as_chunks_mut::<GROUP>();
    let (groups, rest) = codes.split_at(out_groups.len() * GROUP / 2);
    for ((out, codes), &scale) in out_groups.iter_mut().zip(groups.as_chunks::<{ GROUP / 2 }>().0).zip(scales) {
        let scale = ue8m0::decode(scale);
        for (out, &byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
            *out = [e2m1_value(byte & 15) * scale, e2m1_value(byte >> 4) * scale];
        }
    }
    for (index, out) in out_rest.iter_mut().enumerate() {
        let byte = rest[index / 2];
        let code = if index.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
        *out = e2m1_value(code) * ue8m0::decode(scales[out_groups.len()]);
    }
}

/// The value of an E4M3 code.
#[inline(always)]
fn e4m3_value(code: u8) -> f32 {
    let (sign, magnitude) = (u32::from(code & 0x80) << 24, u32::from(code & 0x7F));
    // The fields moved to their binary32 places, the exponent re-biased from 7 to 127.
    let normal = f32::from_bits((magnitude << 20) + (120 << 23));
    // With exponent field 0 that read 2^-7 * (1 + m/8); the code means 2^-6 * m/8.
    let subnormal = (normal - 0.007_812_5) * 2.0;
    let value = if magnitude < 8 { subnormal } else { normal }.to_bits();
    let value = if magnitude == 0x7F { f32::NAN.to_bits() } else { value };
    f32::from_bits(value | sign)
}

/// The value of an E2M1 code below 16.
#[inline(always)]
fn e2m1_value(code: u8) -> f32 {
    let (sign, magnitude) = (u32::from(code & 8) << 28, u32::from(code & 7));
    // As above, from bias 1.
    let normal = f32::from_bits((magnitude << 22) + (126 << 23));
    let subnormal = (normal - 0.5) * 2.0;
    let value = if magnitude < 2 { subnormal } else { normal };
    f32::from_bits(value.to_bits() | sign)
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::numerics::{e2m1, e4m3};

    use super::*;
    use crate::simd::Level;
    use crate::testing::{Tensor, view};

    /// Bit patterns, with one for all NaN.
    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
    }

    #[test]
    fn every_code_has_the_bits_of_the_table() {
        for code in 0..=u8::MAX {
            assert_eq!(e4m3_value(code).to_bits(), e4m3::decode(code).to_bits(), "E4M3 code {code:#04x}");
        }
        for code in 0..16 {
            assert_eq!(e2m1_value(code).to_bits(), e2m1::decode(code).to_bits(), "E2M1 code {code}");
        }
    }

    /// All codes with all scales, and lengths with partial groups, at every vector width.
    #[test]
    fn groups_are_the_product_of_table_and_scale() {
        let codes: Vec<u8> = (0..=u8::MAX).collect();
        for &level in Level::available() {
            for scale in 0..=u8::MAX {
                let scales = [scale; 16];
                let factor = ue8m0::decode(scale);
                for len in [256, 250, 33, 32, 5, 1, 0] {
                    let mut out = vec![f32::NAN; len];
                    decode_fp8_at(level, &codes[..len], &scales, &mut out);
                    let expected: Vec<f32> = codes[..len].iter().map(|&c| e4m3::decode(c) * factor).collect();
                    assert_eq!(bits(&out), bits(&expected), "{level:?}, scale {scale}, {len} elements");
                }
                for len in [512, 511, 500, 63, 33, 31, 1, 0] {
                    let mut out = vec![f32::NAN; len];
                    decode_fp4_at(level, &codes[..len.div_ceil(2)], &scales, &mut out);
                    let element = |i: usize| e2m1::PAIRS[usize::from(codes[i / 2])][i % 2] * factor;
                    let expected: Vec<f32> = (0..len).map(element).collect();
                    assert_eq!(bits(&out), bits(&expected), "{level:?}, scale {scale}, {len} elements");
                }
            }
        }
    }

    #[test]
    fn bf16_is_widened() {
        let values: Vec<Bf16> = (0..=u16::MAX).map(Bf16).collect();
        for &level in Level::available() {
            let mut out = vec![0.0; values.len()];
            decode_bf16_at(level, &values, &mut out);
            assert!(out.iter().zip(&values).all(|(o, v)| o.to_bits() == u32::from(v.0) << 16));
        }
    }

    #[test]
    fn columns_of_a_row_are_those_of_the_whole_row() {
        let values: Vec<f32> = (0..192).map(|i| (i as f32 * 0.7).sin() * 2.0_f32.powi(i / 16 - 4)).collect();
        for format in [Format::F32, Format::Bf16, Format::Fp8Row32, Format::Fp4Row32, Format::Fp4Row16] {
            let tensor = Tensor::floating(format, &[2, 96], &values);
            let (whole, raw) = (tensor.floats(), tensor.input());
            let rows = view(&raw).floats().unwrap();
            for columns in [0..96, 32..64, 5..77, 33..33] {
                let mut out = vec![f32::NAN; columns.len()];
                load_columns(&rows, 1, columns.clone(), &mut out, &mut Vec::new());
                assert_eq!(bits(&out), bits(&whole[96..][columns]), "{format}");
            }
        }
    }
}
