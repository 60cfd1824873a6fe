//! The C types that cross the boundary, bit for bit.
//!
//! `include/deepinfer_plugin.h` states the same types for C and C++; a test compiles the header and compares the size,
//! the alignment and every offset. Rules that hold for every type here:
//!
//! - fixed-width integers only: no C enums in structs, no bit fields, no `bool`;
//! - a struct that may grow begins with `struct_size`, the bytes that its writer knows. A reader takes the smaller of
//!   that and its own size; a missing tail reads as zero, and zero means the old behaviour;
//! - a null `*mut DiError` is success;
//! - pointers in requests are borrowed for the call, pointers in replies live as long as the backend.

use std::ffi::c_void;

mod tables;

pub use tables::*;

/// Major version of the ABI: moves with every change that is not purely additive. 0 until two device backends have
/// proved the boundary.
pub const DI_ABI_MAJOR: u16 = 0;
/// Minor version of the ABI: moves with every addition.
pub const DI_ABI_MINOR: u16 = 2;
/// Name of the only symbol that a plugin exports, an [`DiEntryFn`].
pub const DI_ENTRY_SYMBOL: &str = "deepinfer_backend_entry";

/// State of a loaded backend, owned by the plugin.
#[repr(C)]
pub struct DiBackend {
    _opaque: [u8; 0],
}
/// An opened device, owned by the plugin.
#[repr(C)]
pub struct DiDevice {
    _opaque: [u8; 0],
}
/// An ordered queue of work on one device, owned by the plugin.
#[repr(C)]
pub struct DiStream {
    _opaque: [u8; 0],
}
/// A point in a stream, owned by the plugin.
#[repr(C)]
pub struct DiEvent {
    _opaque: [u8; 0],
}
/// An allocation, owned by the plugin.
#[repr(C)]
pub struct DiBuffer {
    _opaque: [u8; 0],
}
/// What `plan` prepared for one shape of one op, owned by the plugin.
#[repr(C)]
pub struct DiPlan {
    _opaque: [u8; 0],
}

/// UTF-8 text that is not NUL-terminated. `ptr` may be null when `len` is 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiStr {
    /// First byte.
    pub ptr: *const u8,
    /// Bytes.
    pub len: usize,
}

/// Head of an optional extension block; blocks form a list. Readers skip ids that they do not know.
#[repr(C)]
pub struct DiExt {
    /// Bytes of the whole block.
    pub struct_size: u32,
    /// `vendor << 16 | number`.
    pub ext_id: u32,
    /// Next block or null.
    pub next: *const DiExt,
}

/// The caller broke a rule of the call.
pub const DI_E_INVALID: i32 = 1;
/// The backend does not do this; nothing is broken.
pub const DI_E_UNSUPPORTED: i32 = 2;
/// Memory of the device or the host ran out.
pub const DI_E_OOM: i32 = 3;
/// The workspace is missing or too small.
pub const DI_E_WORKSPACE: i32 = 4;
/// The device is gone: close and reopen it.
pub const DI_E_DEVICE_LOST: i32 = 5;
/// The two sides speak different versions.
pub const DI_E_ABI: i32 = 6;
/// A panic or exception was caught inside the plugin.
pub const DI_E_PANIC: i32 = 7;
/// Anything else.
pub const DI_E_INTERNAL: i32 = 8;
/// The call cannot be part of a graph capture.
pub const DI_E_NOT_CAPTURABLE: i32 = 9;

/// Error flag: the context is unusable until the device is reopened.
pub const DI_EF_STICKY: u32 = 1;
/// Error flag: the same call may succeed later.
pub const DI_EF_RETRYABLE: u32 = 2;
/// Error flag: a panic left the backend in an unknown state.
pub const DI_EF_POISONED: u32 = 4;

/// An error; the object frees itself, whichever module made it.
#[repr(C)]
pub struct DiError {
    /// Bytes of this struct known to its writer.
    pub struct_size: u32,
    /// One of `DI_E_*`.
    pub code: i32,
    /// `DI_EF_*` bits.
    pub flags: u32,
    /// Code of the vendor's library, or 0.
    pub vendor_code: i32,
    /// A sentence.
    pub message: DiStr,
    /// Where: `backend/op`.
    pub origin: DiStr,
    /// Frees the object. Never null.
    pub release: Option<unsafe extern "C" fn(*mut DiError)>,
}

