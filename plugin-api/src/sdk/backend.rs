//! The runtime table of a backend written in Rust.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::abi::*;
use crate::sdk::error::{panic_text, poisoned, to_raw};
use crate::sdk::{Fault, FaultCode};

/// What a device is, without opening it.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// `DI_DEVICE_*`.
    pub device_type: i32,
    /// Marketing name.
    pub name: String,
    /// Architecture.
    pub arch: String,
    /// Bytes of memory.
    pub total_bytes: u64,
    /// Multiprocessors, AI cores or CPU threads.
    pub compute_units: u32,
    /// PCI vendor id, or 0.
    pub pci_vendor: u32,
    /// NUMA node, or -1.
    pub numa_node: i32,
}

/// Devices, memory, streams and events of a backend. A backend that has found no device can use
/// [`std::convert::Infallible`] for the types that it can never make.
///
/// Methods are called from any thread; a stream from one thread at a time.
pub trait Backend: Send + Sync + Sized + 'static {
    /// Name by which users select it.
    const NAME: &'static str;
    /// Version of the plugin.
    const VERSION: &'static str;
    /// An opened device.
    type Device: Send + Sync + 'static;
    /// An allocation; freed when dropped.
    type Buffer: Send + 'static;
    /// An ordered queue.
    type Stream: Send + 'static;
    /// A point in a stream.
    type Event: Send + 'static;

    /// Starts the backend. `options` is `key=value&key=value` from the selection.
    ///
    /// # Errors
    /// An option is unknown or malformed.
    fn start(options: &str) -> Result<Self, Fault>;

    /// Lists devices; creates no context.
    ///
    /// # Errors
    /// Says why there is none.
    fn devices(&self) -> Result<Vec<DeviceInfo>, Fault>;

    /// Opens device `index` of [`Backend::devices`].
    ///
    /// # Errors
    /// There is no such device or it does not answer.
    fn open_device(&self, index: u32) -> Result<Self::Device, Fault>;

    /// Free and total bytes of a memory space.
    ///
    /// # Errors
    /// The space is unknown.
    fn memory(&self, device: &Self::Device, space: u32) -> Result<(u64, u64), Fault>;

    /// Allocates `bytes` (possibly 0) aligned to `align`, a power of two, and says where.
    ///
    /// # Errors
    /// The space is unknown or full.
    fn alloc(
        &self,
        device: &Self::Device,
        space: u32,
        bytes: u64,
        align: u64,
    ) -> Result<(Self::Buffer, *mut c_void), Fault>;

    /// Creates a stream.
    ///
    /// # Errors
    /// As the device says.
    fn create_stream(&self, device: &Self::Device) -> Result<Self::Stream, Fault>;

    /// Waits for all work of a stream.
    ///
    /// # Errors
    /// The first fault of that work.
    fn sync_stream(&self, stream: &Self::Stream) -> Result<(), Fault>;

    /// Creates an event.
    ///
    /// # Errors
    /// As the device says.
    fn create_event(&self, device: &Self::Device) -> Result<Self::Event, Fault>;

    /// Marks the present end of a stream.
    ///
    /// # Errors
    /// As the device says.
    fn record_event(&self, event: &Self::Event, stream: &Self::Stream) -> Result<(), Fault>;

    /// Makes later work of the stream wait for the event.
    ///
    /// # Errors
    /// As the device says.
    fn wait_event(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), Fault>;

    /// Whether the event has passed.
    ///
    /// # Errors
    /// A fault of the work before it.
    fn query_event(&self, event: &Self::Event) -> Result<bool, Fault>;

    /// Blocks until the event has passed.
    ///
    /// # Errors
    /// A fault of the work before it.
    fn sync_event(&self, event: &Self::Event) -> Result<(), Fault>;

    /// Copies in stream order.
    ///
    /// # Errors
    /// As the device says.
    ///
    /// # Safety
    /// `bytes` are readable at `src` and writable at `dst` until the stream has passed the copy; `kind` says on which
    /// side each lies.
    unsafe fn copy(
        &self,
        stream: &Self::Stream,
        dst: *mut c_void,
        src: *const c_void,
        bytes: u64,
        kind: u32,
    ) -> Result<(), Fault>;

    /// Writes `count` times the low `pattern_bytes` (1, 2 or 4) of `pattern`, in stream order.
    ///
    /// # Errors
    /// As the device says.
    ///
    /// # Safety
    /// `count * pattern_bytes` bytes are writable at `dst` until the stream has passed.
    unsafe fn fill(
        &self,
        stream: &Self::Stream,
        dst: *mut c_void,
        pattern: u32,
        pattern_bytes: u32,
        count: u64,
    ) -> Result<(), Fault>;
}

/// What a `*mut DiBackend` of ours points to.
pub(crate) struct State {
    pub(crate) backend: Box<dyn Any + Send + Sync>,
    pub(crate) name: &'static str,
    pub(crate) poisoned: AtomicBool,
    /// Description and C strings of each device, made on the first listing; addresses stay valid.
    pub(crate) devices: std::sync::OnceLock<Result<Vec<DeviceInfo>, Fault>>,
}

