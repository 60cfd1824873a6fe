//! Tensors: descriptions of device memory.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use deepinfer_plugin_api::abi::{DI_CODE_E4M3FN, DI_CODE_E8M0FNU, DI_CODE_UINT};
use deepinfer_plugin_api::{Format, Shaped};

/// Largest number of dimensions.
pub(crate) const MAX_RANK: usize = 4;

/// Memory of a device, alive as long as `owner`.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// Device address of the first byte.
    pub address: usize,
    /// Bytes.
    pub bytes: usize,
    /// `DI_DEVICE_*`.
    pub device_type: i32,
    /// Ordinal of the device.
    pub device_id: i32,
    /// Frees the memory when the last clone is dropped.
    pub owner: Arc<dyn Any + Send + Sync>,
}

/// A strided view of device memory, with its scales when it is quantised. Cloning copies the description only.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    pub(crate) device_type: i32,
    pub(crate) device_id: i32,
    pub(crate) rank: usize,
    pub(crate) shape: [i64; MAX_RANK],
    pub(crate) strides: [i64; MAX_RANK],
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) format: Option<Format>,
    pub(crate) scale: Option<Arc<Tensor>>,
    owner: Arc<dyn Any + Send + Sync>,
}

impl Tensor {
    /// Bytes of codes that a contiguous tensor takes.
    pub fn bytes_of(format: Format, shape: &[usize]) -> usize {
        format.bytes(shape.iter().product())
    }

    /// Shape of the scale grid of a quantised tensor.
    pub fn scale_shape(format: Format, shape: &[usize]) -> Option<Vec<usize>> {
        format.scale_grid(shape)
    }

    /// Bytes of the scales of a contiguous quantised tensor, one each; `None` for plain formats.
    ///
    /// # Panics
    /// If the format is quantised and `shape` has fewer than two dimensions.
    pub fn scale_bytes(format: Format, shape: &[usize]) -> Option<usize> {
        let info = format.scale()?;
        let [rest @ .., rows, columns] = shape else { panic!("{format} has at least two dimensions, not {shape:?}") };
        Some(rest.iter().product::<usize>() * rows.div_ceil(info.rows) * columns.div_ceil(info.columns))
    }

    /// A contiguous tensor of a plain format at `offset` bytes into an allocation.
    ///
    /// # Panics
    /// If it does not fit, has more than four dimensions, or `format` is quantised.
    pub fn plain(memory: &Allocation, offset: usize, format: Format, shape: &[usize]) -> Tensor {
        assert!(format.scale().is_none(), "{format} needs scales");
        Self::raw(memory, offset, format.code_bits(), Some(format), shape)
    }

    /// A contiguous quantised tensor: codes at `offset`, scales at `scale_offset`, each in its allocation.
    ///
    /// # Panics
    /// If it does not fit, or `format` is plain.
    pub fn quantized(
        codes: (&Allocation, usize),
        scales: (&Allocation, usize),
        format: Format,
        shape: &[usize],
    ) -> Tensor {
        let info = format.scale().unwrap_or_else(|| panic!("{format} has no scales"));
        let mut tensor = Self::raw(codes.0, codes.1, format.code_bits(), Some(format), shape);
        let mut grid = [1; MAX_RANK];
        grid[..shape.len()].copy_from_slice(shape);
        let [.., rows, columns] = &mut grid[..shape.len()] else {
            panic!("{format} has at least two dimensions, not {shape:?}")
        };
        (*rows, *columns) = (rows.div_ceil(info.rows), columns.div_ceil(info.columns));
        tensor.scale = Some(Arc::new(Self::raw(scales.0, scales.1, (info.code, 8), None, &grid[..shape.len()])));
        tensor
    }

