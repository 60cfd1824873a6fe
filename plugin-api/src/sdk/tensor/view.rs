//! A tensor as a kernel of a device takes it: numbers and addresses, to be passed by value.

use crate::abi::{DI_DEVICE_CPU, DiTensor};
use crate::check::ArgError;
use crate::format::Format;
use crate::sdk::Fault;

use super::meta::{MAX_RANK, Meta};
use super::{In, Out};

/// Address, extents and strides of a tensor, laid out as a C struct that begins so:
///
/// ```c
/// struct View { void *data; void *scale; int64_t shape[4], strides[4], scale_strides[4]; int32_t rank, format; };
/// ```
///
/// Extents and strides are right-aligned: the last of four is that of the last dimension, whose stride is 1; dimensions that
/// the tensor does not have are 1 with stride 0. All was checked against the memory. Nothing keeps the memory alive but the
/// boundary's promise that it lives until the stream has passed the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// The first element; of packed formats the byte that holds it.
    pub data: *mut u8,
    /// The first scale, or null.
    pub scale: *mut u8,
    /// Extents in logical elements.
    pub shape: [i64; MAX_RANK],
    /// Strides in logical elements.
    pub strides: [i64; MAX_RANK],
    /// Strides of the scales, in scales.
    pub scale_strides: [i64; MAX_RANK],
    /// Dimensions.
    pub rank: i32,
    /// [`Format`] as a number, or -1 for one that the catalogue does not have.
    pub format: i32,
}

// SAFETY: plain numbers; whoever dereferences the addresses answers for it.
unsafe impl Send for View {}

impl View {
    /// An argument that is absent.
    pub const ABSENT: Self = Self {
        data: std::ptr::null_mut(),
        scale: std::ptr::null_mut(),
        shape: [0; MAX_RANK],
        strides: [0; MAX_RANK],
        scale_strides: [0; MAX_RANK],
        rank: 0,
        format: -1,
    };

    fn of(meta: &Meta<'_>) -> Result<Self, Fault> {
        let mut view = Self { data: meta.address(), rank: meta.shape.len() as i32, ..Self::ABSENT };
        (view.shape, view.strides) = (align(meta.shape, 1), align(meta.strides, 0));
        if let Some(format) = meta.format {
            view.format = format as i32;
            if format.scale().is_some() {
                let scales = meta.scales()?;
                same_device(meta, scales.raw)?;
                (view.scale, view.scale_strides) = (scales.address(), align(scales.strides, 0));
            }
        }
        Ok(view)
    }

    /// The format, unless the catalogue does not have it.
    pub fn format(&self) -> Option<Format> {
        Format::ALL.into_iter().find(|&format| format as i32 == self.format)
    }

    /// Rows: the product of all extents but the last.
    pub fn rows(&self) -> i64 {
        self.shape[..MAX_RANK - 1].iter().product::<i64>() * i64::from(self.rank > 0)
    }

    /// Columns: the last extent.
    pub fn columns(&self) -> i64 {
        self.shape[MAX_RANK - 1]
    }
}

/// Puts values at the end of four.
fn align(values: &[i64], before: i64) -> [i64; MAX_RANK] {
    let mut aligned = [before; MAX_RANK];
    aligned[MAX_RANK - values.len()..].copy_from_slice(values);
    aligned
}

fn same_device(meta: &Meta<'_>, scale: &DiTensor) -> Result<(), ArgError> {
    let place = |tensor: &DiTensor| (tensor.device_type, tensor.device_id);
    if place(meta.raw) == place(scale) || meta.raw.device_type == DI_DEVICE_CPU {
        return Ok(());
    }
    let (tensor, scale) = (place(meta.raw), place(scale));
    Err(meta.error(format!("lies on device {tensor:?} (type, number), but its scales on {scale:?}")))
}

impl In<'_> {
    /// For a kernel of a device.
    ///
    /// # Errors
    /// The scales do not fit the shape, or lie elsewhere.
    pub fn view(&self) -> Result<View, Fault> {
        View::of(&self.meta)
    }
}

impl Out<'_> {
    /// For a kernel of a device.
    ///
    /// # Errors
    /// As [`In::view`].
    pub fn view(&self) -> Result<View, Fault> {
        View::of(&self.meta)
    }
}
