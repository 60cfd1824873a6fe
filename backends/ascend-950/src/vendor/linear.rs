//! `linear` by matrix products of the vendor.
//!
//! BF16 and F32 by `aclnnMatmul`; FP8 rows with FP8 or FP4 weights by `aclnnQuantMatmulV5`, in its mode of one scale per row and 32
//! columns. A tile's scale is written once for each of its 32 rows first (`kernels/spread_scales.cpp`): 3% of the bytes of the
//! weights. Other calls, groups among them, are the kernel's.

// Kernel functions have the signature of the SDK.
#![allow(clippy::needless_pass_by_value)]

use deepinfer_plugin_api::abi::{DI_PF_BATCH_INVARIANT, DI_SPACE_DEVICE};
use deepinfer_plugin_api::generated::{LinearArgs, LinearProto};
use deepinfer_plugin_api::sdk::tensor::View;
use deepinfer_plugin_api::sdk::{Cx, Fault, PlanCx, Support};
use deepinfer_plugin_api::{Format, Shaped};

use crate::image::{Function, images};
use crate::launch::{blocks, launch, stream, tiling};
use crate::memory::Buffer;
use crate::stream::Stream;
use crate::vendor::call::{ABSENT, Kept, Tensor, call, keeping};
use crate::vendor::{Vendor, VendorOp, sys};

deepinfer_plugin_api::kernel!(Linear, linear, impl_name = "aclnn", priority = 10, flags = 0, supports = fits);

static SPREAD_SCALES: Function = Function::new(&images::SPREAD_SCALES, c"spread_scales");
/// Rows and columns of a tile with one scale, and columns of a row with one scale.
const TILE: i64 = 32;
/// Columns of a pair of scales, which the vendor's layout has in its last dimension.
const PAIR: i64 = 64;
/// A scale for 1 row of either side and 32 columns of the sum, as the vendor packs it.
const GROUP: i64 = 1 << 32 | 1 << 16 | TILE;
/// Products in the type of the tensors.
const KEEP_TYPE: i8 = 0;

tiling! {
    struct SpreadScalesTiling: 32 { rows: i64, columns: i64, stride: i64, times: i64 }
}

/// The vendor's op for a call of these formats.
fn op_for(x: Option<Format>, weight: Option<Format>, out: Option<Format>) -> Option<VendorOp> {
    use Format::{Bf16, F32, Fp4Row32, Fp8Row32, Fp8Tile32};
    match (x?, weight?, out?) {
        (Bf16, Bf16, Bf16) | (F32, F32, F32) => Some(VendorOp::Matmul),
        (Fp8Row32, Fp8Tile32, Bf16 | F32) | (Fp8Row32, Fp4Row32, Bf16) => Some(VendorOp::QuantMatmul),
        _ => None,
    }
}

fn fits(cx: &PlanCx<'_>, a: &LinearProto<'_>) -> Support {
    let Some(vendor) = Vendor::get() else { return Support::no("the CANN that is installed has no libopapi.so") };
    let Some(op) = op_for(a.x.format(), a.weight.format(), a.out.format()) else {
        return Support::no("the vendor's products do not take these formats");
    };
    if let Some(function) = vendor.lacks(op) {
        return Support::no(format!("the CANN that is installed has no {function}"));
    }
    let columns = a.weight.shape()[1];
    if a.groups != 1 || columns == 0 {
        return Support::no("the vendor's products take one group, of at least one column");
    }
    let is_dense = a.x.is_contiguous() && a.weight.is_contiguous();
    if op == VendorOp::QuantMatmul && (columns % PAIR != 0 || !is_dense) {
        return Support::no("the vendor's products of scaled formats take whole rows, of a multiple of 64 columns");
    }
    // Said here rather than by the missing promise alone, so that it is told why.
    if cx.required() & DI_PF_BATCH_INVARIANT != 0 {
        return Support::no("the vendor does not say that a row's bits depend on that row alone");
    }
    Support::Yes
}

fn linear(cx: &Cx<'_>, a: LinearArgs<'_>) -> Result<(), Fault> {
    let op = op_for(a.x.format(), a.weight.format(), a.out.format());
    let found = Vendor::get().zip(op).filter(|(vendor, op)| vendor.has(*op));
    let (vendor, op) = found.ok_or_else(|| Fault::unsupported("the vendor's products do not take this call"))?;
    let (x, weight, out, stream) = (a.x.view()?, a.weight.view()?, a.out.view()?, stream(cx)?);
    if out.rows() == 0 || out.columns() == 0 {
        return Ok(());
    }
    if op == VendorOp::QuantMatmul {
        scaled(vendor, stream, &x, &weight, &out)
    } else {
        plain(vendor, stream, &x, &weight, &out)
    }
}