    fn raw(
        memory: &Allocation,
        offset: usize,
        (code, bits): (u8, u8),
        format: Option<Format>,
        dims: &[usize],
    ) -> Tensor {
        let rank = dims.len();
        assert!(rank <= MAX_RANK, "{rank} dimensions; at most {MAX_RANK} are possible");
        let (mut shape, mut strides) = ([1; MAX_RANK], [1; MAX_RANK]);
        let (mut stride, mut elements) = (1, 1);
        for dim in (0..rank).rev() {
            shape[dim] = dims[dim] as i64;
            strides[dim] = stride;
            stride *= shape[dim].max(1);
            elements *= dims[dim];
        }
        let bytes = (elements * bits as usize).div_ceil(8);
        assert!(
            offset + bytes <= memory.bytes,
            "{bytes} bytes at {offset} do not fit an allocation of {} bytes",
            memory.bytes
        );
        Tensor {
            address: memory.address + offset,
            bytes,
            device_type: memory.device_type,
            device_id: memory.device_id,
            rank,
            shape,
            strides,
            code,
            bits,
            format,
            scale: None,
            owner: memory.owner.clone(),
        }
    }

    /// Extents in logical elements.
    pub fn shape(&self) -> &[i64] {
        &self.shape[..self.rank]
    }

    /// One extent.
    ///
    /// # Panics
    /// If there is no such dimension.
    pub fn dim(&self, dim: usize) -> usize {
        self.shape()[dim] as usize
    }

    /// Format, or `None` for scale tensors.
    pub fn format(&self) -> Option<Format> {
        self.format
    }

    /// Scales of a quantised tensor.
    pub fn scale(&self) -> Option<&Tensor> {
        self.scale.as_deref()
    }

    /// Bytes from the first to the last element, without the scales.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Device address of the first element.
    pub fn address(&self) -> usize {
        self.address
    }

    /// `DI_DEVICE_*` of the device that holds it.
    pub fn device_type(&self) -> i32 {
        self.device_type
    }

    /// Ordinal of that device.
    pub fn device_id(&self) -> i32 {
        self.device_id
    }

    /// Whether the elements lie one after the other.
    pub fn is_contiguous(&self) -> bool {
        let mut stride = 1;
        (0..self.rank).rev().all(|dim| {
            let fits = self.shape[dim] == 1 || self.strides[dim] == stride;
            stride *= self.shape[dim].max(1);
            fits
        })
    }

    /// The same elements under another shape.
    ///
    /// # Panics
    /// If the tensor is not contiguous, the number of elements differs, or scales would not follow (the last
    /// dimension of a quantised tensor must stay).
    pub fn reshape(&self, dims: &[usize]) -> Tensor {
        assert!(self.is_contiguous(), "only contiguous tensors change their shape");
        let elements: i64 = self.shape().iter().product();
        assert_eq!(elements as usize, dims.iter().product::<usize>(), "{:?} to {dims:?}", self.shape());
        let memory = self.memory();
        let mut out = Self::raw(&memory, 0, (self.code, self.bits), self.format, dims);
        if let (Some(scale), Some(format)) = (&self.scale, self.format) {
            assert_eq!(self.shape().last(), dims.last().map(|&d| d as i64).as_ref(), "scales follow whole rows");
            assert_eq!(format.scale().map(|s| s.rows), Some(1), "tile scales do not follow a reshape");
            let grid = Self::scale_shape(format, dims).expect("quantised");
            out.scale = Some(Arc::new(scale.reshape(&grid)));
        }
        out
    }

    /// Rows `start .. start + len` of the first dimension.
    ///
    /// # Panics
    /// If there are fewer rows, or the tensor has tile scales.
    pub fn rows(&self, start: usize, len: usize) -> Tensor {
        assert!(start + len <= self.dim(0), "rows {start}..{} of {:?}", start + len, self.shape());
        let mut out = self.clone();
        let bytes_of = |rows: usize| (rows * self.strides[0] as usize * self.bits as usize) / 8;
        out.address += bytes_of(start);
        let behind = self.dim(0) - start - len;
        out.bytes = if len == 0 { 0 } else { self.bytes - bytes_of(start) - bytes_of(behind) };
        out.shape[0] = len as i64;
        if let (Some(scale), Some(format)) = (&self.scale, self.format) {
            assert_eq!(format.scale().map(|s| s.rows), Some(1), "tile scales do not follow rows");
            out.scale = Some(Arc::new(scale.rows(start, len)));
        }
        out
    }

