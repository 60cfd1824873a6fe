//! The runtime table of a backend written in Rust.

#![allow(unsafe_code)]

use std::ffi::c_void;

use crate::sdk::{Extras, Fault, HostQueue};

/// What a device is, without opening it. [`DeviceInfo::default`] is a device of which nothing is known, so that a backend
/// writes what it knows and `..DeviceInfo::default()`.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// `DI_DEVICE_*`.
    pub device_type: i32,
    /// Marketing name.
    pub name: String,
    /// Architecture.
    pub arch: String,
    /// Bytes of memory, or 0 when unknown.
    pub total_bytes: u64,
    /// Multiprocessors, AI cores or CPU threads.
    pub compute_units: u32,
    /// PCI vendor id, or 0.
    pub pci_vendor: u32,
    /// NUMA node, or -1.
    pub numa_node: i32,
    /// Unique id, or zeros.
    pub uuid: [u8; 16],
    /// Bit `1 << code` per `DI_CODE_*` with native arithmetic, or 0.
    pub dtype_mask: u64,
    /// Whether this is a partition of a device.
    pub is_partition: bool,
    /// Whether this is a model of a device that runs on the host's processor, and is used only where a person names it.
    pub is_emulated: bool,
    /// Memory spaces by id, from 0, the device's own memory. Empty: there is that one, of `total_bytes`.
    pub spaces: Vec<SpaceInfo>,
}

impl Default for DeviceInfo {
    fn default() -> Self {
        Self {
            device_type: 0,
            name: String::new(),
            arch: String::new(),
            total_bytes: 0,
            compute_units: 0,
            pci_vendor: 0,
            numa_node: -1,
            uuid: [0; 16],
            dtype_mask: 0,
            is_partition: false,
            is_emulated: false,
            spaces: Vec::new(),
        }
    }
}

/// A memory space of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceInfo {
    /// `DI_SPACE_*`.
    pub kind: u32,
    /// Smallest alignment that the device wants, a power of two.
    pub min_align: u64,
    /// Allocations are rounded up to a multiple of this.
    pub granularity: u64,
    /// Bytes of the space, or 0 when unknown.
    pub total_bytes: u64,
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

    /// What the boundary leaves to the backend's choice: see [`Extras`].
    const EXTRAS: Extras<Self> = Extras::NONE;

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

    /// The queue of a stream, for a backend in host memory whose kernels run later. The arguments of a call are then
    /// checked and copied at once, and the kernel function runs on the queue's thread; its fault appears at the next wait.
    /// `None`: when a kernel function returns it has run, or has handed its work to the vendor's own stream.
    fn queue<'a>(&self, _stream: &'a Self::Stream) -> Option<&'a HostQueue> {
        None
    }
}
