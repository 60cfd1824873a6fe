//! A descriptor, read once and checked: shape, strides, format, and where rows begin.

use std::mem::offset_of;

use crate::abi::{DI_QO_MULTIPLY, DI_QS_BLOCK, DI_SL_ROW_MAJOR, DiQuant, DiTensor};
use crate::check::ArgError;
use crate::format::{Format, ScaleInfo};
use crate::sdk::Fault;

use super::Element;

/// Largest number of dimensions.
pub(super) const MAX_RANK: usize = 4;

/// Shape, strides and format of a tensor, read once.
#[derive(Clone, Copy)]
pub(super) struct Meta<'a> {
    op: &'static str,
    arg: &'static str,
    pub(super) raw: &'a DiTensor,
    pub(super) shape: &'a [i64],
    pub(super) strides: &'a [i64],
    pub(super) format: Option<Format>,
}

impl<'a> Meta<'a> {
    /// A tensor whose memory may be touched.
    ///
    /// # Safety
    /// As for [`In::new`](super::In::new).
    #[inline]
    pub(super) unsafe fn new(op: &'static str, arg: &'static str, raw: &'a DiTensor) -> Result<Self, ArgError> {
        // SAFETY: the same contract.
        let meta = unsafe { Self::describe(op, arg, raw)? };
        meta.check_memory()?;
        Ok(meta)
    }

    /// A tensor that may have no memory.
    ///
    /// # Safety
    /// As for [`Desc::new`](super::Desc::new).
    #[inline]
    pub(super) unsafe fn describe(op: &'static str, arg: &'static str, raw: &'a DiTensor) -> Result<Self, ArgError> {
        let error = |problem: String| ArgError { op, arg: arg.to_owned(), problem };
        let rank = usize::try_from(raw.ndim).ok().filter(|rank| *rank <= MAX_RANK);
        let Some(rank) = rank else {
            return Err(error(format!("has {} dimensions; at most {MAX_RANK} are possible", raw.ndim)));
        };
        if rank > 0 && (raw.shape.is_null() || raw.strides.is_null()) {
            return Err(error("has no shape or strides".to_owned()));
        }
        let slice = |ptr: *mut i64| {
            if rank == 0 {
                return &[][..];
            }
            // SAFETY: not null, and the caller vouches for `ndim` readable extents that outlive `'a`.
            unsafe { std::slice::from_raw_parts(ptr.cast_const(), rank) }
        };
        let (shape, strides) = (slice(raw.shape), slice(raw.strides));
        let (mut scale, mut is_known) = (None, raw.layout == 0);
        if !raw.quant.is_null() {
            // No reference to the record: an older caller's may end before ours.
            // SAFETY: not null, and the caller vouches for `struct_size` bytes of the quantisation record.
            let known = unsafe { (*raw.quant).struct_size } as usize;
            if known < offset_of!(DiQuant, scale) + size_of::<*const DiTensor>() {
                let problem = format!("has a quantisation record of {known} bytes, which ends before its scales");
                return Err(error(problem));
            }
            // SAFETY: as above; the record reaches that far.
            let (meaning, blocks, scales) = unsafe {
                let quant = raw.quant;
                (((*quant).scheme, (*quant).scale_layout, (*quant).scale_op), (*quant).block, (*quant).scale)
            };
            is_known &= meaning == (DI_QS_BLOCK, DI_SL_ROW_MAJOR, DI_QO_MULTIPLY);
            if scales.is_null() {
                return Err(error("is quantised without scales".to_owned()));
            }
            // SAFETY: not null, and the caller vouches for the scale tensor.
            let scales = unsafe { &*scales };
            let leading = rank.saturating_sub(2);
            let block = |dim: usize| usize::try_from(blocks.get(dim).copied().unwrap_or(1)).unwrap_or(0);
            if rank >= 2 {
                scale = Some(ScaleInfo { rows: block(leading), columns: block(leading + 1), code: scales.code });
            }
        }
        let format = if is_known { Format::from_parts(raw.code, raw.bits, scale) } else { None };
        Ok(Meta { op, arg, raw, shape, strides, format })
    }

