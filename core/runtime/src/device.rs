//! A device that runs ops on a stream: checks, looks up, calls, and turns errors into the core's.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::sync::Arc;

use deepinfer_ops::{
    Allocation, ArgError, Device, Dispatch, Download, OpCall, OpError, Place, Promise, Recorded, Tensor,
};
use deepinfer_plugin_api::abi::{
    DI_COPY_D2D, DI_COPY_D2H, DI_COPY_H2D, DI_COPY_P2P, DI_E_OOM, DI_E_UNSUPPORTED, DI_SPACE_DEVICE,
    DI_SPACE_HOST_PINNED, DiError, DiOpHeader,
};
use deepinfer_plugin_api::{ArgInfo, OpInfo};

use crate::backend::{DeviceInfo, LoadedBackend, OpImpl, PluginError, call};
use crate::command_list::{CommandList, Failed, Launch, Recorder, Work};
use crate::implementations::{Implementations, OpenError, OpenOptions, table};
use crate::memory::{Buffer, Opened};
use crate::plan::{NoPlan, Plan, Plans, unseen_argument};
use crate::raw::take_error;
use crate::stream::{Event, HostBytes, Stream};

/// Alignment of allocations, as [`Device::allocate`] promises.
const ALIGN: u64 = 256;

/// An open device with a stream of its own. It may move to another thread, but is used by one at a time, as a stream must
/// be; [`OpenDevice::new_stream`] gives another thread a handle of its own.
pub struct OpenDevice {
    stream: Stream,
    info: DeviceInfo,
    place: Place,
    table: Arc<Table>,
    plans: RefCell<Plans>,
    workspace: RefCell<Workspace>,
    /// Where ops go instead of the stream, while a command list is recorded.
    recorder: RefCell<Option<Recorder>>,
    /// Whether there is a recorder: the one thing besides the table that every call looks at.
    is_recording: Cell<bool>,
}

/// What all streams of an opened device share.
struct Table {
    /// By catalogue id.
    ops: Vec<Implementations>,
    /// `DI_OPF_*` of every call.
    call_flags: u32,
    /// `DI_PF_*` that implementations or plans must declare.
    required: u32,
}

/// Scratch memory of planned ops. One stream runs them one after the other, so that they can share it.
#[derive(Default)]
struct Workspace {
    memory: Option<Buffer>,
    bytes: u64,
    align: u64,
}

impl LoadedBackend {
    /// Opens a device, with the implementations that `DEEPINFER_OP_IMPL` pins.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&'static self, index: u32) -> Result<OpenDevice, OpenError> {
        self.open_with(index, &OpenOptions::from_environment()?)
    }

    /// Opens a device.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_with(&'static self, index: u32, options: &OpenOptions) -> Result<OpenDevice, OpenError> {
        let ops = table(self, options)?;
        let (call_flags, required) = (options.call_flags(), options.required_declarations());
        let info = self.device_info(index)?;
        let opened = Opened::open(self, index)?;
        Ok(OpenDevice::over(opened, info, Arc::new(Table { ops, call_flags, required }))?)
    }
}

impl OpenDevice {
    fn over(opened: Arc<Opened>, info: DeviceInfo, table: Arc<Table>) -> Result<Self, PluginError> {
        let stream = Stream::create(opened)?;
        let place = Place { device_type: info.device_type, device_id: info.index as i32 };
        let (plans, workspace, recorder, is_recording) = Default::default();
        Ok(Self { stream, info, place, table, plans, workspace, recorder, is_recording })
    }

    /// Another handle of the same opened device, with a stream of its own, for another thread. Memory, and the loss of the
    /// device, are common to both; the work of one is not ordered with that of the other, except by
    /// [`OpenDevice::wait_event`].
    ///
    /// # Errors
    /// As the device says.
    pub fn new_stream(&self) -> Result<OpenDevice, OpError> {
        self.alive()?;
        let (opened, info, table) = (self.stream.opened.clone(), self.info.clone(), self.table.clone());
        Self::over(opened, info, table).map_err(|e| self.error("stream_create", 0, &e))
    }

