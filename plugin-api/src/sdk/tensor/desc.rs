//! Tensors as `supports` and `plan` see them: without their content.

use crate::abi::{DiTensor, DiTensorList};
use crate::check::{ArgError, Shaped, ShapedList};
use crate::format::Format;

use super::meta::Meta;

/// The shape, strides and format of a tensor. It has no way to the memory, which need not exist yet.
#[derive(Clone, Copy)]
pub struct Desc<'a> {
    meta: Meta<'a>,
}

impl<'a> Desc<'a> {
    /// Wraps an argument.
    ///
    /// # Errors
    /// The descriptor is inconsistent: see the sentence.
    ///
    /// # Safety
    /// `raw.shape` and `raw.strides` hold `ndim` extents, and `quant` is null or valid with the descriptor of its scale
    /// tensor, for `'a`. Addresses of elements may be anything.
    pub unsafe fn new(op: &'static str, arg: &'static str, raw: &'a DiTensor) -> Result<Self, ArgError> {
        // SAFETY: the same contract.
        let meta = unsafe { Meta::describe(op, arg, raw)? };
        meta.check_strides()?;
        Ok(Self { meta })
    }

    /// As [`Desc::new`], or `None` when the argument is absent.
    ///
    /// # Errors
    /// As [`Desc::new`].
    ///
    /// # Safety
    /// As [`Desc::new`].
    pub unsafe fn optional(op: &'static str, arg: &'static str, raw: &'a DiTensor) -> Result<Option<Self>, ArgError> {
        if raw.bits == 0 {
            return Ok(None);
        }
        // SAFETY: the same contract.
        unsafe { Self::new(op, arg, raw).map(Some) }
    }

    /// Extents in logical elements.
    pub fn shape(&self) -> &'a [i64] {
        self.meta.shape
    }

    /// Strides in elements.
    pub fn strides(&self) -> &'a [i64] {
        self.meta.strides
    }

    /// Format, or `None` when the catalogue has no such format.
    pub fn format(&self) -> Option<Format> {
        self.meta.format
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.meta.elements()
    }

    /// Whether elements follow each other without gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut stride = 1;
        self.elements() == 0
            || self.meta.shape.iter().zip(self.meta.strides).rev().all(|(&extent, &actual)| {
                let follows = extent == 1 || actual == stride;
                stride *= extent;
                follows
            })
    }
}

impl Shaped for Desc<'_> {
    fn shape(&self) -> &[i64] {
        self.meta.shape
    }

    fn format(&self) -> Option<Format> {
        self.meta.format
    }
}

/// A list of tensors.
#[derive(Clone)]
pub struct DescList<'a> {
    tensors: Vec<Desc<'a>>,
}

impl<'a> DescList<'a> {
    /// Wraps an argument.
    ///
    /// # Errors
    /// As [`Desc::new`], for the first inconsistent tensor.
    ///
    /// # Safety
    /// `raw.ptr` holds `raw.len` tensors, each as [`Desc::new`] wants it.
    pub unsafe fn new(op: &'static str, arg: &'static str, raw: &'a DiTensorList) -> Result<Self, ArgError> {
        // SAFETY: the same contract.
        let tensors = unsafe { super::list(op, arg, raw, |tensor| Desc::new(op, arg, tensor)) }?;
        Ok(Self { tensors })
    }

    /// The tensors.
    pub fn tensors(&self) -> &[Desc<'a>] {
        &self.tensors
    }
}

impl<'a> ShapedList for DescList<'a> {
    type Item = Desc<'a>;

    fn len(&self) -> usize {
        self.tensors.len()
    }

    fn get(&self, index: usize) -> &Desc<'a> {
        &self.tensors[index]
    }
}
