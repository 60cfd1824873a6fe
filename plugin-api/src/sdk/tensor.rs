//! Safe views of the tensors of one call, for kernels that run on the host's processor.
//!
//! A view is made once per argument by the trampoline, which vouches for the memory; from then on every access is
//! checked against the shape, and the shape against `nbytes`. A kernel for a device takes only shapes, strides and the
//! address.

#![allow(unsafe_code)]

use std::marker::PhantomData;

use deepinfer_numerics::{Bf16, e2m1, e4m3, ue8m0};

use crate::abi::{DiTensor, DiTensorList};
use crate::check::{ArgError, Shaped, ShapedList};
use crate::format::{Format, ScaleInfo};
use crate::sdk::Fault;

/// Largest number of dimensions.
const MAX_RANK: usize = 4;

/// Rust type of the elements of a plain format.
pub trait Element: Copy + Send + Sync + 'static + sealed::Sealed {
    /// Its format.
    const FORMAT: Format;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! element {
    ($($ty:ty => $format:ident),*) => {$(
        impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const FORMAT: Format = Format::$format;
        }
    )*};
}
element!(f32 => F32, Bf16 => Bf16, i32 => I32, i64 => I64, u8 => U8);

/// Shape, strides and format of a tensor, read once.
#[derive(Clone, Copy)]
struct Meta<'a> {
    op: &'static str,
    arg: &'static str,
    raw: &'a DiTensor,
    shape: &'a [i64],
    strides: &'a [i64],
    format: Option<Format>,
}

impl<'a> Meta<'a> {
    /// # Safety
    /// As for [`In::new`].
    unsafe fn new(op: &'static str, arg: &'static str, raw: &'a DiTensor) -> Result<Self, ArgError> {
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
        let mut scale = None;
        if !raw.quant.is_null() {
            // SAFETY: not null, and the caller vouches for the quantisation record and its scale tensor.
            let quant = unsafe { &*raw.quant };
            if quant.scale.is_null() {
                return Err(error("is quantised without scales".to_owned()));
            }
            // SAFETY: as above.
            let scales = unsafe { &*quant.scale };
            let leading = rank.saturating_sub(2);
            let block = |dim: usize| usize::try_from(quant.block.get(dim).copied().unwrap_or(1)).unwrap_or(0);
            if rank >= 2 {
                scale = Some(ScaleInfo { rows: block(leading), columns: block(leading + 1), code: scales.code });
            }
        }
        let format = match raw.layout {
            0 => Format::from_parts(raw.code, raw.bits, scale),
            _ => None,
        };
        let meta = Meta { op, arg, raw, shape, strides, format };
        meta.check_extent()?;
        Ok(meta)
    }

    fn error(&self, problem: String) -> ArgError {
        ArgError { op: self.op, arg: self.arg.to_owned(), problem }
    }

    fn elements(&self) -> usize {
        self.shape.iter().map(|&e| usize::try_from(e).unwrap_or(0)).product()
    }

    /// Every element lies within `nbytes`, and the last dimension is contiguous.
    fn check_extent(&self) -> Result<(), ArgError> {
        if self.elements() == 0 {
            return Ok(());
        }
        let mut last = 0_i64;
        for (dim, (&extent, &stride)) in self.shape.iter().zip(self.strides).enumerate() {
            if stride < 0 || (dim + 1 == self.shape.len() && extent > 1 && stride != 1) {
                return Err(self.error(format!("has strides {:?}; the last must be 1 and none negative", self.strides)));
            }
            let reach = (extent - 1).checked_mul(stride).and_then(|r| last.checked_add(r));
            last = reach.ok_or_else(|| self.error(format!("reaches beyond 2^63 with strides {:?}", self.strides)))?;
        }
        let needed = ((last as u128 + 1) * u128::from(self.raw.bits)).div_ceil(8);
        if needed > u128::from(self.raw.nbytes) {
            return Err(self.error(format!(
                "needs {needed} bytes for shape {:?} and strides {:?}, but has {}",
                self.shape, self.strides, self.raw.nbytes
            )));
        }
        if self.raw.data.is_null() {
            return Err(self.error("has no memory".to_owned()));
        }
        Ok(())
    }

    fn address(&self) -> *mut u8 {
        self.raw.data.cast::<u8>().wrapping_add(self.raw.byte_offset as usize)
    }

