//! The runtime table: each function of the boundary, in terms of [`Backend`].

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::abi::*;
use crate::sdk::extras;
use crate::sdk::{Backend, Containment, DeviceInfo, Fault, HostQueue, SpaceInfo};

/// What a `*mut DiBackend` of ours points to. It is leaked, so that it lives as long as the process.
pub(crate) struct State {
    pub(crate) backend: Box<dyn Any + Send + Sync>,
    pub(crate) containment: Containment,
    /// Devices as first listed; the addresses of their texts stay valid.
    devices: OnceLock<Result<Vec<DeviceInfo>, Fault>>,
    /// Whether a stream with a queue was ever made: what a call tests before it looks for one.
    has_queues: AtomicBool,
    queue_of: QueueOf,
    /// Rows of the backend's own ops.
    pub(crate) ops: Option<&'static DiOpsTable>,
}

// SAFETY: the table of ops is constant data.
unsafe impl Send for State {}
// SAFETY: as above; the other fields are `Sync`.
unsafe impl Sync for State {}

/// [`Backend::queue`] behind types that the caller does not know.
type QueueOf = unsafe fn(&'static State, *mut DiStream) -> Result<Option<&'static HostQueue>, Fault>;

impl State {
    pub(crate) fn new<B: Backend>(backend: B, ops: Option<&'static DiOpsTable>) -> Self {
        Self {
            backend: Box::new(backend),
            containment: Containment::new(B::NAME),
            devices: OnceLock::new(),
            has_queues: AtomicBool::new(false),
            queue_of: queue_of::<B>,
            ops,
        }
    }

    /// The state behind a pointer of the boundary.
    ///
    /// # Safety
    /// `backend` came from [`entry`](crate::sdk::entry) of this library.
    pub(crate) unsafe fn of(backend: *mut DiBackend) -> &'static Self {
        // SAFETY: the caller's contract; the state is leaked.
        unsafe { &*backend.cast::<Self>() }
    }

    /// Whether kernels of any stream may run on a queue.
    pub(crate) fn has_queues(&self) -> bool {
        self.has_queues.load(Ordering::Relaxed)
    }

    /// The queue on which kernels of this stream run.
    ///
    /// # Safety
    /// `stream` is null or a live stream of this backend, and outlives the use of the queue.
    pub(crate) unsafe fn queue(&'static self, stream: *mut DiStream) -> Result<Option<&'static HostQueue>, Fault> {
        // SAFETY: the same contract.
        unsafe { (self.queue_of)(self, stream) }
    }

    fn backend<B: Backend>(&self) -> Result<&B, Fault> {
        self.backend.downcast_ref().ok_or_else(|| Fault::invalid("the call names another plugin's backend"))
    }

    fn devices<B: Backend>(&self) -> Result<&[DeviceInfo], Fault> {
        let backend = self.backend::<B>()?;
        self.devices.get_or_init(|| backend.devices()).as_deref().map_err(Clone::clone)
    }

    fn device<B: Backend>(&self, index: u32) -> Result<&DeviceInfo, Fault> {
        let all = self.devices::<B>()?;
        let missing = || Fault::invalid(format!("device {index} does not exist; there are {}", all.len()));
        all.get(index as usize).ok_or_else(missing)
    }
}

/// # Safety
/// As [`State::queue`]; `B` is the backend of the state.
unsafe fn queue_of<B: Backend>(
    state: &'static State,
    stream: *mut DiStream,
) -> Result<Option<&'static HostQueue>, Fault> {
    // SAFETY: the same contract.
    unsafe { Ok(state.backend::<B>()?.queue(object::<B::Stream>(stream, "stream")?)) }
}

