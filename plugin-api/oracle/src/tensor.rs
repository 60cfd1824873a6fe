//! A tensor as host values: what oracles read, and what devices are given and give back.

use deepinfer_plugin_api::Format;

use crate::formats;

/// A contiguous tensor of any format, in row-major order, with the bytes that a device holds.
#[derive(Clone, PartialEq)]
pub struct HostTensor {
    /// Format of elements and scales.
    pub format: Format,
    /// Extents in elements.
    pub shape: Vec<usize>,
    /// Elements, little-endian; [`Format::bytes`] of them. Of two FP4 elements the even one lies in the low half.
    pub codes: Vec<u8>,
    /// Scales, one byte for each place of [`Format::scale_grid`]; empty for plain formats.
    pub scales: Vec<u8>,
}

impl HostTensor {
    /// A tensor whose bytes are all `byte`.
    ///
    /// # Panics
    /// If `format` is quantised and `shape` has fewer than two dimensions.
    pub fn filled(format: Format, shape: &[usize], byte: u8) -> Self {
        let scales = format.scale_grid(shape).map_or(0, |grid| grid.iter().product());
        Self {
            format,
            shape: shape.to_vec(),
            codes: vec![byte; format.bytes(shape.iter().product())],
            scales: vec![byte; scales],
        }
    }

    /// Values rounded to a float format, plain or quantised.
    ///
    /// # Panics
    /// If there are not as many values as the shape has elements, or `format` is one of integers.
    pub fn floats(format: Format, shape: &[usize], values: &[f32]) -> Self {
        assert_eq!(values.len(), shape.iter().product::<usize>());
        let mut out = Self::filled(format, shape, 0);
        match format {
            Format::F32 => out.codes = values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Format::Bf16 => out.codes = values.iter().flat_map(|&v| formats::bf16_bits(v).to_le_bytes()).collect(),
            _ => formats::quantize(values, &mut out),
        }
        out
    }

    /// A tensor of I32.
    ///
    /// # Panics
    /// If there are not as many values as the shape has elements.
    pub fn i32(shape: &[usize], values: &[i32]) -> Self {
        assert_eq!(values.len(), shape.iter().product::<usize>());
        let codes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { format: Format::I32, shape: shape.to_vec(), codes, scales: Vec::new() }
    }

    /// A tensor of I64.
    ///
    /// # Panics
    /// If there are not as many values as the shape has elements.
    pub fn i64(shape: &[usize], values: &[i64]) -> Self {
        assert_eq!(values.len(), shape.iter().product::<usize>());
        let codes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { format: Format::I64, shape: shape.to_vec(), codes, scales: Vec::new() }
    }

    /// A tensor of U8.
    ///
    /// # Panics
    /// If there are not as many values as the shape has elements.
    pub fn u8(shape: &[usize], codes: Vec<u8>) -> Self {
        assert_eq!(codes.len(), shape.iter().product::<usize>());
        Self { format: Format::U8, shape: shape.to_vec(), codes, scales: Vec::new() }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values that a float format stands for; a product with a scale is rounded to F32 as the catalogue says.
    ///
    /// # Panics
    /// If the format is one of integers.
    pub fn values(&self) -> Vec<f32> {
        match self.format {
            Format::F32 => self.words().map(f32::from_bits).collect(),
            Format::Bf16 => {
                self.codes.chunks_exact(2).map(|c| f32::from_bits(u32::from_le_bytes([0, 0, c[0], c[1]]))).collect()
            }
            _ => formats::dequantize(self),
        }
    }

    /// [`HostTensor::values`] in F64.
    ///
    /// # Panics
    /// As [`HostTensor::values`].
    pub fn wide(&self) -> Vec<f64> {
        self.values().into_iter().map(f64::from).collect()
    }

    /// The values of an integer format.
    ///
    /// # Panics
    /// If the format is one of floats.
    pub fn ints(&self) -> Vec<i64> {
        match self.format {
            Format::I32 => self.words().map(|w| i64::from(w as i32)).collect(),
            Format::I64 => {
                self.codes.chunks_exact(8).map(|c| i64::from_le_bytes(c.try_into().expect("eight bytes"))).collect()
            }
            Format::U8 => self.codes.iter().map(|&b| i64::from(b)).collect(),
            other => panic!("{other} has no integers"),
        }
    }

    fn words(&self) -> impl Iterator<Item = u32> {
        self.codes.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]))
    }

    /// Bytes of one element; FP4 has none.
    pub fn element_bytes(&self) -> Option<usize> {
        let bits = self.format.code_bits().1 as usize;
        (bits >= 8).then_some(bits / 8)
    }

    /// The slices `index` of dimension `dim`, in that order. The last dimension of a quantised tensor and a dimension
    /// under tile scales stay whole or become empty.
    ///
    /// # Panics
    /// If there is no such dimension or slice.
    pub fn select(&self, dim: usize, index: &[usize]) -> Self {
        let mut shape = self.shape.clone();
        shape[dim] = index.len();
        let pick = |bytes: &[u8]| {
            let outer: usize = self.shape[..dim].iter().product();
            // Bytes under one index of `dim`; zero when nothing is left to pick.
            let chunk = if bytes.is_empty() { 0 } else { bytes.len() / (outer * self.shape[dim]) };
            let mut out = Vec::with_capacity(outer * index.len() * chunk);
            for o in 0..outer {
                for &i in index {
                    out.extend_from_slice(&bytes[(o * self.shape[dim] + i) * chunk..][..chunk]);
                }
            }
            out
        };
        Self { format: self.format, codes: pick(&self.codes), scales: pick(&self.scales), shape }
    }

    /// Whether both have the same bits, but for sign and payload of a NaN: arithmetic does not define them.
    pub fn same_but_nan(&self, other: &Self) -> bool {
        if self == other {
            return true;
        }
        let is_nan: Vec<[bool; 2]> = match self.format {
            Format::F32 | Format::Bf16 => {
                self.values().iter().zip(other.values()).map(|(a, b)| [a.is_nan(), b.is_nan()]).collect()
            }
            Format::Fp8Row32 => {
                self.codes.iter().zip(&other.codes).map(|(a, b)| [a | 0x80 == 0xFF, b | 0x80 == 0xFF]).collect()
            }
            _ => return false,
        };
        (self.format, &self.shape, &self.scales) == (other.format, &other.shape, &other.scales)
            && is_nan.iter().enumerate().all(|(i, nan)| *nan == [true; 2] || self.element(i) == other.element(i))
    }

    /// The bytes of element `i` of a format of whole bytes.
    ///
    /// # Panics
    /// If the format is FP4, or there is no such element.
    pub fn element(&self, i: usize) -> &[u8] {
        let size = self.element_bytes().expect("whole bytes");
        &self.codes[i * size..(i + 1) * size]
    }

    /// Overwrites element `i` of a format of whole bytes.
    ///
    /// # Panics
    /// If there is no such element.
    pub fn set_element(&mut self, i: usize, bytes: &[u8]) {
        self.codes[i * bytes.len()..(i + 1) * bytes.len()].copy_from_slice(bytes);
    }
}
