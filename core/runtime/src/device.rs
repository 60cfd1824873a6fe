//! A device that runs ops: checks, looks up, calls, and turns errors into the core's.

#![allow(unsafe_code)]

use std::cell::{OnceCell, RefCell};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;

use deepinfer_ops::{Allocation, ArgError, Device, Dispatch, OpCall, OpError, Tensor};
use deepinfer_plugin_api::OpInfo;
use deepinfer_plugin_api::abi::{
    DI_COPY_D2H, DI_COPY_H2D, DI_E_OOM, DI_E_UNSUPPORTED, DiError, DiEvent, DiOpHeader, DiRunFn,
};
use deepinfer_plugin_api::generated::OPS;

use crate::backend::{DeviceInfo, LoadedBackend, PluginError, call};
use crate::memory::{Buffer, Shared};
use crate::plan::{NoPlan, Plan, Plans};
use crate::raw::take_error;

/// Alignment of allocations, as [`Device::allocate`] promises.
const ALIGN: u64 = 256;

/// An open device. It may move to another thread, but is used by one at a time, as a stream must be.
pub struct OpenDevice {
    shared: Arc<Shared>,
    info: DeviceInfo,
    /// By catalogue id.
    table: Vec<Implementations>,
    plans: RefCell<Plans>,
    workspace: RefCell<Workspace>,
    /// Set by the first error after which the device is unusable; every later call gives it again.
    lost: OnceCell<String>,
    /// Keeps the type from being `Sync`, whatever its fields become.
    _one_thread: PhantomData<std::cell::Cell<()>>,
}

/// How an op is run.
enum Implementations {
    /// There is none of the catalogue's version.
    None,
    /// The best one takes every call.
    Direct(DiRunFn),
    /// The best one wants to see the call first; indices into the backend's list, best first.
    Planned(Vec<usize>),
}

/// Scratch memory of planned ops. One stream runs them one after the other, so that they can share it.
#[derive(Default)]
struct Workspace {
    memory: Option<Buffer>,
    bytes: u64,
    align: u64,
    /// Copy of the argument struct, in which the workspace is filled in.
    args: Vec<u64>,
}

impl LoadedBackend {
    /// Opens a device.
    ///
    /// # Errors
    /// There is no such device, or it does not answer.
    pub fn open(&'static self, index: u32) -> Result<OpenDevice, PluginError> {
        let info = self.device_info(index)?;
        let shared = Shared::open(self, index)?;
        let ids = OPS.iter().map(|op| op.id as usize + 1).max().unwrap_or(0);
        let mut table: Vec<Implementations> = (0..ids).map(|_| Implementations::None).collect();
        for op in OPS {
            table[op.id as usize] = implementations(self, op);
        }
        let (plans, workspace, lost, _one_thread) = Default::default();
        Ok(OpenDevice { shared, info, table, plans, workspace, lost, _one_thread })
    }
}

fn implementations(backend: &LoadedBackend, op: &OpInfo) -> Implementations {
    let mut found: Vec<usize> = (0..backend.ops.len())
        .filter(|&i| backend.ops[i].entry.op_id == op.id && backend.ops[i].entry.op_version == op.version)
        .collect();
    // Stable: of equal priorities the first in the plugin's table.
    found.sort_by_key(|&i| std::cmp::Reverse(backend.ops[i].entry.priority));
    let Some(&best) = found.first() else { return Implementations::None };
    let entry = &backend.ops[best].entry;
    match entry.run {
        Some(run) if entry.supports.is_none() && entry.plan.is_none() => Implementations::Direct(run),
        _ => Implementations::Planned(found),
    }
}

impl OpenDevice {
    /// The backend.
    pub fn loaded_backend(&self) -> &'static LoadedBackend {
        self.shared.backend
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Waits for all work so far.
    ///
    /// # Errors
    /// The first fault of that work.
    pub fn synchronize(&self) -> Result<(), OpError> {
        self.alive()?;
        // SAFETY: `OpenDevice` is not `Sync`, so that this thread alone uses the stream.
        unsafe { self.shared.synchronize() }.map_err(|e| self.error("stream_sync", 0, &e))
    }

