//! The optional tables: what [`DiBackendApi::table`](super::DiBackendApi::table) is asked for.
//!
//! A backend gives a null pointer for a table that it does not have. Every function of a table that it gives is present.

use std::ffi::c_void;

use super::{DiBackend, DiBuffer, DiDevice, DiError, DiEvent, DiStr, DiStream, DiTensor};

/// Optional table: [`DiGraphApi`].
pub const DI_TABLE_GRAPH: u32 = 1;
/// Optional table: [`DiCollectiveApi`].
pub const DI_TABLE_COLLECTIVE: u32 = 2;
/// Optional table: [`DiPrepackApi`].
pub const DI_TABLE_PREPACK: u32 = 3;
/// Optional table: [`DiProfileApi`].
pub const DI_TABLE_PROFILE: u32 = 4;
/// Optional table: [`DiVmmApi`].
pub const DI_TABLE_VMM: u32 = 5;
/// Optional table: [`DiIpcApi`].
pub const DI_TABLE_IPC: u32 = 6;
/// Optional table: [`DiOpsTable`], reflection rows of the backend's own ops.
pub const DI_TABLE_OPS: u32 = 7;

/// A captured sequence of work, owned by the plugin.
#[repr(C)]
pub struct DiGraph {
    _opaque: [u8; 0],
}
/// A graph that can be launched, owned by the plugin.
#[repr(C)]
pub struct DiGraphExec {
    _opaque: [u8; 0],
}
/// A rank's membership in a group that communicates, owned by the plugin.
#[repr(C)]
pub struct DiComm {
    _opaque: [u8; 0],
}
/// Reserved addresses, owned by the plugin.
#[repr(C)]
pub struct DiRange {
    _opaque: [u8; 0],
}
/// Memory without an address of its own, owned by the plugin.
#[repr(C)]
pub struct DiPhysical {
    _opaque: [u8; 0],
}

/// Capture of a stream's work and its replay. During capture nothing may allocate, synchronise or copy pageable memory:
/// such a call fails with [`DI_E_NOT_CAPTURABLE`](super::DI_E_NOT_CAPTURABLE).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiGraphApi {
    /// Bytes of this struct known to its writer.
    pub struct_size: u32,
    /// 0.
    pub reserved0: u32,
    /// Work on the stream is recorded from here on.
    pub begin: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiStream) -> *mut DiError>,
    /// Ends the recording.
    pub end: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiStream, *mut *mut DiGraph) -> *mut DiError>,
    /// Makes a graph launchable; may block.
    pub instantiate: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiGraph, *mut *mut DiGraphExec) -> *mut DiError>,
    /// Takes over pointers and scalars of a graph of the same shape; says whether it could.
    pub update: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiGraphExec, *mut DiGraph, *mut i32) -> *mut DiError>,
    /// Enqueues the recorded work.
    pub launch: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiGraphExec, *mut DiStream) -> *mut DiError>,
    /// Destroys a graph.
    pub graph_destroy: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiGraph)>,
    /// Destroys a launchable graph.
    pub exec_destroy: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiGraphExec)>,
}

/// Argument kind: `DiTensor`.
pub const DI_ARG_TENSOR: u32 = 0;
/// Argument kind: `DiTensorList`.
pub const DI_ARG_TENSOR_LIST: u32 = 1;
/// Argument kind: `u32`.
pub const DI_ARG_U32: u32 = 2;
/// Argument kind: `i32`.
pub const DI_ARG_I32: u32 = 3;
/// Argument kind: `f32`.
pub const DI_ARG_F32: u32 = 4;
/// Role: read.
pub const DI_ROLE_IN: u32 = 0;
/// Role: written.
pub const DI_ROLE_OUT: u32 = 1;
/// Role: read and written.
pub const DI_ROLE_INOUT: u32 = 2;
/// Contract: equal bits.
pub const DI_CONTRACT_EXACT: u32 = 0;
/// Contract: a distance from the correctly rounded result.
pub const DI_CONTRACT_ULP: u32 = 1;
/// Contract: an error derived from what was summed.
pub const DI_CONTRACT_BOUND: u32 = 2;
/// Contract: a distribution; single results may differ where two candidates are closer than the bound.
pub const DI_CONTRACT_DIST: u32 = 3;

/// Where an argument of a backend's own op lies.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiArgInfo {
    /// Bytes of this struct known to its writer.
    pub struct_size: u32,
    /// Offset in the argument struct.
    pub offset: u32,
    /// `DI_ARG_*`.
    pub kind: u32,
    /// `DI_ROLE_*`.
    pub role: u32,
    /// 1: it may be absent.
    pub optional: u32,
    /// 0.
    pub reserved0: u32,
    /// Name.
    pub name: DiStr,
}

