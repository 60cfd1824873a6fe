//! A caller of the layer through the raw tables, who can break every rule of the header.

use std::ffi::c_void;
use std::mem::zeroed;
use std::path::{Path, PathBuf};

use deepinfer_plugin_api::abi::*;
use deepinfer_plugin_api::generated::DiArgsRmsNormV1;
use deepinfer_plugin_api::op_by_name;
use deepinfer_plugin_api::sdk::ForeignError;
use serde_json::Value;

use crate::{built, findings};

/// Rows and columns of the test's tensors.
pub(crate) const SHAPE: [i64; 2] = [2, 4];
/// Bytes of one.
pub(crate) const BYTES: u64 = 32;

/// The layer over cpu-reference, with a device and a stream.
pub(crate) struct Caller {
    pub(crate) api: &'static DiBackendApi,
    pub(crate) runtime: DiRuntimeApi,
    pub(crate) device: *mut DiDevice,
    pub(crate) stream: *mut DiStream,
    folder: PathBuf,
}

/// Calls the entry of a library that Cargo has built.
pub(crate) fn start(library: &str, options: &str, next: *const DiBackendApi) -> Result<*const DiBackendApi, String> {
    start_file(&built(library), options, next)
}

/// Calls the entry of a library, which is never unloaded.
pub(crate) fn start_file(
    library: &Path,
    options: &str,
    next: *const DiBackendApi,
) -> Result<*const DiBackendApi, String> {
    // SAFETY: a library of this repository, whose symbol has this type. Numbers, pointers and structs of them may be zeros;
    // both structs live for the call.
    unsafe {
        let library = Box::leak(Box::new(libloading::Library::new(library).expect("a library")));
        let entry = library.get::<DiEntryFn>(DI_ENTRY_SYMBOL).expect("a plugin");
        let mut request: DiEntryRequest = zeroed();
        request.struct_size = size_of::<DiEntryRequest>() as u32;
        request.options = DiStr { ptr: options.as_ptr(), len: options.len() };
        request.next = next;
        let mut reply: DiEntryReply = zeroed();
        reply.struct_size = size_of::<DiEntryReply>() as u32;
        let code = entry(&raw const request, &raw mut reply);
        match ForeignError::take(reply.error) {
            Some(error) => Err(error.message),
            None => {
                assert_eq!(code, 0);
                Ok(reply.api)
            }
        }
    }
}

/// What a call gave.
pub(crate) fn taken(error: *mut DiError) -> Result<(), String> {
    // SAFETY: null, or handed over by the call that this is the result of.
    unsafe { ForeignError::take(error) }.map_or(Ok(()), |error| Err(error.message))
}

/// A function of the runtime table.
macro_rules! call {
    ($caller:expr, $function:ident $(, $arg:expr)* $(,)?) => {
        // SAFETY: the table is the layer's, which the tests trust to look at its arguments before it uses them.
        unsafe { $caller.runtime.$function.expect("the layer has it")($caller.api.backend $(, $arg)*) }
    };
}
pub(crate) use call;

impl Caller {
    pub(crate) fn new(folder: &Path, options: &str) -> Self {
        static CPU: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        // A backend starts once in a process; layers over it as often as one likes.
        let cpu = *CPU.get_or_init(|| {
            start("deepinfer_cpu_reference", "", std::ptr::null()).expect("cpu starts").expose_provenance()
        });
        Self::over(std::ptr::with_exposed_provenance(cpu), folder, options)
    }