    /// Columns `start .. start + len` of the last dimension of a plain tensor.
    ///
    /// # Panics
    /// If there are fewer columns, or the tensor is quantised.
    pub fn columns(&self, start: usize, len: usize) -> Tensor {
        assert!(self.scale.is_none() && self.rank > 0, "only plain tensors are cut by columns");
        let last = self.rank - 1;
        assert!(start + len <= self.dim(last), "columns {start}..{} of {:?}", start + len, self.shape());
        let mut out = self.clone();
        let (skip, keep) = (start * self.bits as usize / 8, len * self.bits as usize / 8);
        let row_bytes = self.dim(last) * self.bits as usize / 8;
        out.address += skip;
        out.bytes = self.bytes.saturating_sub(row_bytes - keep);
        out.shape[last] = len as i64;
        out
    }

    /// A strided view of the same memory, for tests of strided kernels and for pages with padding.
    ///
    /// # Panics
    /// If an element would lie outside the memory of the tensor.
    pub fn with_strides(&self, dims: &[usize], strides: &[usize]) -> Tensor {
        assert_eq!(dims.len(), strides.len());
        let mut out = Self::raw(&self.memory(), 0, (self.code, self.bits), self.format, &[0]);
        out.rank = dims.len();
        let mut last = 0;
        for dim in 0..dims.len() {
            out.shape[dim] = dims[dim] as i64;
            out.strides[dim] = strides[dim] as i64;
            last += dims[dim].saturating_sub(1) * strides[dim];
        }
        let bytes = ((last + 1) * self.bits as usize).div_ceil(8);
        assert!(dims.contains(&0) || bytes <= self.bytes, "{bytes} bytes of {}", self.bytes);
        out.bytes = bytes.min(self.bytes);
        out
    }

    /// The scale bytes as a tensor of bytes that can be uploaded and downloaded.
    ///
    /// # Panics
    /// If the tensor is not quantised.
    pub fn scale_as_bytes(&self) -> Tensor {
        let scale = self.scale.as_ref().expect("a quantised tensor");
        debug_assert!(matches!(scale.code, DI_CODE_E8M0FNU | DI_CODE_E4M3FN));
        let mut out = (**scale).clone();
        (out.code, out.format) = (DI_CODE_UINT, Some(Format::U8));
        out
    }

    /// The memory from the first element on, to lay other tensors over it.
    pub fn memory(&self) -> Allocation {
        Allocation {
            address: self.address,
            bytes: self.bytes,
            device_type: self.device_type,
            device_id: self.device_id,
            owner: self.owner.clone(),
        }
    }
}

impl Shaped for Tensor {
    fn shape(&self) -> &[i64] {
        self.shape()
    }

    fn format(&self) -> Option<Format> {
        self.format
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = self.format.map_or("scales", Format::name);
        write!(f, "{format}{:?}@{:#x}", self.shape(), self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_end_with_their_last_element() {
        let memory = Allocation { address: 4096, bytes: 1000, device_type: 1, device_id: 0, owner: Arc::new(()) };
        let whole = Tensor::plain(&memory, 0, Format::F32, &[5, 3]);
        let rows = whole.rows(1, 2);
        assert_eq!((rows.address(), rows.bytes(), rows.shape()), (4096 + 12, 24, &[2, 3][..]));
        assert_eq!((whole.rows(4, 1).bytes(), whole.rows(0, 5).bytes(), whole.rows(5, 0).bytes()), (12, 60, 0));
        // With gaps between rows there is none behind the last one.
        let strided = whole.with_strides(&[3, 2], &[5, 1]);
        assert_eq!((strided.bytes(), strided.rows(0, 2).bytes(), strided.rows(1, 1).bytes()), (48, 28, 8));
        let packed = Tensor::quantized((&memory, 0), (&memory, 500), Format::Fp4Row32, &[4, 64]);
        let last = packed.rows(2, 1);
        assert_eq!((last.bytes(), last.scale().map(Tensor::bytes)), (32, Some(2)));
    }
}
