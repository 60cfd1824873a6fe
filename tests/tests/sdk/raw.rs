//! The caller's side: starting a backend, its objects, tensors, and calls.

use std::ptr::null_mut;

use deepinfer_plugin_api::Op;
use deepinfer_plugin_api::abi::*;
use deepinfer_plugin_api::sdk::{Backend, Export, ForeignError, entry};

/// A backend that was started, with an open device and a stream.
pub(crate) struct Plugin {
    pub(crate) api: &'static DiBackendApi,
    pub(crate) device: *mut DiDevice,
    pub(crate) stream: *mut DiStream,
}

/// What a function of the boundary returned.
pub(crate) fn outcome(error: *mut DiError) -> Result<(), ForeignError> {
    // SAFETY: null, or an error that was just handed over.
    unsafe { ForeignError::take(error) }.map_or(Ok(()), Err)
}

/// Calls a function of the runtime table, which must be present.
macro_rules! runtime {
    ($plugin:expr, $function:ident $(, $argument:expr)* $(,)?) => {
        // SAFETY: objects are alive and out-pointers writable, as each test sees to.
        unsafe { ((*$plugin.api.runtime).$function.expect("present"))($plugin.api.backend $(, $argument)*) }
    };
}
pub(crate) use runtime;

/// Zeroed, with its size in front: how a caller gives a struct to fill.
pub(crate) fn blank<T: Copy>() -> T {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: used for structs of the boundary, which begin with `struct_size` and are valid when zeroed.
    unsafe {
        value.as_mut_ptr().cast::<u32>().write(size_of::<T>() as u32);
        value.assume_init()
    }
}

impl Plugin {
    pub(crate) fn start<B: Backend>(options: &str) -> Self {
        Self::open::<B>(options, 0)
    }

    pub(crate) fn open<B: Backend>(options: &str, index: u32) -> Self {
        // The entry sends panics to the core's log; here the test harness shall print them.
        let hook = std::panic::take_hook();
        // SAFETY: all other fields may be zero or null.
        let (mut request, mut reply): (DiEntryRequest, DiEntryReply) = unsafe { std::mem::zeroed() };
        request.struct_size = size_of::<DiEntryRequest>() as u32;
        reply.struct_size = size_of::<DiEntryReply>() as u32;
        request.options = DiStr { ptr: options.as_ptr(), len: options.len() };
        // SAFETY: both structs are valid.
        let code = unsafe { entry::<B>(&raw const request, &raw mut reply, &Export { profile: None }) };
        std::panic::set_hook(hook);
        assert_eq!(code, 0, "the backend starts");
        // SAFETY: the entry succeeded.
        let mut plugin = Self { api: unsafe { &*reply.api }, device: null_mut(), stream: null_mut() };
        outcome(runtime!(plugin, device_open, index, std::ptr::null(), &raw mut plugin.device)).unwrap();
        outcome(runtime!(plugin, stream_create, plugin.device, 0, 0, &raw mut plugin.stream)).unwrap();
        plugin
    }

    pub(crate) fn sync(&self) -> Result<(), ForeignError> {
        outcome(runtime!(self, stream_sync, self.stream))
    }