/// Runs `body` with the backend; a panic becomes an error and poisons it.
///
/// # Safety
/// `backend` came from [`entry`](crate::sdk::entry) of this library.
pub(crate) unsafe fn guard(
    backend: *mut DiBackend,
    what: &str,
    body: impl FnOnce(&(dyn Any + Send + Sync)) -> Result<(), Fault>,
) -> *mut DiError {
    // SAFETY: the caller's contract; the state is leaked, so it lives as long as the process.
    let state = unsafe { &*backend.cast::<State>() };
    let result = if state.poisoned.load(Ordering::Relaxed) {
        Err(poisoned(state.name))
    } else {
        catch_unwind(AssertUnwindSafe(|| body(&*state.backend))).unwrap_or_else(|payload| {
            state.poisoned.store(true, Ordering::Relaxed);
            Err(Fault::new(FaultCode::Panic, format!("panic in {what}: {}", panic_text(&*payload))))
        })
    };
    if result.is_ok() {
        return std::ptr::null_mut();
    }
    to_raw(result, &format!("{}/{what}", state.name))
}

/// As [`guard`], with the concrete backend.
///
/// # Safety
/// As [`guard`].
unsafe fn with<B: Backend>(
    backend: *mut DiBackend,
    what: &str,
    body: impl FnOnce(&B) -> Result<(), Fault>,
) -> *mut DiError {
    // SAFETY: the same contract.
    unsafe {
        guard(backend, what, |any| {
            body(any.downcast_ref().ok_or_else(|| Fault::invalid("the call names another plugin's backend"))?)
        })
    }
}

/// A reference to an object that this library boxed, or an error when the pointer is null.
///
/// # Safety
/// `ptr` is null or came from [`boxed`] with the same type and was not dropped.
unsafe fn object<'a, T>(ptr: *mut impl Sized, what: &str) -> Result<&'a T, Fault> {
    // SAFETY: the caller's contract.
    unsafe { ptr.cast::<T>().as_ref() }.ok_or_else(|| Fault::invalid(format!("no {what} was given")))
}

fn boxed<T, P>(value: T) -> *mut P {
    Box::into_raw(Box::new(value)).cast()
}

/// # Safety
/// As [`object`]; the object is not used afterwards.
unsafe fn unbox<T>(ptr: *mut impl Sized) {
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
        space_info: None,
        device_link: None,
        stream_native: None,
        event_elapsed: None,
        copy_2d: None,
    }
}

/// # Safety
/// As [`guard`].
unsafe fn devices<'a, B: Backend>(backend: *mut DiBackend, b: &B) -> Result<&'a [DeviceInfo], Fault> {
    // SAFETY: as in `guard`.
    let state = unsafe { &*backend.cast::<State>() };
    state.devices.get_or_init(|| b.devices()).as_deref().map_err(Clone::clone)
}

unsafe extern "C" fn device_count<B: Backend>(backend: *mut DiBackend, out: *mut u32) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`.
    unsafe {
        with::<B>(backend, "device_count", |b| {
            *out = devices(backend, b)?.len() as u32;
            Ok(())
        })
    }
}

fn di_str(text: &str) -> DiStr {
    DiStr { ptr: text.as_ptr(), len: text.len() }
}

unsafe extern "C" fn device_info<B: Backend>(
    backend: *mut DiBackend,
    index: u32,
    out: *mut DiDeviceInfo,
) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`; `out.struct_size` bytes are writable, of which we fill what we know.
    unsafe {
        with::<B>(backend, "device_info", |b| {
            let all = devices(backend, b)?;
            let info = all
                .get(index as usize)
                .ok_or_else(|| Fault::invalid(format!("device {index} does not exist; there are {}", all.len())))?;
            let mut full = DiDeviceInfo {
                struct_size: (*out).struct_size,
                device_type: info.device_type,
                ordinal: index as i32,
                pci_vendor: info.pci_vendor,
                caps: 0,
                dtype_mask: 0,
                layout_mask: 1,
                name: di_str(&info.name),
                arch: di_str(&info.arch),
                uuid: [0; 16],
                total_bytes: info.total_bytes,
                numa_node: info.numa_node,
                n_spaces: 1,
                compute_units: info.compute_units,
                isolation: 0,
            };
            let bytes = (full.struct_size as usize).min(size_of::<DiDeviceInfo>());
            full.struct_size = bytes as u32;
            std::ptr::copy_nonoverlapping((&raw const full).cast::<u8>(), out.cast(), bytes);
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
            *out = boxed(b.create_stream(object(device, "device")?)?);
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
    unsafe { with::<B>(backend, "stream_sync", |b| b.sync_stream(object(stream, "stream")?)) }
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
    unsafe { with::<B>(backend, "event_sync", |b| b.sync_event(object(event, "event")?)) }
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