    /// Rows along the last dimension as `T`s, `per_byte` logical elements to a `T`.
    fn rows<T: Element>(&self, per_element: usize) -> Result<RowLayout, Fault> {
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
            rank: leading,
            extents: [1; MAX_RANK],
            strides: [0; MAX_RANK],
        };
        for dim in 0..leading {
            layout.extents[dim] = self.shape[dim] as usize;
            layout.count *= layout.extents[dim];
            let stride = self.strides[dim] as usize;
            // Without columns the strides say nothing.
            if columns > 0 && !stride.is_multiple_of(per_element) {
                return Err(self
                    .error(format!("has strides {:?}; packed rows need even strides", self.strides))
                    .into());
            }
            layout.strides[dim] = stride / per_element;
        }
        Ok(layout.collapse())
    }

    fn expect(&self, format: Format) -> Result<(), Fault> {
        if self.format == Some(format) {
            return Ok(());
        }
        let found = self.format.map_or("an unknown format", Format::name);
        Err(self.error(format!("is {found}, but this kernel reads it as {format}")).into())
    }

    /// The scale tensor of a quantised tensor.
    fn scales(&self) -> Result<Meta<'a>, Fault> {
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
struct RowLayout {
    columns: usize,
    count: usize,
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

    fn offset(&self, row: usize) -> usize {
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

    /// Whether no two rows share an element.
    fn is_disjoint(&self) -> bool {
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

/// Rows of a tensor that is read. Leading dimensions are counted as one.
#[derive(Clone, Copy)]
pub struct Rows<'a, T> {
    base: *const T,
    layout: RowLayout,
    life: PhantomData<&'a [T]>,
}

// SAFETY: a shared view of memory that nobody writes during the call.
unsafe impl<T: Element> Send for Rows<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Rows<'_, T> {}

impl<'a, T: Element> Rows<'a, T> {
    /// Number of rows.
    pub fn count(&self) -> usize {
        self.layout.count
    }

    /// Elements in a row (bytes, for packed formats).
    pub fn columns(&self) -> usize {
        self.layout.columns
    }

    /// One row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> &'a [T] {
        let offset = self.layout.offset(row);
        if self.layout.columns == 0 {
            return &[];
        }
        // SAFETY: `Meta::check_extent` bounded every row by `nbytes`, which the maker of the view vouched for.
        unsafe { std::slice::from_raw_parts(self.base.add(offset), self.layout.columns) }
    }
}

/// A tensor that is read.
#[derive(Clone, Copy)]
pub struct In<'a> {
    meta: Meta<'a>,
}

impl<'a> In<'a> {
    /// Wraps an argument.
    ///
    /// # Errors
    /// The descriptor is inconsistent: see the sentence.
    ///
    /// # Safety
    /// `raw.shape` and `raw.strides` hold `ndim` extents, `quant` is null or valid with its scale tensor, and `nbytes`
    /// bytes from `data + byte_offset` are readable and unchanged for `'a`.
    pub unsafe fn new(op: &'static str, arg: &'static str, raw: &'a DiTensor) -> Result<Self, ArgError> {
        // SAFETY: the same contract.
        Ok(Self { meta: unsafe { Meta::new(op, arg, raw)? } })
    }

    /// As [`In::new`], or `None` when the argument is absent.
    ///
    /// # Errors
    /// As [`In::new`].
    ///
    /// # Safety
    /// As [`In::new`].
    pub unsafe fn optional(op: &'static str, arg: &'static str, raw: &'a DiTensor) -> Result<Option<Self>, ArgError> {
        if raw.bits == 0 {
            return Ok(None);
        }
        // SAFETY: the same contract.
        unsafe { Self::new(op, arg, raw).map(Some) }
    }