/// Device types below 0x10000 are DLPack's.
pub const DI_DEVICE_CPU: i32 = 1;
/// CUDA device (DLPack's number).
pub const DI_DEVICE_CUDA: i32 = 2;
/// Ascend NPU: DLPack has no number for it.
pub const DI_DEVICE_ASCEND: i32 = 0x10000;

/// Type code of signed integers (DLPack).
pub const DI_CODE_INT: u8 = 0;
/// Type code of unsigned integers (DLPack).
pub const DI_CODE_UINT: u8 = 1;
/// Type code of IEEE floats (DLPack).
pub const DI_CODE_FLOAT: u8 = 2;
/// Type code of bfloat16 (DLPack).
pub const DI_CODE_BFLOAT: u8 = 4;
/// Type code of FP8 E4M3 without infinities (DLPack).
pub const DI_CODE_E4M3FN: u8 = 10;
/// Type code of UE8M0 scales (DLPack).
pub const DI_CODE_E8M0FNU: u8 = 14;
/// Type code of FP4 E2M1 (DLPack).
pub const DI_CODE_E2M1FN: u8 = 17;

/// Tensor flag: the memory must not be written.
pub const DI_TF_READ_ONLY: u32 = 1;

/// A tensor. Bytes 0..48 are exactly DLPack's `DLTensor`. An optional tensor that is absent has null `data`, `ndim` 0
/// and `bits` 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiTensor {
    /// Device address; null only when the tensor has no elements or is absent.
    pub data: *mut c_void,
    /// `DI_DEVICE_*`.
    pub device_type: i32,
    /// Ordinal of the device.
    pub device_id: i32,
    /// Number of dimensions.
    pub ndim: i32,
    /// `DI_CODE_*`.
    pub code: u8,
    /// Bits of one element; 4 means packed, two to a byte, even element in the low nibble.
    pub bits: u8,
    /// Always 1.
    pub lanes: u16,
    /// `ndim` extents in logical elements; not null when `ndim` > 0.
    pub shape: *mut i64,
    /// `ndim` strides in elements; not null when `ndim` > 0.
    pub strides: *mut i64,
    /// Added to `data`.
    pub byte_offset: u64,
    /// Scales, or null when the values are plain.
    pub quant: *const DiQuant,
    /// 0: strided. Other values are physical layouts.
    pub layout: u32,
    /// `DI_TF_*`.
    pub flags: u32,
    /// Bytes that may be touched from `data + byte_offset`.
    pub nbytes: u64,
}

/// A list of tensors.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiTensorList {
    /// First tensor.
    pub ptr: *const DiTensor,
    /// Tensors.
    pub len: u64,
}

/// Scheme: one scale per block of `block` extents.
pub const DI_QS_BLOCK: u32 = 1;
/// Scale layout: row-major over the block grid.
pub const DI_SL_ROW_MAJOR: u32 = 0;
/// The value is `element * scale`.
pub const DI_QO_MULTIPLY: u32 = 0;

/// How the elements of a tensor are scaled.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiQuant {
    /// Bytes of this struct known to its writer.
    pub struct_size: u32,
    /// `DI_QS_*`.
    pub scheme: u32,
    /// Extent of a block per logical dimension, from the first; 0 means the whole dimension.
    pub block: [i32; 4],
    /// `DI_SL_*`.
    pub scale_layout: u32,
    /// `DI_QO_*`.
    pub scale_op: u32,
    /// Scales: UE8M0, E4M3 or F32, one per block, over the block grid.
    pub scale: *const DiTensor,
    /// One further F32 factor, or null.
    pub global_scale: *const DiTensor,
    /// Zero points, or null.
    pub zero_point: *const DiTensor,
}

/// Op flag: refuse unless two runs give the same bits.
pub const DI_OPF_REQUIRE_DETERMINISTIC: u32 = 1;
/// Op flag: refuse unless a row's bits do not depend on its neighbours.
pub const DI_OPF_REQUIRE_BATCH_INVARIANT: u32 = 2;