/// A backend's own op, as layers and tools see it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiOpInfo {
    /// Bytes of this struct known to its writer.
    pub struct_size: u32,
    /// From 0x80000000.
    pub op_id: u32,
    /// Version.
    pub op_version: u32,
    /// Bytes of the argument struct.
    pub args_size: u32,
    /// `DI_CONTRACT_*`.
    pub contract: u32,
    /// 0.
    pub reserved0: u32,
    /// Name.
    pub name: DiStr,
    /// Arguments.
    pub args: *const DiArgInfo,
    /// Arguments.
    pub n_args: usize,
    /// Bytes from one argument to the next.
    pub arg_stride: usize,
    /// Since 0.2. Of an ULP contract: the largest distance, in units of the last place.
    pub ulps: f32,
    /// 0.
    pub reserved1: u32,
}

/// Reflection rows of a backend's own ops.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiOpsTable {
    /// Bytes of this struct known to its writer.
    pub struct_size: u32,
    /// 0.
    pub reserved0: u32,
    /// Rows.
    pub ops: *const DiOpInfo,
    /// Rows.
    pub n_ops: usize,
    /// Bytes from one row to the next.
    pub op_stride: usize,
}

/// Reduction: sum.
pub const DI_REDUCE_SUM: u32 = 0;
/// Reduction: maximum.
pub const DI_REDUCE_MAX: u32 = 1;

/// Collectives among the ranks of a group, in stream order. Declared since 0.2; no backend of this repository has it yet.
///
/// The order of a sum over ranks is that of the ranks, whatever arrives first, if the group was made with
/// `DI_PF_DETERMINISTIC` in its flags; a backend that cannot do so declines the group.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiCollectiveApi {
    /// Bytes of this struct known to its writer.
    pub struct_size: u32,
    /// 0.
    pub reserved0: u32,
    /// Bytes that name a new group, for every rank to use: with null bytes only the length is written.
    pub group_id: Option<unsafe extern "C" fn(*mut DiBackend, *mut u8, *mut u64) -> *mut DiError>,
    /// Joins a group: its id, this rank, the number of ranks, `DI_PF_*`. Returns when all have joined.
    pub comm_create: Option<
        unsafe extern "C" fn(
            *mut DiBackend,
            *mut DiDevice,
            *const u8,
            u64,
            u32,
            u32,
            u32,
            *mut *mut DiComm,
        ) -> *mut DiError,
    >,
    /// Leaves a group.
    pub comm_destroy: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiComm)>,
    /// Reduces element by element (`DI_REDUCE_*`); every rank gets all. Input and output may be the same.
    pub all_reduce: Option<
        unsafe extern "C" fn(
            *mut DiBackend,
            *mut DiComm,
            *mut DiStream,
            *const DiTensor,
            *const DiTensor,
            u32,
        ) -> *mut DiError,
    >,
    /// The inputs of all ranks, one after the other along the first dimension.
    pub all_gather: Option<
        unsafe extern "C" fn(
            *mut DiBackend,
            *mut DiComm,
            *mut DiStream,
            *const DiTensor,
            *const DiTensor,
        ) -> *mut DiError,
    >,
    /// Reduces (`DI_REDUCE_*`); each rank gets its part of the first dimension.
    pub reduce_scatter: Option<
        unsafe extern "C" fn(
            *mut DiBackend,
            *mut DiComm,
            *mut DiStream,
            *const DiTensor,
            *const DiTensor,
            u32,
        ) -> *mut DiError,
    >,
    /// Rows for each rank, one after the other: counts sent to and received from every rank, in host memory.
    pub all_to_all: Option<
        unsafe extern "C" fn(
            *mut DiBackend,
            *mut DiComm,
            *mut DiStream,
            *const DiTensor,
            *const u64,
            *const DiTensor,
            *const u64,
        ) -> *mut DiError,
    >,
    /// Sends to a rank.
    pub send:
        Option<unsafe extern "C" fn(*mut DiBackend, *mut DiComm, *mut DiStream, *const DiTensor, u32) -> *mut DiError>,
    /// Receives from a rank.
    pub recv:
        Option<unsafe extern "C" fn(*mut DiBackend, *mut DiComm, *mut DiStream, *const DiTensor, u32) -> *mut DiError>,
}

