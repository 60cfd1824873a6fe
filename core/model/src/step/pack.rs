//! Arrays on their way to the device, in one buffer that is used again.

use std::collections::TryReserveError;

use deepinfer_ops::{Arena, Device, Format, OpError, Tensor};

/// Arrays on their way to the device.
#[derive(Default)]
pub(crate) struct Pack {
    /// As long as it ever was; what lies behind `end` is old.
    bytes: Vec<u8>,
    end: usize,
    arrays: Vec<Array>,
}

/// Where an array lies. It has one or two dimensions.
struct Array {
    start: usize,
    format: Format,
    shape: [usize; 2],
    rank: usize,
}

/// An array of a [`Pack`].
#[derive(Clone, Copy, Debug)]
pub(super) struct At(usize);

impl Pack {
    /// Begins again.
    pub(super) fn clear(&mut self) {
        self.end = 0;
        self.arrays.clear();
    }

    /// An array of I32, whose old content is to be overwritten.
    pub(super) fn words(&mut self, shape: &[usize]) -> Result<(At, &mut [[u8; 4]]), OpError> {
        let (at, bytes) = self.begin(Format::I32, shape)?;
        Ok((at, bytes.as_chunks_mut().0))
    }

    /// As [`Pack::words`], of F32.
    pub(super) fn floats(&mut self, shape: &[usize]) -> Result<(At, &mut [[u8; 4]]), OpError> {
        let (at, bytes) = self.begin(Format::F32, shape)?;
        Ok((at, bytes.as_chunks_mut().0))
    }

    /// As [`Pack::words`], of U8.
    pub(super) fn bytes(&mut self, shape: &[usize]) -> Result<(At, &mut [u8]), OpError> {
        self.begin(Format::U8, shape)
    }

    /// Makes room for the next array. Windows and pages decide how long the arrays of a step are, so that memory may well
    /// run out here.
    fn begin(&mut self, format: Format, dims: &[usize]) -> Result<(At, &mut [u8]), OpError> {
        let start = self.end.next_multiple_of(64);
        let elements = dims.iter().fold(1_usize, |product, &dim| product.saturating_mul(dim));
        let len = elements.saturating_mul(format.bytes(1));
        let end = start.saturating_add(len);
        if end > self.bytes.len() {
            let missing = end - self.bytes.len();
            self.bytes.try_reserve(missing).map_err(|error| out_of_host_memory(end, &error))?;
            self.bytes.resize(end, 0);
        }
        let mut shape = [1; 2];
        shape[..dims.len()].copy_from_slice(dims);
        self.arrays.push(Array { start, format, shape, rank: dims.len() });
        self.end = end;
        Ok((At(self.arrays.len() - 1), &mut self.bytes[start..end]))
    }

    /// All arrays.
    pub(crate) fn packed(&self) -> &[u8] {
        &self.bytes[..self.end]
    }

    /// Takes all arrays to the device, without a wait.
    pub(super) fn upload(&self, device: &dyn Device, arena: &Arena) -> Result<Uploaded<'_>, OpError> {
        let whole = arena.tensor(Format::U8, &[self.end])?;
        device.upload_staged(&whole, self.packed())?;
        Ok(Uploaded { whole, arrays: &self.arrays })
    }
}

fn out_of_host_memory(bytes: usize, error: &TryReserveError) -> OpError {
    OpError::OutOfMemory {
        bytes: bytes as u64,
        reason: format!("the host cannot hold the metadata of a step: {error}"),
    }
}

/// The arrays on the device.
pub(super) struct Uploaded<'a> {
    whole: Tensor,
    arrays: &'a [Array],
}

impl Uploaded<'_> {
    /// The memory of all arrays.
    pub(super) fn whole(&self) -> Tensor {
        self.whole.clone()
    }

    pub(super) fn get(&self, at: At) -> Tensor {
        let Array { start, format, ref shape, rank } = self.arrays[at.0];
        Tensor::plain(&self.whole.memory(), start, format, &shape[..rank])
    }
}

/// Writes one value per place; values that are too many are left.
pub(super) fn store(out: &mut [[u8; 4]], values: impl Iterator<Item = u32>) {
    out.iter_mut().zip(values).for_each(|(out, value)| *out = value.to_le_bytes());
}

/// Writes `first`, `first + 1`, ...
pub(super) fn fill_run(out: &mut [[u8; 4]], first: usize) {
    // Counted by `enumerate`, which the compiler turns into vector code; an open range it does not.
    let first = first as u32;
    out.iter_mut().enumerate().for_each(|(i, out)| *out = first.wrapping_add(i as u32).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_that_do_not_fit_are_errors() {
        let mut pack = Pack::default();
        assert!(pack.words(&[2]).is_ok());
        for shape in [[usize::MAX / 8, 1], [usize::MAX, 2]] {
            let error = pack.words(&shape).unwrap_err();
            assert!(matches!(error, OpError::OutOfMemory { .. }), "{error}");
            assert!(error.to_string().contains("metadata of a step"), "{error}");
        }
        assert!(pack.words(&[2]).is_ok());
    }

    #[test]
    fn arrays_begin_at_multiples_of_64_bytes_and_the_buffer_is_used_again() {
        let mut pack = Pack::default();
        for _ in 0..2 {
            pack.clear();
            pack.bytes(&[3]).unwrap().1.copy_from_slice(&[1, 2, 3]);
            store(pack.words(&[2]).unwrap().1, [5, 6, 7].into_iter());
            fill_run(pack.words(&[1, 2]).unwrap().1, u32::MAX as usize);
            let starts: Vec<usize> = pack.arrays.iter().map(|array| array.start).collect();
            assert_eq!((starts, pack.end), (vec![0, 64, 128], 136));
            assert_eq!(pack.bytes[64..72], [5, 0, 0, 0, 6, 0, 0, 0]);
            assert_eq!(pack.bytes[128..136], [255, 255, 255, 255, 0, 0, 0, 0]);
            pack.bytes(&[1000]).unwrap();
        }
        assert_eq!(pack.bytes.len(), 192 + 1000);
    }
}