/// The head of every argument struct.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiOpHeader {
    /// Bytes of the whole argument struct known to the caller.
    pub struct_size: u32,
    /// Catalogue id; ids from 0x80000000 belong to vendors.
    pub op_id: u32,
    /// Catalogue version.
    pub op_version: u32,
    /// `DI_OPF_*`.
    pub flags: u32,
    /// Scratch memory of the device, at least what the plan asked for.
    pub workspace: *mut c_void,
    /// Bytes of `workspace`.
    pub workspace_bytes: u64,
    /// Extensions or null.
    pub ext: *const DiExt,
}

/// Plan or implementation flag: may be part of a graph capture.
pub const DI_PF_CAPTURABLE: u32 = 1;
/// Plan flag: one plan may run on several streams at once.
pub const DI_PF_CONCURRENT: u32 = 2;
/// Plan or implementation flag: a row's bits do not depend on its neighbours.
pub const DI_PF_BATCH_INVARIANT: u32 = 4;
/// Plan or implementation flag: two runs give the same bits.
pub const DI_PF_DETERMINISTIC: u32 = 8;

/// What `plan` decided.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiPlanInfo {
    /// Bytes of this struct known to its reader.
    pub struct_size: u32,
    /// `DI_PF_*`.
    pub flags: u32,
    /// Scratch bytes that `run` needs.
    pub workspace_bytes: u64,
    /// Alignment of the scratch memory.
    pub workspace_align: u32,
    /// The backend's own number of the algorithm.
    pub algo_id: u32,
    /// Estimated floating-point operations.
    pub est_flops: u64,
    /// Estimated bytes moved.
    pub est_bytes: u64,
}

/// `supports` verdict: no.
pub const DI_SUPPORT_NO: u32 = 0;
/// `supports` verdict: yes.
pub const DI_SUPPORT_YES: u32 = 1;
/// `supports` verdict: yes, once tensors are in the wanted layouts.
pub const DI_SUPPORT_AFTER_RELAYOUT: u32 = 2;

/// Answer of `supports`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiSupport {
    /// Bytes of this struct known to its reader.
    pub struct_size: u32,
    /// `DI_SUPPORT_*`.
    pub verdict: u32,
    /// `DI_PF_DETERMINISTIC`, `DI_PF_BATCH_INVARIANT` bits.
    pub determinism: u32,
    /// Reserved, 0.
    pub contract_id: u32,
    /// Why not; lives as long as the backend.
    pub reason: DiStr,
    /// Wanted layout per tensor argument.
    pub want_layout: [u32; 8],
}

/// `supports` of an op entry. Data pointers of `proto` are null.
pub type DiSupportsFn =
    unsafe extern "C" fn(*mut DiBackend, *mut DiDevice, *const DiOpHeader, *mut DiSupport) -> *mut DiError;
/// `plan` of an op entry. Data pointers of `proto` are null.
pub type DiPlanFn = unsafe extern "C" fn(
    *mut DiBackend,
    *mut DiDevice,
    *const DiOpHeader,
    *mut *mut DiPlan,
    *mut DiPlanInfo,
) -> *mut DiError;
/// `run` of an op entry: the hot path.
pub type DiRunFn = unsafe extern "C" fn(*mut DiBackend, *mut DiPlan, *mut DiStream, *const DiOpHeader) -> *mut DiError;
/// `plan_destroy` of an op entry.
pub type DiPlanDestroyFn = unsafe extern "C" fn(*mut DiBackend, *mut DiPlan);

/// One implementation of one op.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiOpEntry {
    /// Bytes of this struct known to its writer.
    pub struct_size: u32,
    /// Catalogue id.
    pub op_id: u32,
    /// Catalogue version.
    pub op_version: u32,
    /// `DI_PF_*` that hold for every plan.
    pub flags: u32,
    /// Catalogue name.
    pub name: DiStr,
    /// Name of this implementation within the backend.
    pub impl_name: DiStr,
    /// Among several implementations the largest is tried first.
    pub priority: i32,
    /// 0.
    pub reserved0: u32,
    /// Null: every shape of the catalogue is supported.
    pub supports: Option<DiSupportsFn>,
    /// Null: no workspace and no state; `run` gets a null plan.
    pub plan: Option<DiPlanFn>,
    /// Never null.
    pub run: Option<DiRunFn>,
    /// Null when `plan` is null.
    pub plan_destroy: Option<DiPlanDestroyFn>,
}