    /// The layer over a backend that has started.
    pub(crate) fn over(next: *const DiBackendApi, folder: &Path, options: &str) -> Self {
        let options = format!("{options}&report={}", folder.join("report").display());
        let api = start("deepinfer_validate", &options, next).expect("the layer starts");
        // SAFETY: tables of a successful reply live as long as the library.
        let (api, runtime) = unsafe { (&*api, *(*api).runtime) };
        let (device, stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut caller = Self { api, runtime, device, stream, folder: folder.to_owned() };
        caller.device = caller.open();
        caller.stream = caller.new_stream();
        caller
    }

    pub(crate) fn findings(&self) -> Vec<Value> {
        findings(&self.folder)
    }

    pub(crate) fn open(&self) -> *mut DiDevice {
        let mut device = std::ptr::null_mut();
        taken(call!(self, device_open, 0, std::ptr::null(), &raw mut device)).expect("a device");
        device
    }

    pub(crate) fn new_stream(&self) -> *mut DiStream {
        let mut stream = std::ptr::null_mut();
        taken(call!(self, stream_create, self.device, 0, 0, &raw mut stream)).expect("a stream");
        stream
    }

    pub(crate) fn alloc(&self, bytes: u64) -> (*mut DiBuffer, *mut c_void) {
        let (mut buffer, mut address) = (std::ptr::null_mut(), std::ptr::null_mut());
        taken(call!(self, alloc, self.device, 0, bytes, 64, &raw mut buffer, &raw mut address)).expect("memory");
        (buffer, address)
    }

    /// Runs the implementation of an op with these arguments.
    pub(crate) fn run(
        &self,
        op: &str,
        plan: *mut DiPlan,
        stream: *mut DiStream,
        args: *const DiOpHeader,
    ) -> Result<(), String> {
        self.run_id(op_by_name(op).expect("an op of the catalogue").id, plan, stream, args)
    }

    /// The same by the number of the op.
    pub(crate) fn run_id(
        &self,
        id: u32,
        plan: *mut DiPlan,
        stream: *mut DiStream,
        args: *const DiOpHeader,
    ) -> Result<(), String> {
        // SAFETY: the table has `n_ops` entries; the arguments are the test's business.
        unsafe {
            let entries = std::slice::from_raw_parts(self.api.ops, self.api.n_ops);
            let entry = entries.iter().find(|entry| entry.op_id == id).expect("an implementation");
            taken(entry.run.expect("a function")(self.api.backend, plan, stream, args))
        }
    }
}

/// A right call of `rms_norm`, to be spoiled.
pub(crate) struct Norm {
    pub(crate) args: Box<DiArgsRmsNormV1>,
    pub(crate) shape: Box<[i64; 2]>,
    pub(crate) strides: Box<[i64; 2]>,
    pub(crate) x: *mut DiBuffer,
    pub(crate) out: *mut DiBuffer,
}

impl Norm {
    pub(crate) fn new(caller: &Caller) -> Self {
        let (mut shape, mut strides) = (Box::new(SHAPE), Box::new([SHAPE[1], 1]));
        let ((x, x_at), (_, weight_at), (out, out_at)) =
            (caller.alloc(BYTES), caller.alloc(BYTES / 2), caller.alloc(BYTES));
        let ones: Vec<u8> = (0..BYTES / 4).flat_map(|i| (1.0 + i as f32).to_le_bytes()).collect();
        for (at, bytes) in [(x_at, BYTES), (weight_at, BYTES / 2)] {
            let source = ones.as_ptr().cast();
            taken(call!(caller, copy, caller.stream, at, source, bytes, DI_COPY_H2D)).expect("an upload");
        }
        taken(call!(caller, stream_sync, caller.stream)).expect("a wait");
        let mut tensor = |data, rank: usize| DiTensor {
            data,
            device_type: DI_DEVICE_CPU,
            device_id: 0,
            ndim: rank as i32,
            code: DI_CODE_FLOAT,
            bits: 32,
            lanes: 1,
            shape: shape[2 - rank..].as_mut_ptr(),
            strides: strides[2 - rank..].as_mut_ptr(),
            byte_offset: 0,
            quant: std::ptr::null(),
            layout: 0,
            flags: 0,
            nbytes: if rank == 2 { BYTES } else { BYTES / 2 },
        };
        let (x_tensor, weight, out_tensor) = (tensor(x_at, 2), tensor(weight_at, 1), tensor(out_at, 2));
        // SAFETY: zeros are a valid argument struct.
        let mut args: Box<DiArgsRmsNormV1> = Box::new(unsafe { zeroed() });
        args.h.struct_size = size_of::<DiArgsRmsNormV1>() as u32;
        let op = op_by_name("rms_norm").expect("an op of the catalogue");
        (args.h.op_id, args.h.op_version) = (op.id, op.version);
        (args.x, args.weight, args.eps, args.out) = (x_tensor, weight, 1e-6, out_tensor);
        Self { args, shape, strides, x, out }
    }

    pub(crate) fn run(&self, caller: &Caller, stream: *mut DiStream) -> Result<(), String> {
        caller.run("rms_norm", std::ptr::null_mut(), stream, std::ptr::from_ref(&self.args.h))
    }
}