    /// Entries of the op table in its order.
    pub(crate) fn entries(&self) -> &'static [DiOpEntry] {
        assert_eq!(self.api.op_stride, size_of::<DiOpEntry>());
        // SAFETY: the table holds so many entries of that size.
        unsafe { std::slice::from_raw_parts(self.api.ops, self.api.n_ops) }
    }

    pub(crate) fn entry(&self, op: u32, implementation: &str) -> &'static DiOpEntry {
        let is_it = |e: &&DiOpEntry| e.op_id == op && text(e.impl_name) == implementation;
        self.entries().iter().find(is_it).expect("the implementation is registered")
    }

    /// Asks whether an implementation takes a call.
    pub(crate) fn supports<O: Op>(&self, implementation: &str, args: &O::Raw) -> Result<DiSupport, ForeignError> {
        let supports = self.entry(O::INFO.id, implementation).supports.expect("it looks at calls");
        let mut out: DiSupport = blank();
        let args = (&raw const *args).cast();
        // SAFETY: the arguments are complete and `out` is writable.
        outcome(unsafe { supports(self.api.backend, self.device, args, &raw mut out) })?;
        Ok(out)
    }

    /// Makes a plan, which the test leaks.
    pub(crate) fn plan<O: Op>(
        &self,
        implementation: &str,
        args: &O::Raw,
    ) -> Result<(*mut DiPlan, DiPlanInfo), ForeignError> {
        let make = self.entry(O::INFO.id, implementation).plan.expect("it plans");
        let (mut plan, mut info): (_, DiPlanInfo) = (null_mut(), blank());
        let args = (&raw const *args).cast();
        // SAFETY: the arguments are complete and both out-pointers are writable.
        outcome(unsafe { make(self.api.backend, self.device, args, &raw mut plan, &raw mut info) })?;
        Ok((plan, info))
    }

    pub(crate) fn run<O: Op>(
        &self,
        implementation: &str,
        plan: *mut DiPlan,
        args: &O::Raw,
    ) -> Result<(), ForeignError> {
        let run = self.entry(O::INFO.id, implementation).run.expect("every entry runs");
        let args = (&raw const *args).cast();
        // SAFETY: the arguments are complete, and the tensors alive until the test has waited.
        outcome(unsafe { run(self.api.backend, plan, self.stream, args) })
    }
}

/// Arguments of `O`, zeroed but for the head.
pub(crate) fn args<O: Op>() -> O::Raw {
    // SAFETY: argument structs are valid when zeroed, and begin with the head.
    unsafe {
        let mut raw: O::Raw = std::mem::zeroed();
        let head = (&raw mut raw).cast::<DiOpHeader>();
        (*head).struct_size = size_of::<O::Raw>() as u32;
        ((*head).op_id, (*head).op_version) = (O::INFO.id, O::INFO.version);
        raw
    }
}

/// A contiguous matrix or vector of 4-byte elements.
pub(crate) struct Matrix {
    words: Vec<u32>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    code: u8,
}

impl Matrix {
    fn new(words: Vec<u32>, shape: &[i64], code: u8) -> Self {
        let strides = (0..shape.len()).map(|dim| shape[dim + 1..].iter().product()).collect();
        Self { words, shape: shape.to_vec(), strides, code }
    }

    pub(crate) fn floats(values: &[f32], shape: &[i64]) -> Self {
        Self::new(values.iter().map(|v| v.to_bits()).collect(), shape, DI_CODE_FLOAT)
    }

    pub(crate) fn ints(values: &[i32], shape: &[i64]) -> Self {
        Self::new(values.iter().map(|&v| v as u32).collect(), shape, DI_CODE_INT)
    }

    /// Every second row.
    pub(crate) fn every_second_row(mut self) -> Self {
        self.shape[0] /= 2;
        self.strides[0] *= 2;
        self
    }

    pub(crate) fn values(&self) -> Vec<f32> {
        // SAFETY: kernels wrote through the address; the test has waited for them.
        self.words.iter().map(|word| f32::from_bits(unsafe { (&raw const *word).read_volatile() })).collect()
    }

    /// The descriptor; valid as long as the matrix.
    pub(crate) fn raw(&mut self) -> DiTensor {
        DiTensor { data: self.words.as_mut_ptr().cast(), ..self.without_memory() }
    }

    /// The descriptor as `supports` and `plan` may get it.
    pub(crate) fn without_memory(&self) -> DiTensor {
        DiTensor {
            data: null_mut(),
            device_type: DI_DEVICE_CPU,
            device_id: 0,
            ndim: self.shape.len() as i32,
            code: self.code,
            bits: 32,
            lanes: 1,
            shape: self.shape.as_ptr().cast_mut(),
            strides: self.strides.as_ptr().cast_mut(),
            byte_offset: 0,
            quant: std::ptr::null(),
            layout: 0,
            flags: 0,
            nbytes: 4 * self.words.len() as u64,
        }
    }
}

/// Text of the plugin.
pub(crate) fn text(text: DiStr) -> &'static str {
    if text.len == 0 {
        return "";
    }
    // SAFETY: texts of replies live as long as the backend, which is leaked.
    std::str::from_utf8(unsafe { std::slice::from_raw_parts(text.ptr, text.len) }).expect("UTF-8")
}