/// What a device is, without opening it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiDeviceInfo {
    /// Bytes of this struct known to its reader.
    pub struct_size: u32,
    /// `DI_DEVICE_*`.
    pub device_type: i32,
    /// Number within the backend.
    pub ordinal: i32,
    /// PCI vendor id, or 0.
    pub pci_vendor: u32,
    /// `DI_CAP_*` bits.
    pub caps: u64,
    /// Bit `1 << code` per `DI_CODE_*` with native arithmetic.
    pub dtype_mask: u64,
    /// Bit per accepted layout.
    pub layout_mask: u64,
    /// Marketing name.
    pub name: DiStr,
    /// Architecture: `x86_64`, `sm_100`, `ascend950`.
    pub arch: DiStr,
    /// Unique id, or zeros.
    pub uuid: [u8; 16],
    /// Memory of space 0.
    pub total_bytes: u64,
    /// NUMA node, or -1.
    pub numa_node: i32,
    /// Memory spaces.
    pub n_spaces: u32,
    /// Multiprocessors, AI cores or CPU threads.
    pub compute_units: u32,
    /// 0: whole device. 1: a partition of it.
    pub isolation: u32,
}

/// What a device is ([`DiDeviceInfo::caps`]): a model of one, on the host's processor. It is used only where a person names it.
pub const DI_CAP_EMULATED: u32 = 1;

/// Memory space kind: memory of the device.
pub const DI_SPACE_DEVICE: u32 = 0;
/// Memory space kind: host memory that the device reads directly.
pub const DI_SPACE_HOST_PINNED: u32 = 1;

/// Memory space kind: host memory that only copies reach.
pub const DI_SPACE_HOST_PAGEABLE: u32 = 2;

/// A memory space of a device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiSpaceInfo {
    /// Bytes of this struct known to its reader.
    pub struct_size: u32,
    /// Id to allocate with.
    pub space_id: u32,
    /// `DI_SPACE_*`.
    pub kind: u32,
    /// 0.
    pub flags: u32,
    /// Smallest alignment that the device wants.
    pub min_align: u64,
    /// Allocations are rounded up to a multiple of this.
    pub granularity: u64,
    /// Bytes of the space, or 0 when unknown.
    pub total_bytes: u64,
}

/// Link class: the same device.
pub const DI_LINK_SELF: u32 = 0;
/// Link class: a vendor's direct link (NVLink, HCCS).
pub const DI_LINK_DIRECT: u32 = 1;
/// Link class: PCI Express within one NUMA node.
pub const DI_LINK_PCIE: u32 = 2;
/// Link class: across NUMA nodes.
pub const DI_LINK_SYSTEM: u32 = 3;
/// Link flag: peer copies work.
pub const DI_LF_PEER_COPY: u32 = 1;
/// Link flag: kernels may load and store the peer's memory.
pub const DI_LF_PEER_ACCESS: u32 = 2;

/// How two devices are connected.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiLinkInfo {
    /// Bytes of this struct known to its reader.
    pub struct_size: u32,
    /// `DI_LINK_*`.
    pub link_class: u32,
    /// `DI_LF_*`.
    pub flags: u32,
    /// Switches in between.
    pub hops: u32,
    /// Bandwidth in one direction, or 0 when unknown.
    pub bytes_per_s: u64,
    /// Latency, or 0 when unknown.
    pub latency_ns: u64,
}

/// Copy kind: host to device.
pub const DI_COPY_H2D: u32 = 0;
/// Copy kind: device to host.
pub const DI_COPY_D2H: u32 = 1;
/// Copy kind: within one device.
pub const DI_COPY_D2D: u32 = 2;
/// Copy kind: to another device of the backend.
pub const DI_COPY_P2P: u32 = 3;

