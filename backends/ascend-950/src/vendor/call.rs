//! Tensors of the vendor's ops, lists of them, and a call in its two phases.
//!
//! Everything that a call names is kept until the stream has passed it: the tensors, the workspace, and scratch memory.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use deepinfer_plugin_api::abi::DI_SPACE_DEVICE;
use deepinfer_plugin_api::sdk::{Fault, FaultCode};

use crate::acl::{acl, recent};
use crate::device::Device;
use crate::error::{self, Class};
use crate::memory::Buffer;
use crate::stream::Stream;
use crate::vendor::Vendor;
use crate::vendor::sys::{self, aclDataType, aclOpExecutor, aclTensor, aclTensorList, aclnnStatus};

/// What the vendor aligns a workspace to.
const WORKSPACE_ALIGN: u64 = 512;

/// A tensor of the vendor's ops: a description of memory, which it does not own.
pub(crate) struct Tensor {
    vendor: &'static Vendor,
    raw: *mut aclTensor,
}

// SAFETY: a description that belongs to no thread.
unsafe impl Send for Tensor {}

impl Tensor {
    /// Describes memory by extents and strides in elements, all of which lie in `storage` elements.
    pub(crate) fn new<const N: usize>(
        vendor: &'static Vendor,
        format: aclDataType,
        data: *mut u8,
        (dims, strides): ([i64; N], [i64; N]),
    ) -> Result<Self, Fault> {
        let last: i64 = dims.iter().zip(strides).map(|(dim, stride)| (dim - 1).max(0) * stride).sum();
        let storage = [last + 1];
        // SAFETY: the arrays live until the call returns.
        let raw = unsafe {
            vendor.api().aclCreateTensor(
                dims.as_ptr(),
                N as u64,
                format,
                strides.as_ptr(),
                0,
                sys::ACL_FORMAT_ND,
                storage.as_ptr(),
                1,
                data.cast(),
            )
        };
        if raw.is_null() {
            return Err(Fault::new(FaultCode::Internal, "the vendor's library makes no tensor"));
        }
        Ok(Self { vendor, raw })
    }

    /// The vendor's handle.
    pub(crate) fn raw(&self) -> *mut aclTensor {
        self.raw
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: made by this library, destroyed once, after the stream has passed its last use.
        let _ = unsafe { self.vendor.api().aclDestroyTensor(self.raw) };
    }
}

/// A list of tensors, which it owns.
pub(crate) struct TensorList {
    vendor: &'static Vendor,
    raw: *mut aclTensorList,
}

// SAFETY: descriptions that belong to no thread.
unsafe impl Send for TensorList {}

impl TensorList {
    /// Puts tensors into a list.
    pub(crate) fn new(vendor: &'static Vendor, tensors: Vec<Tensor>) -> Result<Self, Fault> {
        let handles: Vec<*const aclTensor> = tensors.iter().map(|tensor| tensor.raw.cast_const()).collect();
        // SAFETY: live tensors; the array lives until the call returns.
        let raw = unsafe { vendor.api().aclCreateTensorList(handles.as_ptr(), handles.len() as u64) };
        if raw.is_null() {
            return Err(Fault::new(FaultCode::Internal, "the vendor's library makes no list of tensors"));
        }
        // From here on they are destroyed with the list.
        tensors.into_iter().for_each(std::mem::forget);
        Ok(Self { vendor, raw })
    }

    /// The vendor's handle.
    pub(crate) fn raw(&self) -> *mut aclTensorList {
        self.raw
    }
}

impl Drop for TensorList {
    fn drop(&mut self) {
        // SAFETY: made by this library, destroyed once, after the stream has passed the last use of its tensors.
        let _ = unsafe { self.vendor.api().aclDestroyTensorList(self.raw) };
    }
}

/// What a call needs until the stream has passed it.
#[derive(Default)]
pub(crate) struct Kept {
    /// Descriptions.
    pub(crate) tensors: Vec<Tensor>,
    /// Lists of descriptions.
    pub(crate) lists: Vec<TensorList>,
    /// Memory.
    pub(crate) buffers: Vec<Buffer>,
}

/// The second phase.
pub(crate) type Execute = Result<
    unsafe extern "C" fn(*mut c_void, u64, *mut aclOpExecutor, crate::acl::sys::aclrtStream) -> aclnnStatus,
    libloading::Error,
>;

/// Does `work`, and keeps what it puts into [`Kept`] until the stream has passed what it queued, also where it failed half-way:
/// what was queued before still uses it.
pub(crate) fn keeping(stream: &Stream, work: impl FnOnce(&mut Kept) -> Result<(), Fault>) -> Result<(), Fault> {
    let mut kept = Kept::default();
    let done = work(&mut kept);
    let queued = stream.keep(kept);
    done.and(queued)
}

/// Calls an op: `plan` is its first phase, which says how much workspace it needs and makes an executor; `execute` its second.
///
/// # Safety
/// Both are functions of one op; `plan` is given tensors of `kept` and may use its lists, whose memory the boundary keeps until the stream has passed.
pub(crate) unsafe fn call(
    stream: &Stream,
    name: &str,
    kept: &mut Kept,
    plan: impl FnOnce(&[Tensor], *mut u64, *mut *mut aclOpExecutor) -> aclnnStatus,
    execute: &Execute,
) -> Result<(), Fault> {
    let execute = execute.as_ref().map_err(|e| Fault::unsupported(format!("{name} is not installed: {e}")))?;
    let (mut bytes, mut executor) = (0, null_mut());
    stream.begin()?;
    check(stream.device(), name, "is not planned", plan(&kept.tensors, &mut bytes, &mut executor))?;
    if executor.is_null() {
        let text = format!("{name} is not planned: the vendor's library says that it is, but makes no executor");
        return Err(Fault::new(FaultCode::Internal, text));
    }
    let mut workspace = null_mut();
    if bytes > 0 {
        let (buffer, address) = Buffer::new(stream.device(), DI_SPACE_DEVICE, bytes, WORKSPACE_ALIGN)?;
        kept.buffers.push(buffer);
        workspace = address;
    }
    // SAFETY: the executor was just made and is used once; the workspace is as large as was asked for.
    let code = unsafe { execute(workspace, bytes, executor, stream.raw()) };
    check(stream.device(), name, "is not queued", code)
}

/// `Ok` if the vendor's op says so.
pub(crate) fn check(device: &Device, name: &str, what: &str, code: aclnnStatus) -> Result<(), Fault> {
    if code == sys::ACLNN_SUCCESS {
        return Ok(());
    }
    let said = acl().ok().and_then(recent).map_or(String::new(), |text| format!(": {text}"));
    let why = match code {
        sys::ACLNN_ERR_PARAM_NULLPTR => "an argument is missing",
        sys::ACLNN_ERR_PARAM_INVALID => "an argument is wrong",
        sys::ACLNN_ERR_RUNTIME_ERROR => "the runtime failed",
        sys::ACLNN_ERR_INNER..=561_999 => "the op failed inside",
        // Ops pass on what the runtime says.
        code if error::class(code) != Class::Other => return Err(device.fault(format_args!("{name} {what}"), code)),
        _ => "an error of the vendor's library",
    };
    let mut fault = Fault::new(FaultCode::Internal, format!("{name} {what}: {why} ({code}){said}"));
    fault.vendor_code = code;
    Err(fault)
}

/// No tensor, where an op takes one that may be absent.
pub(crate) const ABSENT: *const aclTensor = null();
/// No list.
pub(crate) const NO_LIST: *const aclTensorList = null();