    pub(super) fn error(&self, problem: String) -> ArgError {
        ArgError { op: self.op, arg: self.arg.to_owned(), problem }
    }

    /// For a tensor whose rows must follow each other.
    pub(super) fn not_contiguous(&self) -> ArgError {
        self.error(format!("must be contiguous, but has strides {:?}", self.strides))
    }

    pub(super) fn elements(&self) -> usize {
        self.shape.iter().map(|&e| usize::try_from(e).unwrap_or(0)).product()
    }

    /// Bytes from the first element to the end of the last one. `None` where strides are impossible: the last must be 1,
    /// none negative, and the sum below 2^63.
    #[inline]
    fn reach(&self) -> Option<u128> {
        if self.elements() == 0 {
            return Some(0);
        }
        let mut last = 0_i64;
        for (dim, (&extent, &stride)) in self.shape.iter().zip(self.strides).enumerate() {
            if stride < 0 || (dim + 1 == self.shape.len() && extent > 1 && stride != 1) {
                return None;
            }
            last = (extent - 1).checked_mul(stride).and_then(|reach| last.checked_add(reach))?;
        }
        Some(((last as u128 + 1) * u128::from(self.raw.bits)).div_ceil(8))
    }

    /// The strides are possible.
    pub(super) fn check_strides(&self) -> Result<(), ArgError> {
        self.reach().map(drop).ok_or_else(|| self.impossible_strides())
    }

    /// Every element lies within `nbytes`, and there is memory if there are elements.
    #[inline]
    fn check_memory(&self) -> Result<(), ArgError> {
        match self.reach() {
            Some(needed) if needed <= u128::from(self.raw.nbytes) && (needed == 0 || !self.raw.data.is_null()) => {
                Ok(())
            }
            needed => Err(self.impossible_memory(needed)),
        }
    }

    #[cold]
    fn impossible_memory(&self, needed: Option<u128>) -> ArgError {
        match needed {
            None => self.impossible_strides(),
            Some(needed) if needed > u128::from(self.raw.nbytes) => self.error(format!(
                "needs {needed} bytes for shape {:?} and strides {:?}, but has {}",
                self.shape, self.strides, self.raw.nbytes
            )),
            Some(_) => self.error("has no memory".to_owned()),
        }
    }

    #[cold]
    fn impossible_strides(&self) -> ArgError {
        let last_is_one = self.shape.last().is_none_or(|&extent| extent <= 1) || self.strides.last() == Some(&1);
        if last_is_one && self.strides.iter().all(|&stride| stride >= 0) {
            return self.error(format!("reaches beyond 2^63 with strides {:?}", self.strides));
        }
        self.error(format!("has strides {:?}; the last must be 1 and none negative", self.strides))
    }

    pub(super) fn address(&self) -> *mut u8 {
        self.raw.data.cast::<u8>().wrapping_add(self.raw.byte_offset as usize)
    }

    /// Rows along the last dimension as `T`s, `per_byte` logical elements to a `T`.
    pub(super) fn rows<T: Element>(&self, per_element: usize) -> Result<RowLayout, Fault> {
        let address = self.address();
        if !address.cast::<T>().is_aligned() {
            return Err(self.error(format!("lies at an address that is not a multiple of {}", align_of::<T>())).into());
        }
        let rank = self.shape.len();
        let columns = self.shape.last().map_or(1, |&e| e as usize);
        let leading = rank.saturating_sub(1);
        let mut layout = RowLayout {
            columns: columns.div_ceil(per_element),
            count: 1,
            rank: 0,
            extents: [1; MAX_RANK],
            strides: [0; MAX_RANK],
        };
        for dim in 0..leading {
            let (extent, stride) = (self.shape[dim] as usize, self.strides[dim] as usize);
            layout.count *= extent;
            // The stride of a single element says nothing, nor do strides without columns.
            if extent == 1 {
                continue;
            }
            if columns > 0 && !stride.is_multiple_of(per_element) {
                return Err(self
                    .error(format!("has strides {:?}; packed rows need even strides", self.strides))
                    .into());
            }
            (layout.extents[layout.rank], layout.strides[layout.rank]) = (extent, stride / per_element);
            layout.rank += 1;
        }
        Ok(layout.collapse())
    }