/// Devices, memory, streams and events: the one mandatory table. Fields that say *Optional* may be null.
///
/// Rules: any thread may call `device_*`, `alloc`, `free_`, `event_destroy` and, of ops and graphs, `supports`, `plan`,
/// `plan_destroy` and `exec_destroy`, also at once. One stream, with the work and events queued on it, is used by one thread
/// at a time. Only `*_sync`, `device_open` and `device_close` may block. Faults of work that runs later appear at
/// `stream_sync`, `event_sync` or `event_query`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiRuntimeApi {
    /// Bytes of this struct known to its writer.
    pub struct_size: u32,
    /// 0.
    pub reserved0: u32,
    /// Number of devices. An error says why there is none (no driver, ...).
    pub device_count: Option<unsafe extern "C" fn(*mut DiBackend, *mut u32) -> *mut DiError>,
    /// Describes a device; creates no context on it.
    pub device_info: Option<unsafe extern "C" fn(*mut DiBackend, u32, *mut DiDeviceInfo) -> *mut DiError>,
    /// Opens a device.
    pub device_open:
        Option<unsafe extern "C" fn(*mut DiBackend, u32, *const DiExt, *mut *mut DiDevice) -> *mut DiError>,
    /// Closes a device; its buffers, streams and events must be gone.
    pub device_close: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiDevice)>,
    /// Free and total bytes of a memory space.
    pub device_mem_info:
        Option<unsafe extern "C" fn(*mut DiBackend, *mut DiDevice, u32, *mut u64, *mut u64) -> *mut DiError>,
    /// Allocates `bytes` (may be 0) aligned to `align`, a power of two. The content is undefined.
    pub alloc: Option<
        unsafe extern "C" fn(
            *mut DiBackend,
            *mut DiDevice,
            u32,
            u64,
            u64,
            *mut *mut DiBuffer,
            *mut *mut c_void,
        ) -> *mut DiError,
    >,
    /// Frees an allocation; no work that touches it may be pending.
    pub free_: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiBuffer)>,
    /// Creates a stream.
    pub stream_create:
        Option<unsafe extern "C" fn(*mut DiBackend, *mut DiDevice, i32, u32, *mut *mut DiStream) -> *mut DiError>,
    /// Destroys a stream.
    pub stream_destroy: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiStream)>,
    /// Waits until all work of a stream is done and reports its first fault.
    pub stream_sync: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiStream) -> *mut DiError>,
    /// Creates an event.
    pub event_create:
        Option<unsafe extern "C" fn(*mut DiBackend, *mut DiDevice, u32, *mut *mut DiEvent) -> *mut DiError>,
    /// Destroys an event.
    pub event_destroy: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiEvent)>,
    /// Marks the present end of a stream.
    pub event_record: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiEvent, *mut DiStream) -> *mut DiError>,
    /// Later work of the stream waits for the event, on the device.
    pub event_wait: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiStream, *mut DiEvent) -> *mut DiError>,
    /// Whether the event has passed; does not block.
    pub event_query: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiEvent, *mut i32) -> *mut DiError>,
    /// Blocks until the event has passed.
    pub event_sync: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiEvent) -> *mut DiError>,
    /// Copies in stream order; `kind` is a `DI_COPY_*`. Host memory must stay valid until the stream has passed it.
    pub copy: Option<
        unsafe extern "C" fn(*mut DiBackend, *mut DiStream, *mut c_void, *const c_void, u64, u32) -> *mut DiError,
    >,
    /// Writes `count` copies of the low `pattern_bytes` (1, 2 or 4) bytes of `pattern`, in stream order.
    pub fill: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiStream, *mut c_void, u32, u32, u64) -> *mut DiError>,
    /// Optional. Describes memory space number `i` of a device; creates no context.
    pub space_info: Option<unsafe extern "C" fn(*mut DiBackend, u32, u32, *mut DiSpaceInfo) -> *mut DiError>,
    /// Optional. How devices `a` and `b` are connected; creates no context.
    pub device_link: Option<unsafe extern "C" fn(*mut DiBackend, u32, u32, *mut DiLinkInfo) -> *mut DiError>,
    /// Optional. The vendor's own stream handle (`cudaStream_t`, `aclrtStream`).
    pub stream_native: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiStream, *mut *mut c_void) -> *mut DiError>,
    /// Optional. Milliseconds between two events that have passed.
    pub event_elapsed:
        Option<unsafe extern "C" fn(*mut DiBackend, *mut DiEvent, *mut DiEvent, *mut f32) -> *mut DiError>,
    /// Optional. Copies `height` rows of `width` bytes between pitched memories, in stream order.
    pub copy_2d: Option<
        unsafe extern "C" fn(
            *mut DiBackend,
            *mut DiStream,
            *mut c_void,
            u64,
            *const c_void,
            u64,
            u64,
            u64,
            u32,
        ) -> *mut DiError,
    >,
}