    /// The descriptor, for kernels of a device.
    pub fn raw(&self) -> &'a DiTensor {
        self.meta.raw
    }

    /// Strides in elements.
    pub fn strides(&self) -> &'a [i64] {
        self.meta.strides
    }

    /// Rows of a plain format.
    ///
    /// # Errors
    /// The format is another one, or the address is not aligned.
    pub fn rows<T: Element>(&self) -> Result<Rows<'a, T>, Fault> {
        self.meta.expect(T::FORMAT)?;
        Ok(Rows { base: self.meta.address().cast(), layout: self.meta.rows::<T>(1)?, life: PhantomData })
    }

    /// All elements of a plain, contiguous tensor.
    ///
    /// # Errors
    /// As [`In::rows`], or the tensor is not contiguous.
    pub fn slice<T: Element>(&self) -> Result<&'a [T], Fault> {
        let rows = self.rows::<T>()?;
        let elements = self.meta.elements();
        if elements == 0 {
            return Ok(&[]);
        }
        if rows.layout.count > 1 && (rows.layout.rank > 1 || rows.layout.strides[0] != rows.layout.columns) {
            return Err(self.meta.error(format!("must be contiguous, but has strides {:?}", self.meta.strides)).into());
        }
        // SAFETY: contiguous, and bounded by `nbytes` as in `Rows::row`.
        Ok(unsafe { std::slice::from_raw_parts(self.meta.address().cast(), elements) })
    }

    /// Rows of codes as bytes: FP8 one element to a byte, FP4 two.
    ///
    /// # Errors
    /// The format is not quantised.
    pub fn codes(&self) -> Result<Rows<'a, u8>, Fault> {
        let Some(format) = self.meta.format.filter(|f| f.scale().is_some()) else {
            return Err(self.meta.error("is not quantised".to_owned()).into());
        };
        let per_byte = 8 / format.code_bits().1 as usize;
        Ok(Rows { base: self.meta.address().cast_const(), layout: self.meta.rows::<u8>(per_byte)?, life: PhantomData })
    }

    /// Rows of scale bytes, over the block grid.
    ///
    /// # Errors
    /// The format is not quantised, or the scales do not fit the shape.
    pub fn scales(&self) -> Result<Rows<'a, u8>, Fault> {
        let scales = self.meta.scales()?;
        Ok(Rows { base: scales.address().cast_const(), layout: scales.rows::<u8>(1)?, life: PhantomData })
    }

    /// Rows as F32 values, whatever the floating-point format; not for tile-scaled weights.
    ///
    /// # Errors
    /// The format is integral or tile-scaled.
    pub fn floats(&self) -> Result<FloatRows<'a>, Fault> {
        Ok(match self.meta.format {
            Some(Format::F32) => FloatRows::F32(self.rows()?),
            Some(Format::Bf16) => FloatRows::Bf16(self.rows()?),
            Some(Format::Fp8Row32) => FloatRows::Fp8(self.codes()?, self.scales()?),
            Some(Format::Fp4Row32) => FloatRows::Fp4(self.codes()?, self.scales()?, 32),
            Some(Format::Fp4Row16) => FloatRows::Fp4(self.codes()?, self.scales()?, 16),
            _ => return Err(self.meta.error("has no rows of floating-point values".to_owned()).into()),
        })
    }
}

impl Shaped for In<'_> {
    fn shape(&self) -> &[i64] {
        self.meta.shape
    }

    fn format(&self) -> Option<Format> {
        self.meta.format
    }
}

/// Rows of any floating-point format.
#[derive(Clone, Copy)]
pub enum FloatRows<'a> {
    /// F32 rows.
    F32(Rows<'a, f32>),
    /// BF16 rows.
    Bf16(Rows<'a, Bf16>),
    /// E4M3 codes and UE8M0 scales per 32.
    Fp8(Rows<'a, u8>, Rows<'a, u8>),
    /// Packed E2M1 codes, scales, and the group: 32 with UE8M0 scales, 16 with E4M3 scales.
    Fp4(Rows<'a, u8>, Rows<'a, u8>, usize),
}

impl<'a> FloatRows<'a> {
    /// Number of rows.
    pub fn count(&self) -> usize {
        match self {
            FloatRows::F32(rows) => rows.count(),
            FloatRows::Bf16(rows) => rows.count(),
            FloatRows::Fp8(codes, _) | FloatRows::Fp4(codes, ..) => codes.count(),
        }
    }

    /// Row `row` as F32: the row itself when it is F32, else decoded into `scratch`, which is resized. Every value is
    /// `element * scale`, one F32 product.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn load<'s>(&self, row: usize, scratch: &'s mut Vec<f32>) -> &'s [f32]
    where
        'a: 's,
    {
        match self {
            FloatRows::F32(rows) => rows.row(row),
            FloatRows::Bf16(rows) => {
                scratch.clear();
                scratch.extend(rows.row(row).iter().map(|v| v.to_f32()));
                scratch
            }
            FloatRows::Fp8(codes, scales) => {
                let (codes, scales) = (codes.row(row), scales.row(row));
                scratch.clear();
                for (group, &scale) in codes.chunks(32).zip(scales) {
                    let scale = ue8m0::decode(scale);
                    scratch.extend(group.iter().map(|&code| e4m3::TABLE[code as usize] * scale));
                }
                scratch
            }
            FloatRows::Fp4(codes, scales, group) => {
                let (codes, scales) = (codes.row(row), scales.row(row));
                scratch.clear();
                for (bytes, &scale) in codes.chunks(group / 2).zip(scales) {
                    let scale = if *group == 32 { ue8m0::decode(scale) } else { e4m3::decode(scale) };
                    for &byte in bytes {
                        let [low, high] = e2m1::PAIRS[byte as usize];
                        scratch.extend([low * scale, high * scale]);
                    }
                }
                scratch
            }
        }
    }
}

/// A list of tensors that are read.
#[derive(Clone)]
pub struct InList<'a> {
    tensors: Vec<In<'a>>,
}