    /// Marks the present end of the work.
    ///
    /// # Errors
    /// As the device says.
    pub fn record_event(&self) -> Result<Event, OpError> {
        self.alive()?;
        let backend = self.shared.backend;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the device is open and `raw` is writable.
        self.check("event_create", 0, unsafe { call!(backend, event_create, self.shared.device, 0, &raw mut raw) })?;
        let event = Event { shared: self.shared.clone(), raw };
        // SAFETY: event and stream are alive; this thread alone uses the stream.
        self.check("event_record", 0, unsafe { call!(backend, event_record, event.raw, self.shared.stream) })?;
        Ok(event)
    }

    /// An earlier error after which nothing works.
    fn alive(&self) -> Result<(), OpError> {
        self.lost.get().map_or(Ok(()), |text| Err(OpError::DeviceLost(text.clone())))
    }

    /// Takes over what a function of the plugin returned.
    fn check(&self, what: &str, bytes: u64, error: *mut DiError) -> Result<(), OpError> {
        // SAFETY: null or an error that the plugin has just handed over.
        match unsafe { take_error(error) } {
            None => Ok(()),
            Some(error) => Err(self.error(what, bytes, &error)),
        }
    }

    #[cold]
    fn error(&self, what: &str, bytes: u64, error: &PluginError) -> OpError {
        let origin = if error.origin.is_empty() {
            format!("{}/{what}", self.shared.backend.name())
        } else {
            error.origin.clone()
        };
        if error.is_lasting() {
            let text = format!("{origin}: {error}");
            return OpError::DeviceLost(self.lost.get_or_init(|| text).clone());
        }
        match error.code {
            DI_E_UNSUPPORTED => OpError::Unsupported {
                backend: self.shared.backend.name().to_owned(),
                op: what.to_owned(),
                reason: error.to_string(),
            },
            DI_E_OOM => OpError::OutOfMemory { bytes, reason: format!("{origin}: {error}") },
            _ => OpError::Backend { origin, message: error.to_string() },
        }
    }

    /// Every tensor must lie on this device: an address of another one would be dereferenced.
    fn check_placement(&self, op: &'static str, call: &dyn OpCall) -> Result<(), OpError> {
        let mut result = Ok(());
        call.tensors(&mut |arg, tensor| {
            if result.is_ok() {
                result = self.is_here(op, arg, tensor);
            }
        });
        Ok(result?)
    }

    fn is_here(&self, op: &'static str, arg: &str, tensor: &Tensor) -> Result<(), ArgError> {
        let place = (tensor.device_type(), tensor.device_id());
        if place == (self.info.device_type, self.info.index as i32) {
            return Ok(());
        }
        Err(ArgError {
            op,
            arg: arg.to_owned(),
            problem: format!(
                "lies on device {} of type {}, but the op runs on device {} of type {}; copy it there first",
                place.1, place.0, self.info.index, self.info.device_type
            ),
        })
    }

    /// A copy or fill must stay within its tensor, on this device.
    fn check_extent(&self, op: &'static str, tensor: &Tensor, bytes: usize) -> Result<(), OpError> {
        self.alive()?;
        self.is_here(op, "tensor", tensor)?;
        if bytes > tensor.bytes() {
            let problem = format!("has {} bytes, but {bytes} are to be copied", tensor.bytes());
            return Err(ArgError { op, arg: "tensor".to_owned(), problem }.into());
        }
        Ok(())
    }

    fn missing(&self, info: &OpInfo) -> OpError {
        let backend = self.shared.backend;
        let versions: Vec<String> =
            backend.ops.iter().filter(|op| op.op_id() == info.id).map(|op| op.version().to_string()).collect();
        let reason = if versions.is_empty() {
            "it has no implementation".to_owned()
        } else {
            format!("it implements version {}, but version {} is called", versions.join(", "), info.version)
        };
        OpError::Unsupported { backend: backend.name().to_owned(), op: info.name.to_owned(), reason }
    }