/// Runs `body` with the backend; a panic becomes an error and poisons it.
///
/// # Safety
/// `backend` came from [`entry`](crate::sdk::entry) of this library.
pub(crate) unsafe fn with<B: Backend>(
    backend: *mut DiBackend,
    what: &str,
    body: impl FnOnce(&'static B) -> Result<(), Fault>,
) -> *mut DiError {
    // SAFETY: the same contract.
    let state = unsafe { State::of(backend) };
    state.containment.call(what, || body(state.backend()?))
}

/// As [`with`], for a function that waits.
///
/// # Safety
/// As [`with`].
pub(crate) unsafe fn wait_with<B: Backend>(
    backend: *mut DiBackend,
    what: &str,
    body: impl FnOnce(&'static B) -> Result<(), Fault>,
) -> *mut DiError {
    // SAFETY: the same contract.
    let state = unsafe { State::of(backend) };
    state.containment.to_raw(what, state.containment.wait(what, || body(state.backend()?)))
}

/// A reference to an object that this library boxed, or an error when the pointer is null.
///
/// # Safety
/// `ptr` is null or came from [`boxed`] with the same type and was not dropped.
pub(crate) unsafe fn object<'a, T>(ptr: *mut impl Sized, what: &str) -> Result<&'a T, Fault> {
    // SAFETY: the caller's contract.
    unsafe { ptr.cast::<T>().as_ref() }.ok_or_else(|| Fault::invalid(format!("no {what} was given")))
}

pub(crate) fn boxed<T, P>(value: T) -> *mut P {
    Box::into_raw(Box::new(value)).cast()
}

/// # Safety
/// As [`object`]; the object is not used afterwards.
pub(crate) unsafe fn unbox<T>(ptr: *mut impl Sized) {
    if !ptr.is_null() {
        // A destructor that panics must not unwind into the core; there is no error to report it with.
        // SAFETY: the caller's contract.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(ptr.cast::<T>()) })));
    }
}

/// The runtime table of `B`.
///
/// Every function below has the contract that the header states for its field; the common part: `backend` is the one
/// of the entry reply, objects came from this table and are alive, out-pointers are writable.
pub(crate) const fn runtime_table<B: Backend>() -> DiRuntimeApi {
    DiRuntimeApi {
        struct_size: size_of::<DiRuntimeApi>() as u32,
        reserved0: 0,
        device_count: Some(device_count::<B>),
        device_info: Some(device_info::<B>),
        device_open: Some(device_open::<B>),
        device_close: Some(device_close::<B>),
        device_mem_info: Some(device_mem_info::<B>),
        alloc: Some(alloc::<B>),
        free_: Some(free::<B>),
        stream_create: Some(stream_create::<B>),
        stream_destroy: Some(stream_destroy::<B>),
        stream_sync: Some(stream_sync::<B>),
        event_create: Some(event_create::<B>),
        event_destroy: Some(event_destroy::<B>),
        event_record: Some(event_record::<B>),
        event_wait: Some(event_wait::<B>),
        event_query: Some(event_query::<B>),
        event_sync: Some(event_sync::<B>),
        copy: Some(copy::<B>),
        fill: Some(fill::<B>),
        space_info: Some(space_info::<B>),
        device_link: if B::EXTRAS.device_link.is_some() { Some(extras::device_link::<B>) } else { None },
        stream_native: if B::EXTRAS.stream_native.is_some() { Some(extras::stream_native::<B>) } else { None },
        event_elapsed: if B::EXTRAS.event_elapsed.is_some() { Some(extras::event_elapsed::<B>) } else { None },
        copy_2d: if B::EXTRAS.copy_2d.is_some() { Some(extras::copy_2d::<B>) } else { None },
    }
}

unsafe extern "C" fn device_count<B: Backend>(backend: *mut DiBackend, out: *mut u32) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`.
    unsafe {
        with::<B>(backend, "device_count", |_| {
            *out = State::of(backend).devices::<B>()?.len() as u32;
            Ok(())
        })
    }
}

pub(crate) fn di_str(text: &str) -> DiStr {
    DiStr { ptr: text.as_ptr(), len: text.len() }
}

unsafe extern "C" fn device_info<B: Backend>(
    backend: *mut DiBackend,
    index: u32,
    out: *mut DiDeviceInfo,
) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`; `out.struct_size` bytes are writable, of which we fill what we know.
    unsafe {
        with::<B>(backend, "device_info", |_| {
            let info = State::of(backend).device::<B>(index)?;
            let full = DiDeviceInfo {
                struct_size: size_of::<DiDeviceInfo>() as u32,
                device_type: info.device_type,
                ordinal: index as i32,
                pci_vendor: info.pci_vendor,
                caps: if info.is_emulated { u64::from(DI_CAP_EMULATED) } else { 0 },
                dtype_mask: info.dtype_mask,
                layout_mask: 1,
                name: di_str(&info.name),
                arch: di_str(&info.arch),
                uuid: info.uuid,
                total_bytes: info.total_bytes,
                numa_node: info.numa_node,
                n_spaces: info.spaces.len().max(1) as u32,
                compute_units: info.compute_units,
                isolation: u32::from(info.is_partition),
            };
            write_prefix(full, out);
            Ok(())
        })
    }
}

/// Copies as much of a struct as its writer knew; the rest is zero, which means the old behaviour.
///
/// # Safety
/// `T` begins with `struct_size: u32`, and zeros are valid; of `from` as many bytes are readable as its `struct_size` says.
pub(crate) unsafe fn read_prefix<T: Copy>(from: *const T) -> T {
    let mut whole = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: the caller's contract.
    unsafe {
        let bytes = (from.cast::<u32>().read() as usize).min(size_of::<T>());
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), whole.as_mut_ptr().cast(), bytes);
        whole.assume_init()
    }
}

