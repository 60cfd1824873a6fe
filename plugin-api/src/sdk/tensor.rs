//! Safe views of the tensors of one call, for kernels that run on the host's processor.
//!
//! A view is made once per argument by the trampoline, which vouches for the memory; from then on every access is
//! checked against the shape, and the shape against `nbytes`. A kernel for a device takes only shapes, strides and the
//! address.

#![allow(unsafe_code)]

mod desc;
mod meta;
mod rows;
#[cfg(test)]
mod tests;
mod view;

use deepinfer_numerics::Bf16;

use crate::abi::{DiTensor, DiTensorList};
use crate::check::{ArgError, Shaped, ShapedList};
use crate::format::Format;
use crate::sdk::Fault;

pub use self::desc::{Desc, DescList};
use self::meta::Meta;
use self::rows::split_rows;
pub use self::rows::{FloatRowMut, FloatRows, Rows};
pub use self::view::View;

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

/// A tensor that is read.
///
/// Of one format, [`In::rows`] or [`In::slice`]; of any floating-point format that the catalogue allows, [`In::floats`]:
///
/// ```
/// use deepinfer_plugin_api::sdk::Fault;
/// use deepinfer_plugin_api::sdk::tensor::In;
///
/// /// The sum of each row of `x`, F32 or BF16 or quantised, and the largest of the indices beside it.
/// fn survey(x: &In<'_>, index: &In<'_>) -> Result<(Vec<f32>, Option<i32>), Fault> {
///     let (rows, mut buffer) = (x.floats()?, Vec::new());
///     let sums = (0..rows.count()).map(|row| rows.load(row, &mut buffer).iter().sum()).collect();
///     Ok((sums, index.slice::<i32>()?.iter().copied().max()))
/// }
/// ```
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
        Rows::of(&self.meta, 1)
    }

    /// All elements of a plain, contiguous tensor.
    ///
    /// # Errors
    /// As [`In::rows`], or the tensor is not contiguous.
    pub fn slice<T: Element>(&self) -> Result<&'a [T], Fault> {
        self.rows::<T>()?.whole().ok_or_else(|| self.meta.not_contiguous().into())
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
        Rows::of(&self.meta, per_byte)
    }

    /// Rows of scale bytes, over the block grid.
    ///
    /// # Errors
    /// The format is not quantised, or the scales do not fit the shape.
    pub fn scales(&self) -> Result<Rows<'a, u8>, Fault> {
        Rows::of(&self.meta.scales()?, 1)
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
        // SAFETY: the same contract.
        let tensors = unsafe { list(op, arg, raw, |tensor| In::new(op, arg, tensor)) }?;
        Ok(Self { tensors })
    }

    /// The tensors.
    pub fn tensors(&self) -> &[In<'a>] {
        &self.tensors
    }
}

/// Wraps each tensor of a list.
///
/// # Safety
/// `raw.ptr` holds `raw.len` tensors that live for `'a`.
unsafe fn list<'a, T>(
    op: &'static str,
    arg: &'static str,
    raw: &'a DiTensorList,
    wrap: impl Fn(&'a DiTensor) -> Result<T, ArgError>,
) -> Result<Vec<T>, ArgError> {
    let len = usize::try_from(raw.len).unwrap_or(usize::MAX);
    if len > 0 && raw.ptr.is_null() {
        return Err(ArgError { op, arg: arg.to_owned(), problem: format!("lists {len} tensors at no address") });
    }
    // SAFETY: `index` is below the length that the caller vouched for.
    (0..len).map(|index| wrap(unsafe { &*raw.ptr.add(index) })).collect()
}

impl<'a> ShapedList for InList<'a> {
    type Item = In<'a>;

    fn len(&self) -> usize {
        self.tensors.len()
    }

    fn get(&self, index: usize) -> &In<'a> {
        &self.tensors[index]
    }
}

/// A tensor that is written, or read and written.
///
/// [`Out::slice_mut`] needs one that is contiguous, as those of one dimension are; the rows of others may lie apart:
///
/// ```
/// use deepinfer_plugin_api::sdk::Fault;
/// use deepinfer_plugin_api::sdk::tensor::{In, Out};
///
/// /// Twice `x`, rounded once to the format of `out`, F32 or BF16.
/// fn double(x: &In<'_>, out: &mut Out<'_>) -> Result<(), Fault> {
///     let (rows, mut buffer) = (x.floats()?, Vec::new());
///     for (row, mut out) in out.float_rows_mut()?.into_iter().enumerate() {
///         let values: Vec<f32> = rows.load(row, &mut buffer).iter().map(|v| 2.0 * v).collect();
///         out.store(&values);
///     }
///     Ok(())
/// }
/// ```
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

impl Shaped for Out<'_> {
    fn shape(&self) -> &[i64] {
        self.meta.shape
    }

    fn format(&self) -> Option<Format> {
        self.meta.format
    }
}
