//! Descriptors by which the copy engine fetches boxes of a matrix.

use std::ffi::c_void;

use cudarc::driver::sys::{
    self, CUtensorMap, CUtensorMapDataType as Type, CUtensorMapFloatOOBfill as Fill,
    CUtensorMapInterleave as Interleave, CUtensorMapL2promotion as Promotion, CUtensorMapSwizzle as Swizzle,
};
use deepinfer_plugin_api::sdk::Fault;

use crate::error::check;
use crate::launch::Param;

/// What the copy engine knows of a matrix, as a kernel takes it.
#[derive(Clone, Copy)]
pub(crate) struct TensorMap(#[expect(dead_code, reason = "read by the device alone")] CUtensorMap);

// SAFETY: `TensorMap` of `kernels/common/wgmma.cuh` has its size and alignment.
unsafe impl Param for TensorMap {}

/// Elements whose swizzled rows of 64 the tensor cores read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Bf16,
    Byte,
}

/// A matrix for each group: columns lie side by side, everything else at strides, which are in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrices {
    pub(crate) data: *mut u8,
    pub(crate) element: Element,
    pub(crate) columns: i64,
    pub(crate) rows: i64,
    pub(crate) groups: i64,
    pub(crate) row_stride: i64,
    pub(crate) group_stride: i64,
}

/// Columns of a box, 128 or 64 bytes, which is also the swizzled width.
pub(crate) const BOX_COLUMNS: u32 = 64;

/// Addresses and strides of matrices that the copy engine takes are multiples of as many bytes.
pub(crate) const ALIGNMENT: i64 = 16;

impl Matrices {
    /// Whether the copy engine takes them.
    pub(crate) fn is_mappable(&self) -> bool {
        let is_even = |stride: i64| stride * self.bits() % (8 * ALIGNMENT) == 0;
        self.data.addr().is_multiple_of(ALIGNMENT as usize)
            && is_even(self.row_stride)
            && self.row_stride >= self.columns
            && (self.groups == 1 || is_even(self.group_stride))
    }

    const fn bits(&self) -> i64 {
        match self.element {
            Element::Bf16 => 16,
            Element::Byte => 8,
        }
    }

    /// A map of boxes of `box_rows` rows and [`BOX_COLUMNS`] columns. What lies beyond the matrix is zeros.
    pub(crate) fn map(&self, box_rows: u32) -> Result<TensorMap, Fault> {
        let (element, swizzle) = match self.element {
            Element::Bf16 => (Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, Swizzle::CU_TENSOR_MAP_SWIZZLE_128B),
            Element::Byte => (Type::CU_TENSOR_MAP_DATA_TYPE_UINT8, Swizzle::CU_TENSOR_MAP_SWIZZLE_64B),
        };
        // The stride of a single group is none, but must be one.
        let group_stride = if self.groups == 1 { self.row_stride } else { self.group_stride };
        let extents = [self.columns, self.rows, self.groups].map(|extent| extent as u64);
        let strides = [self.row_stride, group_stride].map(|stride| (stride * self.bits() / 8) as u64);
        let (boxes, steps) = ([BOX_COLUMNS, box_rows, 1], [1; 3]);
        let mut map = CUtensorMap { opaque: [0; 16] };
        // SAFETY: the arrays are as long as the rank says; the address is only noted down.
        let status = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                element,
                extents.len() as u32,
                self.data.cast::<c_void>(),
                extents.as_ptr(),
                strides.as_ptr(),
                boxes.as_ptr(),
                steps.as_ptr(),
                Interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                Fill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        check("the description of a matrix for the copy engine", status)?;
        Ok(TensorMap(map))
    }
}