impl<'a> InList<'a> {
    /// Wraps an argument.
    ///
    /// # Errors
    /// As [`In::new`], for the first inconsistent tensor.
    ///
    /// # Safety
    /// `raw.ptr` holds `raw.len` tensors, each as [`In::new`] wants it.
    pub unsafe fn new(op: &'static str, arg: &'static str, raw: &'a DiTensorList) -> Result<Self, ArgError> {
        let len = usize::try_from(raw.len).unwrap_or(usize::MAX);
        if len > 0 && raw.ptr.is_null() {
            return Err(ArgError { op, arg: arg.to_owned(), problem: format!("lists {len} tensors at no address") });
        }
        let tensors = (0..len)
            // SAFETY: `index` is below the length that the caller vouched for; then the same contract.
            .map(|index| unsafe { In::new(op, arg, &*raw.ptr.add(index)) })
            .collect::<Result<_, _>>()?;
        Ok(Self { tensors })
    }

    /// The tensors.
    pub fn tensors(&self) -> &[In<'a>] {
        &self.tensors
    }
}

impl ShapedList for InList<'_> {
    fn len(&self) -> usize {
        self.tensors.len()
    }

    fn get(&self, index: usize) -> &dyn Shaped {
        &self.tensors[index]
    }
}

/// A tensor that is written, or read and written.
pub struct Out<'a> {
    meta: Meta<'a>,
}

impl<'a> Out<'a> {
    /// Wraps an argument.
    ///
    /// # Errors
    /// The descriptor is inconsistent: see the sentence.
    ///
    /// # Safety
    /// As [`In::new`]; in addition the memory is writable, nobody else reads or writes it for `'a`, and it is wrapped
    /// once.
    pub unsafe fn new(op: &'static str, arg: &'static str, raw: &'a DiTensor) -> Result<Self, ArgError> {
        // SAFETY: the same contract.
        Ok(Self { meta: unsafe { Meta::new(op, arg, raw)? } })
    }

    /// As [`Out::new`], or `None` when the argument is absent.
    ///
    /// # Errors
    /// As [`Out::new`].
    ///
    /// # Safety
    /// As [`Out::new`].
    pub unsafe fn optional(op: &'static str, arg: &'static str, raw: &'a DiTensor) -> Result<Option<Self>, ArgError> {
        if raw.bits == 0 {
            return Ok(None);
        }
        // SAFETY: the same contract.
        unsafe { Self::new(op, arg, raw).map(Some) }
    }

    /// The descriptor, for kernels of a device.
    pub fn raw(&self) -> &'a DiTensor {
        self.meta.raw
    }

    /// Strides in elements.
    pub fn strides(&self) -> &'a [i64] {
        self.meta.strides
    }

    /// Rows of a plain format, each its own slice.
    ///
    /// # Errors
    /// The format is another one, the address is not aligned, or rows overlap.
    pub fn rows_mut<T: Element>(&mut self) -> Result<Vec<&mut [T]>, Fault> {
        self.meta.expect(T::FORMAT)?;
        split_rows(&self.meta, 1)
    }

    /// All elements of a plain, contiguous tensor.
    ///
    /// # Errors
    /// As [`Out::rows_mut`], or the tensor is not contiguous.
    pub fn slice_mut<T: Element>(&mut self) -> Result<&mut [T], Fault> {
        let elements = self.meta.elements();
        // The shared view makes the same checks.
        In { meta: self.meta }.slice::<T>()?;
        if elements == 0 {
            return Ok(&mut []);
        }
        // SAFETY: contiguous and within `nbytes`; `&mut self` makes this the only live view.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.meta.address().cast(), elements) })
    }

    /// Rows of F32 or BF16, each its own writable row.
    ///
    /// # Errors
    /// The format is another one, or rows overlap.
    pub fn float_rows_mut(&mut self) -> Result<Vec<FloatRowMut<'_>>, Fault> {
        match self.meta.format {
            Some(Format::F32) => Ok(split_rows(&self.meta, 1)?.into_iter().map(FloatRowMut::F32).collect()),
            Some(Format::Bf16) => Ok(split_rows(&self.meta, 1)?.into_iter().map(FloatRowMut::Bf16).collect()),
            _ => Err(self.meta.error("is neither F32 nor BF16".to_owned()).into()),
        }
    }

    /// Rows of codes and rows of scales of a row-scaled format.
    ///
    /// # Errors
    /// The format has no row scales, or rows overlap.
    #[allow(clippy::type_complexity)]
    pub fn quantized_rows_mut(&mut self) -> Result<(Vec<&mut [u8]>, Vec<&mut [u8]>), Fault> {
        let Some(format) = self.meta.format.filter(|f| f.scale().is_some_and(|s| s.rows == 1)) else {
            return Err(self.meta.error("has no row scales".to_owned()).into());
        };
        let per_byte = 8 / format.code_bits().1 as usize;
        let scales = self.meta.scales()?;
        Ok((split_rows(&self.meta, per_byte)?, split_rows(&scales, 1)?))
    }
}

