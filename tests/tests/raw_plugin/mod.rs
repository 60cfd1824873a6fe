//! A plugin as C sees it: the entry, the tables and the errors themselves, without the loader's checks in front.

use std::ffi::c_void;
use std::mem::zeroed;
use std::path::Path;

use deepinfer_plugin_api::abi::*;
use deepinfer_plugin_api::generated::DiArgsRstdV1;

/// An error of a plugin, read and released.
#[derive(Debug)]
pub(crate) struct RawError {
    pub(crate) code: i32,
    pub(crate) flags: u32,
    pub(crate) vendor_code: i32,
    pub(crate) message: String,
    pub(crate) origin: String,
}

/// Reads an error that a plugin returned, and releases it.
///
/// # Safety
/// `error` is null or was just handed over.
pub(crate) unsafe fn taken(error: *mut DiError) -> Result<(), RawError> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: not null, hence an error whose texts live until it is released, once, here.
    unsafe {
        let text = |text: DiStr| match text.len {
            0 => String::new(),
            len => String::from_utf8(std::slice::from_raw_parts(text.ptr, len).to_vec()).expect("UTF-8"),
        };
        let DiError { code, flags, vendor_code, message, origin, release, struct_size } = *error;
        assert_eq!(struct_size as usize, size_of::<DiError>());
        let read = RawError { code, flags, vendor_code, message: text(message), origin: text(origin) };
        release.expect("errors release themselves")(error);
        Err(read)
    }
}

/// A loaded library. It is never unloaded.
pub(crate) struct RawPlugin {
    entry: DiEntryFn,
}

impl RawPlugin {
    pub(crate) fn open(path: &Path) -> Self {
        // SAFETY: a library of these tests, whose constructors do nothing of note; the symbol has this type.
        unsafe {
            let library = Box::leak(Box::new(libloading::Library::new(path).unwrap_or_else(|e| panic!("{e}"))));
            Self { entry: *library.get::<DiEntryFn>(DI_ENTRY_SYMBOL).unwrap() }
        }
    }

    /// A request of the present core, as it is sent.
    pub(crate) fn request(options: &'static str) -> DiEntryRequest {
        // SAFETY: numbers, pointers and structs of them: zeros are valid.
        let mut request: DiEntryRequest = unsafe { zeroed() };
        request.struct_size = size_of::<DiEntryRequest>() as u32;
        (request.min_major, request.max_major, request.minor) = (DI_ABI_MAJOR, DI_ABI_MAJOR, DI_ABI_MINOR);
        request.options = DiStr { ptr: options.as_ptr(), len: options.len() };
        request
    }

    /// Calls the entry.
    pub(crate) fn enter(&self, request: &DiEntryRequest) -> Result<*const DiBackendApi, RawError> {
        // SAFETY: as above.
        let mut reply: DiEntryReply = unsafe { zeroed() };
        reply.struct_size = size_of::<DiEntryReply>() as u32;
        // SAFETY: both structs are whole and live through the call.
        let code = unsafe { (self.entry)(request, &raw mut reply) };
        // SAFETY: the error, if any, was just handed over.
        let result = unsafe { taken(reply.error) };
        assert_eq!(code, result.as_ref().err().map_or(0, |error| error.code));
        result.map(|()| reply.api)
    }

    /// The tables.
    #[track_caller]
    pub(crate) fn start(&self) -> &'static DiBackendApi {
        let api = self.enter(&Self::request("")).unwrap_or_else(|error| panic!("{error:?}"));
        // SAFETY: a table of a plugin that has started lives as long as its library.
        unsafe { &*api }
    }
}

/// Runs an op of the table, without a plan, on no particular stream.
///
/// # Safety
/// `args` are those of the op, and as the header wants them apart from what a plugin checks.
pub(crate) unsafe fn run(api: &DiBackendApi, op: u32, args: *const DiOpHeader) -> Result<(), RawError> {
    for index in 0..api.n_ops {
        // SAFETY: an entry of the table; the caller vouches for the arguments.
        unsafe {
            let entry = &*api.ops.cast::<u8>().add(index * api.op_stride).cast::<DiOpEntry>();
            if entry.op_id == op {
                let run = entry.run.expect("an implementation");
                return taken(run(api.backend, std::ptr::null_mut(), std::ptr::null_mut(), args));
            }
        }
    }
    panic!("the plugin has no op {op}");
}

/// F32 memory with a descriptor.
pub(crate) struct Floats {
    pub(crate) values: Vec<f32>,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

impl Floats {
    /// A contiguous tensor.
    pub(crate) fn new(values: &[f32], shape: &[i64]) -> Self {
        let mut strides = vec![1; shape.len()];
        for dim in (1..shape.len()).rev() {
            strides[dim - 1] = strides[dim] * shape[dim];
        }
        Self { values: values.to_vec(), shape: shape.to_vec(), strides }
    }

    /// The descriptor; valid while this value is not moved or changed.
    pub(crate) fn tensor(&mut self) -> DiTensor {
        // SAFETY: numbers and pointers: zeros are valid.
        let mut tensor: DiTensor = unsafe { zeroed() };
        tensor.data = self.values.as_mut_ptr().cast::<c_void>();
        (tensor.device_type, tensor.ndim, tensor.lanes) = (DI_DEVICE_CPU, self.shape.len() as i32, 1);
        (tensor.code, tensor.bits) = (DI_CODE_FLOAT, 32);
        (tensor.shape, tensor.strides) = (self.shape.as_mut_ptr(), self.strides.as_mut_ptr());
        tensor.nbytes = size_of_val(&*self.values) as u64;
        tensor
    }
}

/// Arguments of `rstd`.
pub(crate) fn rstd_args(x: DiTensor, eps: f32, out: DiTensor) -> DiArgsRstdV1 {
    // SAFETY: as above.
    let mut args: DiArgsRstdV1 = unsafe { zeroed() };
    args.h.struct_size = size_of::<DiArgsRstdV1>() as u32;
    (args.h.op_id, args.h.op_version) = (DI_OP_RSTD, 1);
    (args.x, args.eps, args.out) = (x, eps, out);
    args
}

/// Id of `rstd`.
pub(crate) const DI_OP_RSTD: u32 = 3;