/// Fills as much of a struct as its reader knows, and says in `struct_size` how much that is.
///
/// # Safety
/// `T` begins with `struct_size: u32`; of `out` as many bytes are writable as its `struct_size` says.
pub(crate) unsafe fn write_prefix<T: Copy>(mut full: T, out: *mut T) {
    // SAFETY: the caller's contract.
    unsafe {
        let bytes = (out.cast::<u32>().read() as usize).min(size_of::<T>());
        (&raw mut full).cast::<u32>().write(bytes as u32);
        std::ptr::copy_nonoverlapping((&raw const full).cast::<u8>(), out.cast(), bytes);
    }
}

unsafe extern "C" fn space_info<B: Backend>(
    backend: *mut DiBackend,
    device: u32,
    index: u32,
    out: *mut DiSpaceInfo,
) -> *mut DiError {
    // SAFETY: as `device_info`.
    unsafe {
        with::<B>(backend, "space_info", |_| {
            let info = State::of(backend).device::<B>(device)?;
            let own =
                [SpaceInfo { kind: DI_SPACE_DEVICE, min_align: 1, granularity: 1, total_bytes: info.total_bytes }];
            let spaces = if info.spaces.is_empty() { &own } else { info.spaces.as_slice() };
            let space = spaces.get(index as usize).ok_or_else(|| {
                Fault::invalid(format!(
                    "memory space {index} of device {device} does not exist; there are {}",
                    spaces.len()
                ))
            })?;
            let full = DiSpaceInfo {
                struct_size: size_of::<DiSpaceInfo>() as u32,
                space_id: index,
                kind: space.kind,
                flags: 0,
                min_align: space.min_align,
                granularity: space.granularity,
                total_bytes: space.total_bytes,
            };
            write_prefix(full, out);
            Ok(())
        })
    }
}

unsafe extern "C" fn device_open<B: Backend>(
    backend: *mut DiBackend,
    index: u32,
    _ext: *const DiExt,
    out: *mut *mut DiDevice,
) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`.
    unsafe {
        with::<B>(backend, "device_open", |b| {
            *out = boxed(b.open_device(index)?);
            Ok(())
        })
    }
}

unsafe extern "C" fn device_close<B: Backend>(_: *mut DiBackend, device: *mut DiDevice) {
    // SAFETY: the contract of `runtime_table`.
    unsafe { unbox::<B::Device>(device) }
}

unsafe extern "C" fn device_mem_info<B: Backend>(
    backend: *mut DiBackend,
    device: *mut DiDevice,
    space: u32,
    free_bytes: *mut u64,
    total_bytes: *mut u64,
) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`.
    unsafe {
        with::<B>(backend, "device_mem_info", |b| {
            (*free_bytes, *total_bytes) = b.memory(object(device, "device")?, space)?;
            Ok(())
        })
    }
}

