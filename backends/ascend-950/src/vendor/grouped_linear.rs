//! `grouped_linear` by the vendor's grouped products.
//!
//! BF16 or F32 alone, by `aclnnGroupedMatmulV5` with a matrix of weights for each expert, as they lie. The ends of the experts'
//! rows are made of their starts first (`kernels/expert_ends.cpp`). Other calls are the kernel's: of scaled formats the vendor's op
//! takes the weights of all experts in one tensor only, and FP8 rows with FP4 weights in another layout.

// Kernel functions have the signature of the SDK.
#![allow(clippy::needless_pass_by_value)]

use std::ptr::null_mut;

use deepinfer_plugin_api::Format;
use deepinfer_plugin_api::abi::{DI_PF_BATCH_INVARIANT, DI_SPACE_DEVICE};
use deepinfer_plugin_api::generated::{GroupedLinearArgs, GroupedLinearProto};
use deepinfer_plugin_api::sdk::{Cx, Fault, PlanCx, Support};

use crate::image::{Function, images};
use crate::launch::{launch, stream, tiling};
use crate::memory::Buffer;
use crate::vendor::call::{NO_LIST, Tensor, TensorList, call, keeping};
use crate::vendor::linear::{matrix, transposed};
use crate::vendor::{Vendor, VendorOp, sys};

deepinfer_plugin_api::kernel!(
    GroupedLinear,
    grouped_linear,
    impl_name = "aclnn",
    priority = 10,
    flags = 0,
    supports = fits
);

static EXPERT_ENDS: Function = Function::new(&images::EXPERT_ENDS, c"expert_ends");
/// Matrices that the vendor's op takes in a list; the kernel of the ends has room for as many.
const MOST_EXPERTS: usize = 128;
/// `splitItem`: one output.
const ONE_OUTPUT: i64 = 3;
/// `groupType`: a group is some rows.
const OF_ROWS: i64 = 0;
/// `groupListType`: groups are told by their ends.
const BY_ENDS: i64 = 0;
/// `actType`: none.
const NO_ACTIVATION: i64 = 0;

tiling! {
    struct ExpertEndsTiling: 32 { experts: i64, rows: i64, reserved: [i64; 2] }
}

fn fits(cx: &PlanCx<'_>, a: &GroupedLinearProto<'_>) -> Support {
    let Some(vendor) = Vendor::get() else { return Support::no("the CANN that is installed has no libopapi.so") };
    if let Some(function) = vendor.lacks(VendorOp::GroupedMatmul) {
        return Support::no(format!("the CANN that is installed has no {function}"));
    }
    let (format, weights) = (a.x.format(), a.weight.tensors());
    let is_of_format = weights.iter().all(|weight| weight.format() == format) && a.out.format() == format;
    if !matches!(format, Some(Format::Bf16 | Format::F32)) || !is_of_format {
        return Support::no("the vendor's grouped products take BF16 alone or F32 alone");
    }
    if !(1..=MOST_EXPERTS).contains(&weights.len()) || a.dims.k == 0 {
        return Support::no("the vendor's grouped products take 1 to 128 experts, of at least one column");
    }
    let is_dense = a.x.is_contiguous() && a.out.is_contiguous() && weights.iter().all(|weight| weight.is_contiguous());
    if !is_dense {
        return Support::no("the vendor's grouped products take whole rows");
    }
    // Said here rather than by the missing promise alone, so that it is told why.
    if cx.required() & DI_PF_BATCH_INVARIANT != 0 {
        return Support::no("the vendor does not say that a row's bits depend on that row alone");
    }
    Support::Yes
}

fn grouped_linear(cx: &Cx<'_>, a: GroupedLinearArgs<'_>) -> Result<(), Fault> {
    let vendor = Vendor::get().filter(|vendor| vendor.has(VendorOp::GroupedMatmul));
    let vendor = vendor.ok_or_else(|| Fault::unsupported("the vendor's grouped products are not installed"))?;
    let (x, starts, out, stream) = (a.x.view()?, a.expert_start.view()?, a.out.view()?, stream(cx)?);
    let weights = a.weight.tensors();
    if weights.len() > MOST_EXPERTS {
        return Err(Fault::unsupported("more experts than the vendor's grouped products take"));
    }
    keeping(stream, |kept| {
        let experts = weights.len() as i64;
        let (buffer, address) = Buffer::new(stream.device(), DI_SPACE_DEVICE, experts as u64 * 8, 64)?;
        kept.buffers.push(buffer);
        // Without rows the starts can still be wrong.
        let tiling = ExpertEndsTiling { experts, rows: a.dims.m as i64, reserved: [0; 2] };
        launch!(stream, EXPERT_ENDS, 1, [starts.data, address.cast::<u8>(), stream.fault_word()], tiling)?;
        if out.rows() == 0 || out.columns() == 0 {
            return Ok(());
        }
        kept.tensors.push(Tensor::new(vendor, sys::ACL_INT64, address.cast(), ([experts], [1]))?);
        let matrices = weights.iter().map(|weight| transposed(vendor, &weight.view()?)).collect::<Result<_, _>>()?;
        for tensors in [vec![matrix(vendor, &x)?], matrices, vec![matrix(vendor, &out)?]] {
            kept.lists.push(TensorList::new(vendor, tensors)?);
        }
        let [x, weight, out] = [0, 1, 2].map(|place| kept.lists[place].raw());
        let plan = |t: &[Tensor], bytes: *mut u64, executor: *mut *mut sys::aclOpExecutor| {
            let none = NO_LIST;
            // SAFETY: a live tensor and live lists, or none where one may be absent; both addresses are writable.
            unsafe {
                vendor.api().aclnnGroupedMatmulV5GetWorkspaceSize(
                    x,
                    weight,
                    none,
                    none,
                    none,
                    none,
                    none,
                    none,
                    t[0].raw(),
                    none,
                    none,
                    none,
                    ONE_OUTPUT,
                    OF_ROWS,
                    BY_ENDS,
                    NO_ACTIVATION,
                    null_mut(),
                    out,
                    null_mut(),
                    null_mut(),
                    bytes,
                    executor,
                )
            }
        };
        // SAFETY: the two functions of one op; the views' memory is kept by the boundary.
        unsafe { call(stream, "aclnnGroupedMatmulV5", kept, plan, &vendor.api().aclnnGroupedMatmulV5) }
    })
}