    /// The backend.
    pub fn loaded_backend(&self) -> &'static LoadedBackend {
        self.stream.opened.backend
    }

    /// Its stream.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Where its tensors lie.
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Of the implementations of an op the one that is asked first, in the backend's list.
    pub(crate) fn first_implementation(&self, info: &OpInfo) -> Option<usize> {
        let mut implementations = self.table.ops.get(info.id as usize)?;
        loop {
            implementations = match implementations {
                Implementations::Direct(_, index) => return Some(*index),
                Implementations::Planned(candidates) => return candidates.first().copied(),
                Implementations::None => return None,
                Implementations::Older(inner) => inner,
            }
        }
    }

    /// Fills the workspace, if planned ops have needed one so far.
    pub(crate) fn fill_workspace(&self, byte: u8) -> Result<(), OpError> {
        self.ready("a fill of the workspace")?;
        let workspace = self.workspace.borrow();
        let Some(memory) = &workspace.memory else { return Ok(()) };
        let (target, bytes) = (memory.address(), workspace.bytes);
        // SAFETY: all of the workspace, which lives until the stream has passed; this thread alone uses the stream.
        let error =
            unsafe { call!(self.loaded_backend(), fill, self.stream.for_work(), target, u32::from(byte), 1, bytes) };
        self.check("fill", 0, error)
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Waits for all work of this stream so far.
    ///
    /// # Errors
    /// The first fault of that work; [`OpError::Recording`].
    pub fn synchronize(&self) -> Result<(), OpError> {
        self.ready("a wait")?;
        self.wait()
    }

    fn wait(&self) -> Result<(), OpError> {
        self.stream.synchronize().map_err(|e| self.error("stream_sync", 0, &e))
    }

    /// How often the host has blocked for this stream: in [`OpenDevice::synchronize`], uploads and downloads of
    /// [`Device`], [`Download::wait`], allocations that had to free memory first, and staged uploads that found too many
    /// others pending. [`Event::wait`] is not counted: an event is of no handle.
    pub fn blocking_waits(&self) -> u64 {
        self.stream.in_flight.waits()
    }

    /// Marks the present end of this stream's work.
    ///
    /// # Errors
    /// As the device says; [`OpError::Recording`].
    pub fn record_event(&self) -> Result<Event, OpError> {
        self.ready("an event")?;
        Event::record(&self.stream).map_err(|(function, e)| self.error(function, 0, &e))
    }

    /// Lets the work of this stream that comes from here on begin after what an event marks, on whichever stream of the
    /// backend that is. The host does not wait.
    ///
    /// # Errors
    /// As the device says; [`OpError::Recording`].
    ///
    /// # Panics
    /// If the event is of another backend.
    pub fn wait_event(&self, event: &Event) -> Result<(), OpError> {
        self.ready("a wait for an event")?;
        let backend = self.loaded_backend();
        let mark = event.mark();
        assert!(std::ptr::eq(backend, mark.opened.backend), "a stream cannot wait for an event of another backend");
        // The event may be dropped before the stream gets there, and its device, which may be another, not know of it.
        self.stream.keep(mark.clone());
        // SAFETY: stream and event are alive, and of this backend.
        self.check("event_wait", 0, unsafe { call!(backend, event_wait, self.stream.for_work(), mark.raw) })
    }

    /// Memory of the host for [`OpenDevice::upload_later`], zeroed; such that the device reads it directly if the backend
    /// has it.
    pub fn host_bytes(&self, bytes: usize) -> HostBytes {
        HostBytes::new(&self.stream.opened, bytes)
    }

    /// Copies `bytes` to the start of `tensor`, in order with ops, without a wait: the device keeps its share of the bytes
    /// until the next wait for this stream, after which `Arc::get_mut` gives them back for other content.
    ///
    /// # Errors
    /// As [`Device::upload`].
    pub fn upload_later(&self, tensor: &Tensor, bytes: &Arc<HostBytes>) -> Result<(), OpError> {
        self.check_extent("upload", "an upload", tensor, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.stream.keep(bytes.clone());
        let target = std::ptr::with_exposed_provenance_mut(tensor.address());
        // SAFETY: the target is within the tensor's memory on this device; the source is kept until the stream is
        // waited for, and nobody can change it while it is shared.
        self.check("copy", 0, unsafe { self.copy_raw(target, bytes.as_ptr().cast(), bytes.len(), DI_COPY_H2D) })
    }

    /// Records the ops, fills and copies between tensors that `work` asks of this device, instead of queueing them.
    /// [`OpenDevice::launch`] queues them, as often as wanted, at the cost of the plugin's own calls.
    ///
    /// `work` runs once and sees no results. It may not allocate, upload, download, wait or use events: the list would not
    /// contain that. Tensors keep their addresses, shapes and the scalars of the calls their values; content may change.
    ///
    /// # Errors
    /// The first error of `work`; no memory for the workspace; [`OpError::Recording`] inside another recording.
    pub fn record<E: From<OpError>>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<CommandList, E> {
        /// Ends the recording, also when `work` panics.
        struct Recording<'a>(&'a OpenDevice);
        impl Drop for Recording<'_> {
            fn drop(&mut self) {
                self.0.is_recording.set(false);
                self.0.recorder.take();
            }
        }
        self.ready("another recording")?;
        self.recorder.replace(Some(Recorder::default()));
        self.is_recording.set(true);
        let recording = Recording(self);
        work()?;
        let recorder = self.recorder.take().unwrap_or_default();
        drop(recording);
        let error = |function, bytes, e: &PluginError| self.error(function, bytes, e);
        Ok(recorder.finish(&self.stream, ALIGN, error, |failed| self.step_error(&failed))?)
    }

    /// Queues a recorded list again.
    ///
    /// # Errors
    /// As the ops of the list; those before the one that failed are queued. [`OpError::Recording`].
    ///
    /// # Panics
    /// If the list was recorded on another stream: its plans and workspace are that stream's.
    pub fn launch(&self, list: &CommandList) -> Result<(), OpError> {
        self.ready("a launch")?;
        assert!(list.is_of(&self.stream), "a command list is launched on the stream on which it was recorded");
        list.launch(&self.stream).map_err(|failed| match failed {
            Launch::Graph(e) => self.error("graph launch", 0, &e),
            Launch::Step(failed) => self.step_error(&failed),
        })
    }

    /// As [`Dispatch::dispatch`], with an argument struct that claims `extra` bytes more than the catalogue's, all zero, as
    /// a newer core would pass it. A plugin must take it.
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    #[doc(hidden)]
    pub fn dispatch_padded(&self, call: &dyn OpCall, extra: usize) -> Result<(), OpError> {
        self.alive()?;
        self.keep_for_recording(call);
        let mut result = Ok(());
        call.with_raw(self.place, &mut |info, args| {
            let bytes = info.args_size + extra;
            let mut longer = vec![0u64; bytes.div_ceil(size_of::<u64>())];
            let copy = longer.as_mut_ptr().cast::<DiOpHeader>();
            // SAFETY: `args` has `args_size` bytes, for which `longer` has room; it is aligned as `u64` is. What it
            // points to lives until this closure ends.
            result = unsafe {
                std::ptr::copy_nonoverlapping(args.cast::<u8>(), copy.cast(), info.args_size);
                (*copy).struct_size = bytes as u32;
                self.run(info, copy)
            };
        })?;
        result.map_err(|error| *error)
    }

    /// An earlier error after which nothing works.
    #[inline]
    fn alive(&self) -> Result<(), OpError> {
        match self.stream.opened.lost.get() {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// The device is alive, and a step that no list can contain may be done.
    fn ready(&self, step: &'static str) -> Result<(), OpError> {
        self.alive()?;
        if self.is_recording.get() { Err(OpError::Recording { step }) } else { Ok(()) }
    }

    /// Takes over what a function of the plugin returned.
    fn check(&self, what: &str, bytes: u64, error: *mut DiError) -> Result<(), OpError> {
        // SAFETY: null or an error that the plugin has just handed over.
        match unsafe { take_error(error) } {
            None => Ok(()),
            Some(error) => Err(self.error(what, bytes, &error)),
        }
    }

    fn error(&self, what: &str, bytes: u64, error: &PluginError) -> OpError {
        op_error(&self.stream.opened, what, bytes, error)
    }

    fn unsupported(&self, op: &str, reason: String) -> OpError {
        unsupported(self.loaded_backend(), op, reason)
    }

    /// An error of `run`. The time to decline a call is over: an implementation that does so now has not kept its word.
    #[cold]
    fn run_error(&self, op: &str, index: usize, workspace: u64, error: &PluginError) -> OpError {
        let backend = self.loaded_backend();
        let implementation = &backend.ops[index];
        if error.code != DI_E_UNSUPPORTED || error.is_lasting() {
            return self.error(op, workspace, error);
        }
        let promise = match (implementation.entry.supports, implementation.entry.plan) {
            (Some(_), _) => Promise::Supports,
            (None, Some(_)) => Promise::Plan,
            (None, None) => Promise::Catalogue,
        };
        let origin = format!("{}/{}", backend.name(), implementation.impl_name());
        OpError::Dishonest { origin, op: op.to_owned(), promise, reason: error.to_string() }
    }

    #[cold]
    fn step_error(&self, Failed { step, error }: &Failed<'_>) -> OpError {
        match step.work {
            Work::Op { index, .. } => self.run_error(step.name, index, 0, error),
            Work::Fill { .. } | Work::Copy { .. } => self.error(step.name, 0, error),
        }
    }

    fn is_here(&self, op: &'static str, arg: &str, tensor: &Tensor) -> Result<(), ArgError> {
        if self.place.has(tensor) { Ok(()) } else { Err(self.place.misplaced(op, arg, tensor)) }
    }

    /// A copy with the host must stay within its tensor, on this device.
    fn check_extent(&self, op: &'static str, step: &'static str, tensor: &Tensor, bytes: usize) -> Result<(), OpError> {
        self.ready(step)?;
        self.is_here(op, "tensor", tensor)?;
        if bytes > tensor.bytes() {
            let problem = format!("has {} bytes, but {bytes} are to be copied", tensor.bytes());
            return Err(ArgError { op, arg: "tensor".to_owned(), problem }.into());
        }
        Ok(())
    }

    /// # Safety
    /// Both sides have `bytes` bytes that live until the stream has passed the copy.
    unsafe fn copy_raw(&self, target: *mut c_void, source: *const c_void, bytes: usize, kind: u32) -> *mut DiError {
        // SAFETY: the same contract; this thread alone uses the stream.
        unsafe { call!(self.loaded_backend(), copy, self.stream.for_work(), target, source, bytes as u64, kind) }
    }

    /// Queues a fill or a copy within the backend, or records it.
    ///
    /// # Safety
    /// The memory of `tensors` contains what `work` touches.
    unsafe fn queue(&self, name: &'static str, work: Work, tensors: &[&Tensor]) -> Result<(), OpError> {
        if let Some(recorder) = &mut *self.recorder.borrow_mut() {
            tensors.iter().for_each(|tensor| recorder.keep(tensor));
            recorder.step(name, work);
            return Ok(());
        }
        let step = crate::command_list::Step { name, work };
        // SAFETY: the same contract; this thread alone uses the stream.
        unsafe { step.queue(&self.stream) }.map_err(|failed| self.step_error(&failed))
    }

    /// The plugin is too old for an argument of a call.
    #[cold]
    fn unseen(&self, info: &OpInfo, arg: &ArgInfo) -> OpError {
        let (major, minor) = self.loaded_backend().abi;
        let reason = format!(
            "the call has the argument {}, which came with ABI {major}.{}, but the plugin is built for {major}.{minor} and \
             would pass over it; build it with the present header",
            arg.name, arg.since
        );
        self.unsupported(info.name, reason)
    }

    #[cold]
    fn missing(&self, info: &OpInfo) -> OpError {
        let ops = &self.loaded_backend().ops;
        let versions: Vec<String> =
            ops.iter().filter(|op| op.op_id() == info.id).map(|op| op.version().to_string()).collect();
        let reason = if versions.is_empty() {
            "it has no implementation".to_owned()
        } else {
            format!("it implements version {}, but version {} is called", versions.join(", "), info.version)
        };
        self.unsupported(info.name, reason)
    }

    /// Runs or records an op. The error is boxed so that success is a register.
    ///
    /// # Safety
    /// `args` is a complete argument struct of `info`, which was checked; its tensors lie on this device.
    #[inline]
    unsafe fn run(&self, info: &'static OpInfo, args: *mut DiOpHeader) -> Result<(), Box<OpError>> {
        // SAFETY: the same contract. A new core may add flags; this one has no others to keep.
        unsafe { (*args).flags = self.table.call_flags };
        if let Some(&Implementations::Direct(run, index)) = self.table.ops.get(info.id as usize)
            && !self.is_recording.get()
        {
            let backend = self.stream.opened.backend;
            // SAFETY: the memory of the tensors is kept by their owners until the stream has passed; this thread alone
            // uses the stream.
            let error = unsafe { run(backend.raw, std::ptr::null_mut(), self.stream.for_work(), args) };
            if error.is_null() {
                return Ok(());
            }
            return self.finish(info, index, 0, error).map_err(Box::new);
        }
        // SAFETY: the same contract.
        unsafe { self.run_planned(info, args) }.map_err(Box::new)
    }

    /// Takes over what `run` returned.
    #[cold]
    fn finish(&self, info: &OpInfo, index: usize, workspace: u64, error: *mut DiError) -> Result<(), OpError> {
        // SAFETY: null or an error that the plugin has just handed over.
        match unsafe { take_error(error) } {
            None => Ok(()),
            Some(error) => Err(self.run_error(info.name, index, workspace, &error)),
        }
    }

    /// Plans the call if its signature is new, gives it a workspace, and runs or records it; also records direct ops.
    ///
    /// # Safety
    /// As [`OpenDevice::run`].
    unsafe fn run_planned(&self, info: &'static OpInfo, args: *mut DiOpHeader) -> Result<(), OpError> {
        let opened = &self.stream.opened;
        let implementations = match self.table.ops.get(info.id as usize) {
            Some(Implementations::Older(inner)) => {
                let minor = opened.backend.abi.1;
                // SAFETY: the same contract.
                match unsafe { unseen_argument(info, minor, args) } {
                    Some(arg) => return Err(self.unseen(info, arg)),
                    None => Some(&**inner),
                }
            }
            other => other,
        };
        let candidates = match implementations {
            Some(Implementations::Planned(candidates)) => candidates,
            Some(&Implementations::Direct(run, index)) => {
                if let Some(recorder) = &mut *self.recorder.borrow_mut() {
                    let flags = opened.backend.ops[index].entry.flags;
                    // SAFETY: the same contract.
                    unsafe { recorder.op(info, (run, index, flags), None, args) };
                    return Ok(());
                }
                // SAFETY: as in `run`.
                let error = unsafe { run(opened.backend.raw, std::ptr::null_mut(), self.stream.for_work(), args) };
                return if error.is_null() { Ok(()) } else { self.finish(info, index, 0, error) };
            }
            Some(Implementations::None | Implementations::Older(_)) | None => return Err(self.missing(info)),
        };
        let mut plans = self.plans.borrow_mut();
        // SAFETY: the same contract.
        let plan = unsafe { plans.find(opened, info, candidates, self.table.required, args) }.map_err(|e| match e {
            NoPlan::Failed(error) => self.error(info.name, 0, &error),
            NoPlan::Unsupported(reason) => self.unsupported(info.name, reason),
        })?;
        if let Some(recorder) = &mut *self.recorder.borrow_mut() {
            // SAFETY: the same contract.
            unsafe { recorder.op(info, (plan.run, plan.index, plan.flags), Some(plan), args) };
            return Ok(());
        }
        if plan.workspace_bytes > 0 {
            let memory = self.reserve(plan)?;
            // SAFETY: the same contract.
            unsafe { ((*args).workspace, (*args).workspace_bytes) = (memory, plan.workspace_bytes) };
        }
        // SAFETY: as in `run`; the plan was made for this signature, and lives until the stream has passed it.
        let error = unsafe { (plan.run)(opened.backend.raw, plan.raw, self.stream.for_work(), args) };
        if error.is_null() { Ok(()) } else { self.finish(info, plan.index, plan.workspace_bytes, error) }
    }

    /// Scratch memory for a plan; grows and never shrinks.
    fn reserve(&self, plan: &Plan) -> Result<*mut c_void, OpError> {
        let mut workspace = self.workspace.borrow_mut();
        let (bytes, align) = (plan.workspace_bytes.max(workspace.bytes), plan.workspace_align.max(workspace.align));
        if let Some(memory) = workspace.memory.as_ref().filter(|_| (bytes, align) == (workspace.bytes, workspace.align))
        {
            return Ok(memory.address());
        }
        workspace.memory = None;
        let memory =
            Buffer::new(&self.stream.opened, bytes, align.max(ALIGN)).map_err(|e| self.error("alloc", bytes, &e))?;
        let address = memory.address();
        *workspace = Workspace { memory: Some(memory), bytes, align };
        Ok(address)
    }

    /// Memory that ops of this device name as its own.
    fn allocation(&self, buffer: Buffer, bytes: usize) -> Allocation {
        Allocation {
            address: buffer.address().expose_provenance(),
            bytes,
            device_type: self.place.device_type,
            device_id: self.place.device_id,
            owner: Arc::new(buffer),
        }
    }

    /// Free and total bytes of a memory space.
    fn free_and_total(&self, space: u32) -> Result<(u64, u64), OpError> {
        self.alive()?;
        let (mut free, mut total) = (0, 0);
        let Opened { backend, device, .. } = &*self.stream.opened;
        // SAFETY: the device is open and both numbers are writable.
        let error = unsafe { call!(backend, device_mem_info, *device, space, &raw mut free, &raw mut total) };
        self.check("device_mem_info", 0, error)?;
        Ok((free, total))
    }

    /// A recorded list keeps the memory of its calls.
    #[inline]
    fn keep_for_recording(&self, call: &dyn OpCall) {
        if self.is_recording.get()
            && let Some(recorder) = &mut *self.recorder.borrow_mut()
        {
            recorder.keep_all(call);
        }
    }
}

impl Dispatch for OpenDevice {
    fn dispatch(&self, call: &dyn OpCall) -> Result<(), OpError> {
        self.alive()?;
        self.keep_for_recording(call);
        let mut result = Ok(());
        // SAFETY: `with_raw` gives a complete struct of the op, whose arguments it has checked, also where they lie.
        call.with_raw(self.place, &mut |info, args| result = unsafe { self.run(info, args) })?;
        result.map_err(|error| *error)
    }
}

impl Device for OpenDevice {
    fn backend(&self) -> &str {
        self.loaded_backend().name()
    }

    fn allocate(&self, bytes: usize) -> Result<Allocation, OpError> {
        self.ready("an allocation")?;
        // What was dropped is freed first. A stream without work has nothing to wait for; what others hold stays.
        if self.stream.is_busy() && self.stream.opened.has_retired_buffers() {
            self.wait()?;
        }
        let buffer =
            Buffer::new(&self.stream.opened, bytes as u64, ALIGN).map_err(|e| self.error("alloc", bytes as u64, &e))?;
        Ok(self.allocation(buffer, bytes))
    }

    fn allocate_host(&self, bytes: usize) -> Result<Option<Allocation>, OpError> {
        self.ready("an allocation")?;
        if self.host_memory()?.is_none() {
            return Ok(None);
        }
        let buffer = Buffer::in_space(&self.stream.opened, DI_SPACE_HOST_PINNED, bytes as u64, ALIGN)
            .map_err(|e| self.error("alloc", bytes as u64, &e))?;
        Ok(Some(self.allocation(buffer, bytes)))
    }

    fn host_memory(&self) -> Result<Option<u64>, OpError> {
        let spaces = self.loaded_backend().spaces(self.info.index);
        let spaces = spaces.map_err(|e| self.error("device_space", 0, &e))?;
        if !spaces.iter().any(|space| space.kind == "host_pinned") {
            return Ok(None);
        }
        self.free_and_total(DI_SPACE_HOST_PINNED).map(|(free, _)| Some(free))
    }

    fn upload(&self, tensor: &Tensor, bytes: &[u8]) -> Result<(), OpError> {
        self.check_extent("upload", "an upload", tensor, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        let target = std::ptr::with_exposed_provenance_mut(tensor.address());
        // SAFETY: the target is within the tensor's memory on this device; the source lives until the wait below.
        let error = unsafe { self.copy_raw(target, bytes.as_ptr().cast(), bytes.len(), DI_COPY_H2D) };
        let copied = self.check("copy", 0, error);
        // The caller may reuse the source as soon as this returns, so that the copy must be over, even a failed one.
        copied.and(self.wait())
    }

    fn download(&self, tensor: &Tensor, bytes: &mut [u8]) -> Result<(), OpError> {
        self.check_extent("download", "a download", tensor, bytes.len())?;
        if bytes.is_empty() {
            return self.wait();
        }
        let source = std::ptr::with_exposed_provenance::<c_void>(tensor.address());
        // SAFETY: as in `upload`, with the sides exchanged; `bytes` is borrowed until the wait below.
        let error = unsafe { self.copy_raw(bytes.as_mut_ptr().cast(), source, bytes.len(), DI_COPY_D2H) };
        let copied = self.check("copy", 0, error);
        copied.and(self.wait())
    }

    fn upload_staged_with(&self, tensor: &Tensor, len: usize, write: &mut dyn FnMut(&mut [u8])) -> Result<(), OpError> {
        self.check_extent("upload", "an upload", tensor, len)?;
        if len == 0 {
            write(&mut []);
            return Ok(());
        }
        if self.stream.in_flight.is_full() {
            self.wait()?;
        }
        let mut bytes = self.stream.in_flight.bytes(&self.stream.opened, len);
        write(&mut bytes[..len]);
        let target = std::ptr::with_exposed_provenance_mut(tensor.address());
        // SAFETY: the target is within the tensor's memory on this device; the source is kept below until the stream has
        // passed the copy, and nobody writes to it before.
        let error = unsafe { self.copy_raw(target, bytes.as_ptr().cast(), len, DI_COPY_H2D) };
        self.stream.in_flight.keep_bytes(bytes);
        self.check("copy", 0, error)
    }

    fn download_later(&self, tensor: &Tensor) -> Result<Box<dyn Download>, OpError> {
        self.check_extent("download", "a download", tensor, 0)?;
        if self.stream.in_flight.is_full() {
            self.wait()?;
        }
        let len = tensor.bytes();
        let mut bytes = self.stream.in_flight.bytes(&self.stream.opened, len);
        if len > 0 {
            let source = std::ptr::with_exposed_provenance::<c_void>(tensor.address());
            // SAFETY: as in `upload_staged_with`, with the sides exchanged.
            let error = unsafe { self.copy_raw(bytes.as_mut_ptr().cast(), source, len, DI_COPY_D2H) };
            if let Err(error) = self.check("copy", 0, error) {
                self.stream.in_flight.keep_bytes(bytes);
                return Err(error);
            }
        }
        // The tensor may be dropped: its memory is freed once the stream has passed the copy.
        match self.stream.finish_download(bytes, len) {
            Ok(download) => Ok(Box::new(download)),
            Err((function, error)) => Err(self.error(function, 0, &error)),
        }
    }

    fn fill(&self, tensor: &Tensor, byte: u8) -> Result<(), OpError> {
        self.alive()?;
        self.is_here("fill", "tensor", tensor)?;
        if tensor.bytes() == 0 {
            return Ok(());
        }
        let target = std::ptr::with_exposed_provenance_mut(tensor.address());
        let work = Work::Fill { target, byte, bytes: tensor.bytes() as u64 };
        // SAFETY: the target is all of the tensor's memory, on this device.
        unsafe { self.queue("fill", work, &[tensor]) }
    }

    fn copy(&self, target: &Tensor, source: &Tensor) -> Result<(), OpError> {
        self.alive()?;
        self.is_here("copy", "target", target)?;
        let peer = Place { device_type: source.device_type(), device_id: source.device_id() };
        if peer.device_type != self.place.device_type {
            return Err(self.place.misplaced("copy", "source", source).into());
        }
        check_same(target, source)?;
        let kind = if peer == self.place { DI_COPY_D2D } else { DI_COPY_P2P };
        let scales = target.scale().zip(source.scale());
        for (target, source) in std::iter::once((target, source)).chain(scales).filter(|(t, _)| t.bytes() > 0) {
            if kind == DI_COPY_P2P {
                // The other device does not know of this stream's work.
                match &mut *self.recorder.borrow_mut() {
                    Some(recorder) => recorder.keep_peer(source),
                    None => self.stream.keep(source.memory().owner),
                }
            }
            let work = Work::Copy {
                target: std::ptr::with_exposed_provenance_mut(target.address()),
                source: std::ptr::with_exposed_provenance(source.address()),
                bytes: target.bytes().min(source.bytes()) as u64,
                kind,
            };
            // SAFETY: both tensors have as many bytes, without gaps; the target lies here, the source on a device of
            // this type.
            unsafe { self.queue("copy", work, &[target, source])? };
        }
        Ok(())
    }

    fn captures(&self) -> bool {
        // A backend with graphs may have no op that goes into one.
        let backend = self.loaded_backend();
        backend.graph().is_some() && backend.ops().iter().any(OpImpl::is_capturable)
    }

    fn record_work(&self, work: &mut dyn FnMut() -> Result<(), OpError>) -> Result<Option<Recorded>, OpError> {
        let list = self.record(work)?;
        let (steps, is_captured) = (list.len(), list.is_captured());
        Ok(Some(Recorded::new(list, steps, is_captured)))
    }

    fn launch_recorded(&self, recorded: &Recorded) -> Result<(), OpError> {
        match recorded.work::<CommandList>() {
            Some(list) => self.launch(list),
            None => Err(self.unsupported("a launch", format!("{recorded:?} are not of this device"))),
        }
    }

    fn memory(&self) -> Result<(u64, u64), OpError> {
        self.free_and_total(DI_SPACE_DEVICE)
    }
}

/// An error of the plugin as the core's; `what` was called, for `bytes` bytes. One that lasts is that of the device from
/// here on.
#[cold]
pub(crate) fn op_error(opened: &Opened, what: &str, bytes: u64, error: &PluginError) -> OpError {
    let backend = opened.backend;
    let origin = if error.origin.is_empty() { format!("{}/{what}", backend.name()) } else { error.origin.clone() };
    if error.is_lasting() {
        let lost = || match error.is_panic() {
            true => OpError::Panicked { origin, message: error.to_string() },
            false => OpError::DeviceLost(format!("{origin}: {error}")),
        };
        return opened.lost.get_or_init(lost).clone();
    }
    match error.code {
        DI_E_UNSUPPORTED => unsupported(backend, what, error.to_string()),
        DI_E_OOM => OpError::OutOfMemory { bytes, reason: format!("{origin}: {error}") },
        _ => OpError::Backend { origin, message: error.to_string() },
    }
}

fn unsupported(backend: &LoadedBackend, op: &str, reason: String) -> OpError {
    OpError::Unsupported { backend: backend.name().to_owned(), op: op.to_owned(), reason }
}

/// Source and target of a copy have one shape and format, and no gaps.
fn check_same(target: &Tensor, source: &Tensor) -> Result<(), ArgError> {
    let error = |arg: &str, problem: String| ArgError { op: "copy", arg: arg.to_owned(), problem };
    if (target.shape(), target.format()) != (source.shape(), source.format()) {
        return Err(error("target", format!("is {target:?}, but the source is {source:?}; both must be alike")));
    }
    for (arg, tensor) in [("target", target), ("source", source)] {
        if !tensor.is_contiguous() {
            return Err(error(arg, "has gaps between its rows; copy contiguous tensors".to_owned()));
        }
    }
    Ok(())
}

/// What the type promises.
const _: fn() = || {
    fn may_move<T: Send>() {}
    may_move::<OpenDevice>();
};

impl std::fmt::Debug for OpenDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "device {} ({}) of {:?}", self.info.index, self.info.name, self.loaded_backend())
    }
}
