//! Small arrays on their way to the device, in one buffer and one upload.

use deepinfer_ops::{Arena, Device, Format, OpError, Tensor};

/// Every array begins on a cache line of its own.
const ALIGN: usize = 64;

/// Arrays that are filled on the host; the buffer is used again step after step.
#[derive(Default)]
pub(crate) struct Staging {
    bytes: Vec<u8>,
    arrays: Vec<Array>,
}

#[derive(Clone, Copy)]
struct Array {
    start: usize,
    format: Format,
    shape: [usize; 2],
    rank: usize,
}

/// An array of a [`Staging`].
#[derive(Clone, Copy)]
pub(crate) struct ArrayId(usize);

impl Staging {
    /// Begins again.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.arrays.clear();
    }

    /// An array with these values, which make up `shape` in `format`.
    pub(crate) fn push<const N: usize>(
        &mut self,
        format: Format,
        shape: &[usize],
        mut values: impl Iterator<Item = [u8; N]>,
    ) -> ArrayId {
        let start = self.bytes.len().next_multiple_of(ALIGN);
        self.bytes.resize(start + Tensor::bytes_of(format, shape), 0);
        for place in self.bytes[start..].as_chunks_mut::<N>().0 {
            *place = values.next().expect("a value for every place of the shape");
        }
        debug_assert!(values.next().is_none(), "more values than {format}{shape:?} has places");
        let mut dims = [1; 2];
        dims[..shape.len()].copy_from_slice(shape);
        self.arrays.push(Array { start, format, shape: dims, rank: shape.len() });
        ArrayId(self.arrays.len() - 1)
    }

    /// Takes all arrays to temporary memory of the device, without a wait.
    pub(crate) fn upload(&self, device: &dyn Device, arena: &Arena) -> Result<Staged<'_>, OpError> {
        let memory = arena.tensor(Format::U8, &[self.bytes.len()])?;
        device.upload_staged(&memory, &self.bytes)?;
        Ok(Staged { memory, arrays: &self.arrays })
    }
}

/// The arrays on the device.
pub(crate) struct Staged<'a> {
    memory: Tensor,
    arrays: &'a [Array],
}

impl Staged<'_> {
    pub(crate) fn get(&self, id: ArrayId) -> Tensor {
        let Array { start, format, ref shape, rank } = self.arrays[id.0];
        Tensor::plain(&self.memory.memory(), start, format, &shape[..rank])
    }
}