/// What a prepacked argument needs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiPrepackInfo {
    /// Bytes of this struct known to its writer.
    pub struct_size: u32,
    /// Value of [`DiTensor::layout`] for the packed tensor; 0: the canonical layout is as good, pack nothing.
    pub layout: u32,
    /// Bytes of the packed tensor.
    pub bytes: u64,
    /// Its alignment.
    pub align: u64,
}

/// Weights in the layout that a kernel wants, made once when they are loaded. Declared since 0.2.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiPrepackApi {
    /// Bytes of this struct known to its writer.
    pub struct_size: u32,
    /// 0.
    pub reserved0: u32,
    /// What the preferred implementation of an op (id, version) wants for its argument of this number, given as
    /// canonical tensor without data.
    pub query: Option<
        unsafe extern "C" fn(
            *mut DiBackend,
            *mut DiDevice,
            u32,
            u32,
            u32,
            *const DiTensor,
            *mut DiPrepackInfo,
        ) -> *mut DiError,
    >,
    /// Packs a canonical tensor in device memory into one of a layout that `query` gave, in stream order.
    pub pack: Option<
        unsafe extern "C" fn(*mut DiBackend, *mut DiStream, *const DiTensor, u32, *mut c_void, u64) -> *mut DiError,
    >,
}

/// One piece of work as the device has timed it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiProfileRecord {
    /// Bytes of this struct known to its writer.
    pub struct_size: u32,
    /// Op, or 0 for copies and fills.
    pub op_id: u32,
    /// Nanoseconds of the device's clock at its begin.
    pub begin_ns: u64,
    /// And at its end.
    pub end_ns: u64,
    /// Bytes moved, if the device counts them, or 0.
    pub bytes: u64,
    /// Kernel, as the vendor's tools call it; lives as long as the backend.
    pub name: DiStr,
}

/// Times of the work on a stream, from the device itself. Declared since 0.2.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiProfileApi {
    /// Bytes of this struct known to its writer.
    pub struct_size: u32,
    /// 0.
    pub reserved0: u32,
    /// Records the work of a stream from here on.
    pub begin: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiStream) -> *mut DiError>,
    /// Ends it, waits for the work, and says how many records there are.
    pub end: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiStream, *mut u64) -> *mut DiError>,
    /// A record of the last period, by number.
    pub record: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiStream, u64, *mut DiProfileRecord) -> *mut DiError>,
}

/// Addresses apart from memory, so that a cache grows without moving. Sizes are multiples of the space's granularity.
/// Declared since 0.2.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiVmmApi {
    /// Bytes of this struct known to its writer.
    pub struct_size: u32,
    /// 0.
    pub reserved0: u32,
    /// Reserves addresses.
    pub reserve: Option<
        unsafe extern "C" fn(*mut DiBackend, *mut DiDevice, u64, *mut *mut DiRange, *mut *mut c_void) -> *mut DiError,
    >,
    /// Gives addresses back; nothing is mapped there any more.
    pub unreserve: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiRange)>,
    /// Takes memory of a space.
    pub create:
        Option<unsafe extern "C" fn(*mut DiBackend, *mut DiDevice, u32, u64, *mut *mut DiPhysical) -> *mut DiError>,
    /// Gives it back; it is mapped nowhere any more.
    pub release: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiPhysical)>,
    /// Maps memory at an offset of the range.
    pub map: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiRange, u64, *mut DiPhysical) -> *mut DiError>,
    /// Unmaps so many bytes at an offset, after the work that uses them.
    pub unmap: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiRange, u64, u64) -> *mut DiError>,
}

/// Device memory and events that another process of this machine uses. Declared since 0.2.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiIpcApi {
    /// Bytes of this struct known to its writer.
    pub struct_size: u32,
    /// 0.
    pub reserved0: u32,
    /// Bytes by which another process opens the buffer: with null bytes only the length is written.
    pub export_buffer: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiBuffer, *mut u8, *mut u64) -> *mut DiError>,
    /// Opens the buffer of another process; it is freed like any other, which leaves the exporter's untouched.
    pub import_buffer: Option<
        unsafe extern "C" fn(
            *mut DiBackend,
            *mut DiDevice,
            *const u8,
            u64,
            *mut *mut DiBuffer,
            *mut *mut c_void,
        ) -> *mut DiError,
    >,
    /// As `export_buffer`, of an event.
    pub export_event: Option<unsafe extern "C" fn(*mut DiBackend, *mut DiEvent, *mut u8, *mut u64) -> *mut DiError>,
    /// As `import_buffer`, of an event.
    pub import_event:
        Option<unsafe extern "C" fn(*mut DiBackend, *mut DiDevice, *const u8, u64, *mut *mut DiEvent) -> *mut DiError>,
}
