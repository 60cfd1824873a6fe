//! The contents of tensors, row by row.

use deepinfer_numerics::{Bf16, Fp4Scale, group};
use deepinfer_ops::{Device, Format, OpError, Tensor};

use super::rows::Layout;

/// What a contiguous tensor holds.
pub(super) struct Contents {
    codes: Vec<u8>,
    scales: Vec<u8>,
    format: Option<Format>,
    shape: Vec<usize>,
}

/// One row of it.
pub(super) struct RowContents {
    codes: Vec<u8>,
    scales: Vec<u8>,
    format: Option<Format>,
}

/// Reads a contiguous tensor back, once the work before has ended.
pub(super) fn read(device: &dyn Device, tensor: &Tensor) -> Result<Contents, OpError> {
    let bytes_of = |tensor: &Tensor| {
        let mut bytes = vec![0; tensor.bytes()];
        if !bytes.is_empty() {
            device.download(tensor, &mut bytes)?;
        }
        Ok::<_, OpError>(bytes)
    };
    let scales = match tensor.scale() {
        Some(_) => bytes_of(&tensor.scale_as_bytes())?,
        None => Vec::new(),
    };
    let shape = tensor.shape().iter().map(|&extent| extent as usize).collect();
    Ok(Contents { codes: bytes_of(tensor)?, scales, format: tensor.format(), shape })
}

/// The values of an I32 tensor.
pub(super) fn ints(device: &dyn Device, tensor: &Tensor) -> Result<Vec<i32>, OpError> {
    Ok(read(device, tensor)?.codes.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect())
}

impl Contents {
    /// Row `index`, without its padding.
    pub(super) fn row(&self, index: usize, layout: &Layout) -> RowContents {
        let outer: usize = self.shape[..layout.dimension].iter().product();
        let part = |bytes: &[u8]| -> Vec<u8> {
            let row = bytes.len() / (outer * self.shape[layout.dimension]).max(1);
            let of_outer = bytes.len() / outer.max(1);
            (0..outer).flat_map(|at| &bytes[at * of_outer + index * row..][..row]).copied().collect()
        };
        let mut codes = part(&self.codes);
        if let Some(padding) = layout.padding {
            let kept = codes.as_chunks::<4>().0.iter().rposition(|element| *element != padding);
            codes.truncate(kept.map_or(0, |last| 4 * (last + 1)));
        }
        RowContents { codes, scales: part(&self.scales), format: self.format }
    }
}

impl RowContents {
    /// Codes, then scales.
    pub(super) fn bytes(&self) -> Vec<u8> {
        [self.codes.as_slice(), &self.scales].concat()
    }

    /// What they mean.
    pub(super) fn values(&self) -> Vec<f32> {
        let words = || self.codes.as_chunks::<4>().0.iter().copied();
        match self.format {
            Some(Format::F32) => words().map(f32::from_le_bytes).collect(),
            Some(Format::I32) => words().map(|bytes| i32::from_le_bytes(bytes) as f32).collect(),
            Some(Format::Bf16) => {
                self.codes.as_chunks().0.iter().map(|&b| Bf16(u16::from_le_bytes(b)).to_f32()).collect()
            }
            Some(Format::Fp8Row32) => {
                let mut values = vec![0.0; self.codes.len()];
                group::dequantize_fp8(&self.codes, &self.scales, &mut values);
                values
            }
            Some(Format::Fp4Row32) => self.fp4(Fp4Scale::Ue8m0),
            Some(Format::Fp4Row16) => self.fp4(Fp4Scale::E4m3),
            _ => self.codes.iter().map(|&byte| f32::from(byte)).collect(),
        }
    }

    fn fp4(&self, scale: Fp4Scale) -> Vec<f32> {
        let mut values = vec![0.0; 2 * self.codes.len()];
        group::dequantize_fp4(&self.codes, &self.scales, &mut values, scale);
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(dimension: usize, padding: Option<[u8; 4]>) -> Layout {
        Layout { dimension, places: Vec::new(), padding }
    }

    #[test]
    fn rows_of_any_dimension_lose_their_padding() {
        let numbers = [1_i32, 2, -1, 3, -1, -1, -1, -1, 4, 5, 6, 7];
        let codes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        let contents = |shape: &[usize]| Contents {
            codes: codes.clone(),
            scales: Vec::new(),
            format: Some(Format::I32),
            shape: shape.to_vec(),
        };
        let trimmed = layout(0, Some((-1_i32).to_le_bytes()));
        let rows = contents(&[3, 4]);
        assert_eq!(rows.row(0, &trimmed).values(), [1.0, 2.0, -1.0, 3.0]);
        assert_eq!(rows.row(1, &trimmed).values(), [0.0; 0]);
        assert_eq!(rows.row(1, &layout(0, None)).values(), [-1.0; 4]);
        // Of a stack of two matrices, the rows of both.
        assert_eq!(contents(&[2, 3, 2]).row(1, &layout(1, None)).values(), [-1.0, 3.0, 4.0, 5.0]);
    }
}