    /// Plans the call if its signature is new, gives it a workspace, and runs it.
    fn dispatch_planned(
        &self,
        info: &'static OpInfo,
        candidates: &[usize],
        args: *const DiOpHeader,
    ) -> Result<(), OpError> {
        let mut plans = self.plans.borrow_mut();
        // SAFETY: `OpCall::with_raw` gives complete arguments; this thread alone uses the stream.
        let plan = unsafe { plans.find(&self.shared, info, candidates, args) }.map_err(|e| match e {
            NoPlan::Failed(error) => self.error(info.name, 0, &error),
            NoPlan::Unsupported(reason) => OpError::Unsupported {
                backend: self.shared.backend.name().to_owned(),
                op: info.name.to_owned(),
                reason,
            },
        })?;
        let mut workspace = self.workspace.borrow_mut();
        let args = match plan.workspace_bytes {
            0 => args,
            bytes => {
                let memory = self.reserve(&mut workspace, plan)?;
                workspace.args.resize(info.args_size.div_ceil(size_of::<u64>()), 0);
                let copy = workspace.args.as_mut_ptr().cast::<DiOpHeader>();
                // SAFETY: the struct has `args_size` bytes, for which `copy` has room; its alignment is that of `u64`.
                unsafe {
                    std::ptr::copy_nonoverlapping(args.cast::<u8>(), copy.cast(), info.args_size);
                    (*copy).workspace = memory;
                    (*copy).workspace_bytes = bytes;
                }
                copy.cast_const()
            }
        };
        let Shared { backend, stream, .. } = &*self.shared;
        // SAFETY: as in `dispatch`; the plan was made for this signature.
        self.check(info.name, plan.workspace_bytes, unsafe { (plan.run)(backend.raw, plan.raw, *stream, args) })
    }

    /// Scratch memory for a plan; grows and never shrinks.
    fn reserve(&self, workspace: &mut Workspace, plan: &Plan) -> Result<*mut c_void, OpError> {
        let (bytes, align) = (plan.workspace_bytes.max(workspace.bytes), plan.workspace_align.max(workspace.align));
        if let Some(memory) = workspace.memory.as_ref().filter(|_| (bytes, align) == (workspace.bytes, workspace.align))
        {
            return Ok(memory.address());
        }
        workspace.memory = None;
        let memory = Buffer::new(&self.shared, bytes, align.max(ALIGN)).map_err(|e| self.error("alloc", bytes, &e))?;
        let address = memory.address();
        (workspace.memory, workspace.bytes, workspace.align) = (Some(memory), bytes, align);
        Ok(address)
    }
}

impl Dispatch for OpenDevice {
    fn dispatch(&self, call: &dyn OpCall) -> Result<(), OpError> {
        self.alive()?;
        call.check()?;
        let info = call.info();
        self.check_placement(info.name, call)?;
        let mut result = Ok(());
        match self.table.get(info.id as usize).unwrap_or(&Implementations::None) {
            Implementations::None => return Err(self.missing(info)),
            Implementations::Direct(run) => {
                let Shared { backend, stream, .. } = &*self.shared;
                call.with_raw(&mut |args| {
                    // SAFETY: `args` is complete, was checked against the catalogue, and all its tensors lie on this
                    // device in memory that their owners keep; this thread alone uses the stream.
                    let error = unsafe { run(backend.raw, std::ptr::null_mut(), *stream, args) };
                    result = self.check(info.name, 0, error);
                });
            }
            Implementations::Planned(candidates) => {
                call.with_raw(&mut |args| result = self.dispatch_planned(info, candidates, args));
            }
        }
        result
    }
}

impl Device for OpenDevice {
    fn backend(&self) -> &str {
        self.shared.backend.name()
    }

    fn allocate(&self, bytes: usize) -> Result<Allocation, OpError> {
        self.alive()?;
        if self.shared.has_retired() {
            self.synchronize()?;
        }
        let buffer =
            Buffer::new(&self.shared, bytes as u64, ALIGN).map_err(|e| self.error("alloc", bytes as u64, &e))?;
        Ok(Allocation {
            address: buffer.address().expose_provenance(),
            bytes,
            device_type: self.info.device_type,
            device_id: self.info.index as i32,
            owner: Arc::new(buffer),
        })
    }