unsafe extern "C" fn alloc<B: Backend>(
    backend: *mut DiBackend,
    device: *mut DiDevice,
    space: u32,
    bytes: u64,
    align: u64,
    out: *mut *mut DiBuffer,
    address: *mut *mut c_void,
) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`.
    unsafe {
        with::<B>(backend, "alloc", |b| {
            if !align.is_power_of_two() {
                return Err(Fault::invalid(format!("alignment {align} is not a power of two")));
            }
            let (buffer, at) = b.alloc(object(device, "device")?, space, bytes, align)?;
            *out = boxed(buffer);
            *address = at;
            Ok(())
        })
    }
}

unsafe extern "C" fn free<B: Backend>(_: *mut DiBackend, buffer: *mut DiBuffer) {
    // SAFETY: the contract of `runtime_table`.
    unsafe { unbox::<B::Buffer>(buffer) }
}

unsafe extern "C" fn stream_create<B: Backend>(
    backend: *mut DiBackend,
    device: *mut DiDevice,
    _priority: i32,
    _flags: u32,
    out: *mut *mut DiStream,
) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`.
    unsafe {
        with::<B>(backend, "stream_create", |b| {
            let stream = b.create_stream(object(device, "device")?)?;
            if b.queue(&stream).is_some() {
                State::of(backend).has_queues.store(true, Ordering::Relaxed);
            }
            *out = boxed(stream);
            Ok(())
        })
    }
}

unsafe extern "C" fn stream_destroy<B: Backend>(_: *mut DiBackend, stream: *mut DiStream) {
    // SAFETY: the contract of `runtime_table`.
    unsafe { unbox::<B::Stream>(stream) }
}

unsafe extern "C" fn stream_sync<B: Backend>(backend: *mut DiBackend, stream: *mut DiStream) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`.
    unsafe { wait_with::<B>(backend, "stream_sync", |b| b.sync_stream(object(stream, "stream")?)) }
}

unsafe extern "C" fn event_create<B: Backend>(
    backend: *mut DiBackend,
    device: *mut DiDevice,
    _flags: u32,
    out: *mut *mut DiEvent,
) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`.
    unsafe {
        with::<B>(backend, "event_create", |b| {
            *out = boxed(b.create_event(object(device, "device")?)?);
            Ok(())
        })
    }
}

unsafe extern "C" fn event_destroy<B: Backend>(_: *mut DiBackend, event: *mut DiEvent) {
    // SAFETY: the contract of `runtime_table`.
    unsafe { unbox::<B::Event>(event) }
}

unsafe extern "C" fn event_record<B: Backend>(
    backend: *mut DiBackend,
    event: *mut DiEvent,
    stream: *mut DiStream,
) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`.
    unsafe {
        with::<B>(backend, "event_record", |b| b.record_event(object(event, "event")?, object(stream, "stream")?))
    }
}

unsafe extern "C" fn event_wait<B: Backend>(
    backend: *mut DiBackend,
    stream: *mut DiStream,
    event: *mut DiEvent,
) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`.
    unsafe { with::<B>(backend, "event_wait", |b| b.wait_event(object(stream, "stream")?, object(event, "event")?)) }
}

unsafe extern "C" fn event_query<B: Backend>(
    backend: *mut DiBackend,
    event: *mut DiEvent,
    done: *mut i32,
) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`.
    unsafe {
        with::<B>(backend, "event_query", |b| {
            *done = i32::from(b.query_event(object(event, "event")?)?);
            Ok(())
        })
    }
}

unsafe extern "C" fn event_sync<B: Backend>(backend: *mut DiBackend, event: *mut DiEvent) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`.
    unsafe { wait_with::<B>(backend, "event_sync", |b| b.sync_event(object(event, "event")?)) }
}

unsafe extern "C" fn copy<B: Backend>(
    backend: *mut DiBackend,
    stream: *mut DiStream,
    dst: *mut c_void,
    src: *const c_void,
    bytes: u64,
    kind: u32,
) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`, and of the field: both ranges are valid until the stream has passed.
    unsafe { with::<B>(backend, "copy", |b| b.copy(object(stream, "stream")?, dst, src, bytes, kind)) }
}

unsafe extern "C" fn fill<B: Backend>(
    backend: *mut DiBackend,
    stream: *mut DiStream,
    dst: *mut c_void,
    pattern: u32,
    pattern_bytes: u32,
    count: u64,
) -> *mut DiError {
    // SAFETY: as `copy`.
    unsafe {
        with::<B>(backend, "fill", |b| {
            if !matches!(pattern_bytes, 1 | 2 | 4) {
                return Err(Fault::invalid(format!("a pattern of {pattern_bytes} bytes; 1, 2 or 4 are possible")));
            }
            b.fill(object(stream, "stream")?, dst, pattern, pattern_bytes, count)
        })
    }
}