    pub(super) fn expect(&self, format: Format) -> Result<(), Fault> {
        if self.format == Some(format) {
            return Ok(());
        }
        let found = self.format.map_or("an unknown format", Format::name);
        Err(self.error(format!("is {found}, but this kernel reads it as {format}")).into())
    }

    /// The scale tensor of a quantised tensor.
    pub(super) fn scales(&self) -> Result<Meta<'a>, Fault> {
        let Some(info) = self.format.and_then(Format::scale) else {
            return Err(self.error("has no scales".to_owned()).into());
        };
        // SAFETY: `new` found a format with scales, hence a quantisation record with a scale tensor that the caller of
        // `new` vouched for.
        let scale = unsafe { Meta::new(self.op, self.arg, &*(*self.raw.quant).scale)? };
        let rank = self.shape.len();
        let grid = |dim: usize, block: usize| (self.shape[dim] as usize).div_ceil(block) as i64;
        let wanted = [grid(rank - 2, info.rows), grid(rank - 1, info.columns)];
        let fits = scale.shape.len() == rank
            && scale.shape[..rank - 2] == self.shape[..rank - 2]
            && scale.shape[rank - 2..] == wanted
            && scale.raw.bits == 8;
        if !fits {
            return Err(self
                .error(format!(
                    "has scales of shape {:?}, but shape {:?} needs {wanted:?} at the end",
                    scale.shape, self.shape
                ))
                .into());
        }
        Ok(scale)
    }
}

/// Where rows begin, in elements.
#[derive(Clone, Copy)]
pub(super) struct RowLayout {
    pub(super) columns: usize,
    pub(super) count: usize,
    rank: usize,
    extents: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
}

impl RowLayout {
    /// Joins leading dimensions that follow each other in memory, so that a row is found with one product.
    fn collapse(mut self) -> Self {
        while self.rank > 1 && self.strides[self.rank - 2] == self.strides[self.rank - 1] * self.extents[self.rank - 1]
        {
            self.extents[self.rank - 2] *= self.extents[self.rank - 1];
            self.strides[self.rank - 2] = self.strides[self.rank - 1];
            self.rank -= 1;
        }
        self
    }

    pub(super) fn offset(&self, row: usize) -> usize {
        assert!(row < self.count, "row {row} of {}", self.count);
        if self.rank <= 1 {
            return row * self.strides[0];
        }
        let (mut rest, mut offset) = (row, 0);
        for dim in (0..self.rank).rev() {
            offset += rest % self.extents[dim] * self.strides[dim];
            rest /= self.extents[dim];
        }
        offset
    }

    /// Whether the rows follow each other without a gap.
    pub(super) fn is_contiguous(&self) -> bool {
        self.count <= 1 || (self.rank <= 1 && self.strides[0] == self.columns)
    }

    /// Whether no two rows share an element.
    pub(super) fn is_disjoint(&self) -> bool {
        let mut dims: Vec<(usize, usize)> =
            (0..self.rank).filter(|&d| self.extents[d] > 1).map(|d| (self.strides[d], self.extents[d])).collect();
        dims.sort_unstable();
        let mut reach = self.columns;
        dims.into_iter().all(|(stride, extent)| {
            let fits = stride >= reach;
            reach += (extent - 1) * stride;
            fits
        })
    }
}