/// Splits a written tensor into its rows.
fn split_rows<'s, T: Element>(meta: &Meta<'_>, per_element: usize) -> Result<Vec<&'s mut [T]>, Fault> {
    let layout = meta.rows::<T>(per_element)?;
    if !layout.is_disjoint() {
        return Err(meta
            .error(format!("has overlapping rows: shape {:?}, strides {:?}", meta.shape, meta.strides))
            .into());
    }
    let base = meta.address().cast::<T>();
    Ok((0..layout.count)
        .map(|row| {
            let offset = layout.offset(row);
            if layout.columns == 0 {
                return &mut [][..];
            }
            // SAFETY: within `nbytes` by `Meta::check_extent`; rows are disjoint; the callers take `&mut self`, so that
            // the rows are the only live view, and bound `'s` to that borrow.
            unsafe { std::slice::from_raw_parts_mut(base.add(offset), layout.columns) }
        })
        .collect())
}

impl Shaped for Out<'_> {
    fn shape(&self) -> &[i64] {
        self.meta.shape
    }

    fn format(&self) -> Option<Format> {
        self.meta.format
    }
}

/// A writable row of F32 or BF16.
pub enum FloatRowMut<'a> {
    /// F32.
    F32(&'a mut [f32]),
    /// BF16.
    Bf16(&'a mut [Bf16]),
}

impl FloatRowMut<'_> {
    /// Elements.
    pub fn len(&self) -> usize {
        match self {
            FloatRowMut::F32(row) => row.len(),
            FloatRowMut::Bf16(row) => row.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `index` as F32.
    ///
    /// # Panics
    /// If there is no such element.
    pub fn get(&self, index: usize) -> f32 {
        match self {
            FloatRowMut::F32(row) => row[index],
            FloatRowMut::Bf16(row) => row[index].to_f32(),
        }
    }

    /// Rounds `value` into element `index`.
    ///
    /// # Panics
    /// If there is no such element.
    pub fn set(&mut self, index: usize, value: f32) {
        match self {
            FloatRowMut::F32(row) => row[index] = value,
            FloatRowMut::Bf16(row) => row[index] = Bf16::from_f32(value),
        }
    }

    /// Rounds `values` into the row.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn store(&mut self, values: &[f32]) {
        assert_eq!(self.len(), values.len());
        match self {
            FloatRowMut::F32(row) => row.copy_from_slice(values),
            FloatRowMut::Bf16(row) => row.iter_mut().zip(values).for_each(|(o, &v)| *o = Bf16::from_f32(v)),
        }
    }

    /// Writes zeros.
    pub fn zero(&mut self) {
        match self {
            FloatRowMut::F32(row) => row.fill(0.0),
            FloatRowMut::Bf16(row) => row.fill(Bf16(0)),
        }
    }

    /// The row as F32, appended to `scratch` after clearing it.
    pub fn load<'s>(&'s self, scratch: &'s mut Vec<f32>) -> &'s [f32] {
        match self {
            FloatRowMut::F32(row) => row,
            FloatRowMut::Bf16(row) => {
                scratch.clear();
                scratch.extend(row.iter().map(|v| v.to_f32()));
                scratch
            }
        }
    }
}