/// A backend's tables.
#[repr(C)]
pub struct DiBackendApi {
    /// Bytes of this struct known to its writer.
    pub struct_size: u32,
    /// 0.
    pub flags: u32,
    /// Passed to every call.
    pub backend: *mut DiBackend,
    /// Never null.
    pub runtime: *const DiRuntimeApi,
    /// Op implementations; several entries may share an op.
    pub ops: *const DiOpEntry,
    /// Entries.
    pub n_ops: usize,
    /// Bytes from one entry to the next, so that an older core can walk newer, longer entries.
    pub op_stride: usize,
    /// Optional tables by id; null when absent.
    pub table: Option<unsafe extern "C" fn(*mut DiBackend, u32) -> *const c_void>,
    /// Joins every thread that the plugin started. The library stays loaded.
    pub shutdown: Option<unsafe extern "C" fn(*mut DiBackend) -> *mut DiError>,
}

/// Log levels of [`DiHostApi::log`].
pub const DI_LOG_ERROR: i32 = 1;
/// See [`DI_LOG_ERROR`].
pub const DI_LOG_WARN: i32 = 2;
/// See [`DI_LOG_ERROR`].
pub const DI_LOG_INFO: i32 = 3;
/// See [`DI_LOG_ERROR`].
pub const DI_LOG_DEBUG: i32 = 4;

/// What the core offers to a plugin.
#[repr(C)]
pub struct DiHostApi {
    /// Bytes of this struct known to its writer.
    pub struct_size: u32,
    /// 0.
    pub reserved0: u32,
    /// Passed back to every function.
    pub user: *mut c_void,
    /// Writes a log line; any thread.
    pub log: Option<unsafe extern "C" fn(*mut c_void, i32, DiStr, DiStr)>,
    /// Since 0.2. Whether a line of this level and target would be written, to spare composing it; any thread.
    pub log_enabled: Option<unsafe extern "C" fn(*mut c_void, i32, DiStr) -> i32>,
}

/// First argument of the entry.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiEntryRequest {
    /// Bytes of this struct known to its writer.
    pub struct_size: u32,
    /// Lowest major that the core speaks.
    pub min_major: u16,
    /// Highest major that the core speaks.
    pub max_major: u16,
    /// Minor of the core within `max_major`.
    pub minor: u16,
    /// Lowest plugin minor that the core can live with.
    pub min_plugin_minor: u16,
    /// 0.
    pub reserved0: u32,
    /// Lives as long as the process.
    pub host: *const DiHostApi,
    /// Not null: this plugin is asked to be a layer over another backend.
    pub next: *const DiBackendApi,
    /// `key=value&key=value` from the selection.
    pub options: DiStr,
    /// Extensions or null.
    pub ext: *const DiExt,
}

/// Reply flag: panics and exceptions are caught inside the plugin.
pub const DI_RF_CONTAINS_PANICS: u32 = 1;
/// Reply flag: this is a layer.
pub const DI_RF_IS_LAYER: u32 = 2;

/// Filled by the entry.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiEntryReply {
    /// In: bytes of this struct known to the core.
    pub struct_size: u32,
    /// Major that the plugin chose, within the core's range.
    pub major: u16,
    /// Minor of the plugin within that major.
    pub minor: u16,
    /// Lowest core minor that the plugin can live with.
    pub min_core_minor: u16,
    /// 0.
    pub reserved0: u16,
    /// `DI_RF_*`.
    pub flags: u32,
    /// Name by which users select the backend.
    pub name: DiStr,
    /// Version of the plugin.
    pub version: DiStr,
    /// Toolchain and build description.
    pub build: DiStr,
    /// The tables, when the entry returned 0.
    pub api: *const DiBackendApi,
    /// Why not, when it did not.
    pub error: *mut DiError,
}

/// Type of the exported symbol. Returns 0 or a `DI_E_*` code. Called once per process and plugin; that of a layer once per
/// backend that it wraps.
pub type DiEntryFn = unsafe extern "C" fn(*const DiEntryRequest, *mut DiEntryReply) -> i32;