    fn upload(&self, tensor: &Tensor, bytes: &[u8]) -> Result<(), OpError> {
        self.check_extent("upload", tensor, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        let target = std::ptr::with_exposed_provenance_mut(tensor.address());
        let Shared { backend, stream, .. } = &*self.shared;
        // SAFETY: the target is within the tensor's memory on this device; the source lives until the wait below.
        let error =
            unsafe { call!(backend, copy, *stream, target, bytes.as_ptr().cast(), bytes.len() as u64, DI_COPY_H2D) };
        let copied = self.check("copy", 0, error);
        // The caller may reuse the source as soon as this returns, so that the copy must be over, even a failed one.
        copied.and(self.synchronize())
    }

    fn download(&self, tensor: &Tensor, bytes: &mut [u8]) -> Result<(), OpError> {
        self.check_extent("download", tensor, bytes.len())?;
        if bytes.is_empty() {
            return self.synchronize();
        }
        let source = std::ptr::with_exposed_provenance_mut::<c_void>(tensor.address());
        let Shared { backend, stream, .. } = &*self.shared;
        // SAFETY: as in `upload`, with the sides exchanged; `bytes` is borrowed until the wait below.
        let error = unsafe {
            call!(backend, copy, *stream, bytes.as_mut_ptr().cast(), source, bytes.len() as u64, DI_COPY_D2H)
        };
        let copied = self.check("copy", 0, error);
        copied.and(self.synchronize())
    }

    fn fill(&self, tensor: &Tensor, byte: u8) -> Result<(), OpError> {
        self.check_extent("fill", tensor, 0)?;
        if tensor.bytes() == 0 {
            return Ok(());
        }
        let target = std::ptr::with_exposed_provenance_mut(tensor.address());
        let Shared { backend, stream, .. } = &*self.shared;
        // SAFETY: the target is all of the tensor's memory, on this device.
        let error = unsafe { call!(backend, fill, *stream, target, u32::from(byte), 1, tensor.bytes() as u64) };
        self.check("fill", 0, error)
    }

    fn memory(&self) -> Result<(u64, u64), OpError> {
        self.alive()?;
        let (mut free, mut total) = (0, 0);
        let Shared { backend, device, .. } = &*self.shared;
        // SAFETY: the device is open and both numbers are writable.
        let error = unsafe { call!(backend, device_mem_info, *device, 0, &raw mut free, &raw mut total) };
        self.check("device_mem_info", 0, error)?;
        Ok((free, total))
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        // The order matters: plans while the device is open, then the workspace, then the last wait.
        // SAFETY: `&mut self`: nobody else uses the stream, and nobody will.
        unsafe {
            self.plans.get_mut().clear(&self.shared);
            self.workspace.get_mut().memory = None;
            self.shared.finish();
        }
    }
}

impl std::fmt::Debug for OpenDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "device {} ({}) of {:?}", self.info.index, self.info.name, self.shared.backend)
    }
}

/// A point in the work of a device.
pub struct Event {
    shared: Arc<Shared>,
    raw: *mut DiEvent,
}

impl Event {
    /// Whether the work before it is done; does not block.
    ///
    /// # Errors
    /// A fault of that work.
    pub fn is_done(&self) -> Result<bool, PluginError> {
        let mut done = 0;
        // SAFETY: the event is alive and `done` is writable.
        let error = unsafe { take_error(call!(self.shared.backend, event_query, self.raw, &raw mut done)) };
        error.map_or(Ok(done != 0), Err)
    }

    /// Blocks until the work before it is done.
    ///
    /// # Errors
    /// A fault of that work.
    pub fn wait(&self) -> Result<(), PluginError> {
        // SAFETY: the event is alive.
        unsafe { take_error(call!(self.shared.backend, event_sync, self.raw)) }.map_or(Ok(()), Err)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by this table, destroyed once, before the device that `shared` keeps open.
        unsafe { call!(self.shared.backend, event_destroy, self.raw) }
    }
}