/// The vendor's number of a format's elements.
fn data_type(view: &View) -> Result<sys::aclDataType, Fault> {
    match view.format() {
        Some(Format::F32) => Ok(sys::ACL_FLOAT),
        Some(Format::Bf16) => Ok(sys::ACL_BF16),
        Some(Format::Fp8Row32 | Format::Fp8Tile32) => Ok(sys::ACL_FLOAT8_E4M3FN),
        Some(Format::Fp4Row32) => Ok(sys::ACL_FLOAT4_E2M1),
        _ => Err(Fault::unsupported("a format that the vendor's products do not take")),
    }
}

/// A matrix as it lies.
pub(super) fn matrix(vendor: &'static Vendor, view: &View) -> Result<Tensor, Fault> {
    let layout = ([view.rows(), view.columns()], [view.strides[2], 1]);
    Tensor::new(vendor, data_type(view)?, view.data, layout)
}

/// A matrix as it lies, read as its transpose.
pub(super) fn transposed(vendor: &'static Vendor, view: &View) -> Result<Tensor, Fault> {
    let layout = ([view.columns(), view.rows()], [1, view.strides[2]]);
    Tensor::new(vendor, data_type(view)?, view.data, layout)
}

fn plain(vendor: &'static Vendor, stream: &Stream, x: &View, weight: &View, out: &View) -> Result<(), Fault> {
    let tensors = vec![matrix(vendor, x)?, transposed(vendor, weight)?, matrix(vendor, out)?];
    let plan = |t: &[Tensor], bytes: *mut u64, executor: *mut *mut sys::aclOpExecutor| {
        // SAFETY: live tensors; both addresses are writable.
        unsafe {
            let api = vendor.api();
            api.aclnnMatmulGetWorkspaceSize(t[0].raw(), t[1].raw(), t[2].raw(), KEEP_TYPE, bytes, executor)
        }
    };
    keeping(stream, |kept| {
        kept.tensors = tensors;
        // SAFETY: the two functions of one op; the views' memory is kept by the boundary.
        unsafe { call(stream, "aclnnMatmul", kept, plan, &vendor.api().aclnnMatmul) }
    })
}

fn scaled(vendor: &'static Vendor, stream: &Stream, x: &View, weight: &View, out: &View) -> Result<(), Fault> {
    let pairs = x.columns() / PAIR;
    let scales = |kept: &mut Kept, view: &View, times: i64| -> Result<Tensor, Fault> {
        let bytes = (view.rows() * 2 * pairs) as u64;
        let (buffer, address) = Buffer::new(stream.device(), DI_SPACE_DEVICE, bytes, 64)?;
        let (rows, columns, stride) = (view.rows(), 2 * pairs, view.scale_strides[2]);
        let tiling = SpreadScalesTiling { rows, columns, stride, times };
        kept.buffers.push(buffer);
        launch!(stream, SPREAD_SCALES, blocks(stream, rows), [view.scale, address.cast::<u8>()], tiling)?;
        let layout = ([rows, pairs, 2], [2 * pairs, 2, 1]);
        Tensor::new(vendor, sys::ACL_FLOAT8_E8M0, address.cast(), layout)
    };
    let times = if weight.format() == Some(Format::Fp8Tile32) { TILE } else { 1 };
    let plan = |t: &[Tensor], bytes: *mut u64, executor: *mut *mut sys::aclOpExecutor| {
        let none = ABSENT;
        // SAFETY: live tensors, or none where one may be absent; both addresses are writable.
        unsafe {
            vendor.api().aclnnQuantMatmulV5GetWorkspaceSize(
                t[0].raw(),
                t[1].raw(),
                t[2].raw(),
                t[3].raw(),
                none,
                none,
                none,
                none,
                none,
                false,
                true,
                GROUP,
                t[4].raw(),
                bytes,
                executor,
            )
        }
    };
    keeping(stream, |kept| {
        let (of_x, of_weight) = (scales(kept, x, 1)?, scales(kept, weight, times)?);
        kept.tensors = vec![matrix(vendor, x)?, matrix(vendor, weight)?, of_x, of_weight, matrix(vendor, out)?];
        // SAFETY: as above.
        unsafe { call(stream, "aclnnQuantMatmulV5", kept, plan, &vendor.api().aclnnQuantMatmulV5) }
    })
}
