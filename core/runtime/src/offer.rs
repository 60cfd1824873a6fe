//! What a backend offers besides its ops, for reports: memory spaces, links, optional tables, and ops of its own.

#![allow(unsafe_code)]

use std::ffi::c_void;

use deepinfer_plugin_api::abi::{
    DI_ARG_F32, DI_ARG_I32, DI_ARG_TENSOR, DI_ARG_TENSOR_LIST, DI_ARG_U32, DI_CONTRACT_BOUND, DI_CONTRACT_DIST,
    DI_CONTRACT_EXACT, DI_CONTRACT_ULP, DI_LF_PEER_ACCESS, DI_LF_PEER_COPY, DI_LINK_DIRECT, DI_LINK_PCIE, DI_LINK_SELF,
    DI_LINK_SYSTEM, DI_ROLE_IN, DI_ROLE_INOUT, DI_ROLE_OUT, DI_SPACE_DEVICE, DI_SPACE_HOST_PAGEABLE,
    DI_SPACE_HOST_PINNED, DI_TABLE_COLLECTIVE, DI_TABLE_GRAPH, DI_TABLE_IPC, DI_TABLE_OPS, DI_TABLE_PREPACK,
    DI_TABLE_PROFILE, DI_TABLE_VMM, DiArgInfo, DiDeviceInfo, DiLinkInfo, DiOpHeader, DiOpInfo, DiOpsTable, DiSpaceInfo,
    DiTensor, DiTensorList,
};
use serde::{Deserialize, Serialize};

use crate::backend::{LoadedBackend, PluginError, call};
use crate::raw::{blank, read_sized, read_text, take_error};

/// More memory spaces than a device has.
const MOST_SPACES: u32 = 64;
/// More ops of its own than a backend has, and more arguments than an op has.
const MOST_ROWS: usize = 1 << 16;
/// First id of the ops that belong to vendors.
pub(crate) const VENDOR_OPS: u32 = 0x8000_0000;

/// A kind of memory of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceInfo {
    /// Number to allocate with.
    pub id: u32,
    /// `device`, `host_pinned`, `host_pageable`, or the number of a kind that is not known here.
    pub kind: String,
    /// Smallest alignment in bytes.
    pub min_align: u64,
    /// Allocations are rounded up to a multiple of so many bytes.
    pub granularity: u64,
    /// Bytes, or 0 when unknown.
    pub total_bytes: u64,
}

/// How two devices are connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkInfo {
    /// Device.
    pub from: u32,
    /// Other device.
    pub to: u32,
    /// `self`, `direct`, `pcie`, `system`, or the number of a class that is not known here.
    pub class: String,
    /// Whether one can copy to the other's memory.
    pub peer_copy: bool,
    /// Whether kernels of one can access the other's memory.
    pub peer_access: bool,
    /// Switches in between.
    pub hops: u32,
    /// Bandwidth in one direction, or 0 when unknown.
    pub bytes_per_s: u64,
    /// Latency, or 0 when unknown.
    pub latency_ns: u64,
}

/// An op outside the catalogue, as its reflection row describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VendorOp {
    /// Id, from 0x80000000.
    pub id: u32,
    /// Name.
    pub name: String,
    /// Version.
    pub version: u32,
    /// Bytes of the argument struct.
    pub args_size: u32,
    /// `exact`, `ulp`, `bound`, `dist`, or the number of a class that is not known here.
    pub contract: String,
    /// Arguments.
    pub args: Vec<VendorArg>,
}

/// An argument of a [`VendorOp`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VendorArg {
    /// Name.
    pub name: String,
    /// Byte offset in the argument struct.
    pub offset: u32,
    /// `tensor`, `tensor_list`, `u32`, `i32` or `f32`.
    pub kind: String,
    /// `in`, `out` or `inout`.
    pub role: String,
    /// Whether it may be absent.
    pub optional: bool,
}

/// The word for a number, or the number.
fn word(number: u32, words: &[(u32, &str)]) -> String {
    let known = words.iter().find(|(value, _)| *value == number);
    known.map_or_else(|| number.to_string(), |(_, word)| (*word).to_owned())
}

/// Number and name of every optional table.
const TABLES: [(u32, &str); 7] = [
    (DI_TABLE_GRAPH, "graph"),
    (DI_TABLE_COLLECTIVE, "collective"),
    (DI_TABLE_PREPACK, "prepack"),
    (DI_TABLE_PROFILE, "profile"),
    (DI_TABLE_VMM, "vmm"),
    (DI_TABLE_IPC, "ipc"),
    (DI_TABLE_OPS, "ops"),
];

impl LoadedBackend {
    /// Memory spaces of a device; none if the backend does not tell. Opens nothing.
    ///
    /// # Errors
    /// There is no such device, or the plugin cannot describe a space that it counts.
    pub fn spaces(&self, device: u32) -> Result<Vec<SpaceInfo>, PluginError> {
        self.life.check()?;
        let mut info: DiDeviceInfo = blank();
        // SAFETY: `raw` is the plugin's, and `info` says how many bytes of it may be written.
        if let Some(error) = unsafe { take_error(call!(self, device_info, device, &raw mut info)) } {
            return Err(error);
        }
        let Some(space_info) = self.runtime.space_info else { return Ok(Vec::new()) };
        let describe = |index: u32| {
            let mut space: DiSpaceInfo = blank();
            // SAFETY: as above.
            if let Some(error) = unsafe { take_error(space_info(self.raw, device, index, &raw mut space)) } {
                return Err(error);
            }
            let kinds = [
                (DI_SPACE_DEVICE, "device"),
                (DI_SPACE_HOST_PINNED, "host_pinned"),
                (DI_SPACE_HOST_PAGEABLE, "host_pageable"),
            ];
            Ok(SpaceInfo {
                id: space.space_id,
                kind: word(space.kind, &kinds),
                min_align: space.min_align,
                granularity: space.granularity,
                total_bytes: space.total_bytes,
            })
        };
        (0..info.n_spaces.min(MOST_SPACES)).map(describe).collect()
    }

    /// How two devices are connected; `None` if the backend does not tell. Opens nothing.
    ///
    /// # Errors
    /// There is no such device.
    pub fn link(&self, from: u32, to: u32) -> Result<Option<LinkInfo>, PluginError> {
        self.life.check()?;
        let Some(device_link) = self.runtime.device_link else { return Ok(None) };
        let mut link: DiLinkInfo = blank();
        // SAFETY: `raw` is the plugin's, and `link` says how many bytes of it may be written.
        if let Some(error) = unsafe { take_error(device_link(self.raw, from, to, &raw mut link)) } {
            return Err(error);
        }
        let classes =
            [(DI_LINK_SELF, "self"), (DI_LINK_DIRECT, "direct"), (DI_LINK_PCIE, "pcie"), (DI_LINK_SYSTEM, "system")];
        Ok(Some(LinkInfo {
            from,
            to,
            class: word(link.link_class, &classes),
            peer_copy: link.flags & DI_LF_PEER_COPY != 0,
            peer_access: link.flags & DI_LF_PEER_ACCESS != 0,
            hops: link.hops,
            bytes_per_s: link.bytes_per_s,
            latency_ns: link.latency_ns,
        }))
    }

    /// Names of the optional tables that the backend gives.
    pub fn optional_tables(&self) -> Vec<&'static str> {
        TABLES.into_iter().filter(|(id, _)| !self.table_at(*id).is_null()).map(|(_, name)| name).collect()
    }

    /// The backend's own ops; none without the table of reflection rows.
    ///
    /// # Errors
    /// What is wrong with a row, in a sentence.
    pub fn vendor_ops(&self) -> Result<Vec<VendorOp>, String> {
        let at = self.table_at(DI_TABLE_OPS).cast::<DiOpsTable>();
        if at.is_null() {
            return Ok(Vec::new());
        }
        // SAFETY: a table that the plugin gives is whole and lives as long as the backend.
        let table = unsafe { read_sized(at) }.map_err(|problem| format!("the table of its own ops {problem}"))?;
        // SAFETY: so are its rows.
        let rows = unsafe { rows(table.ops, table.n_ops, table.op_stride) };
        let rows = rows.map_err(|problem| format!("the table of its own ops {problem}"))?;
        let read =
            |(index, row)| read_vendor_op(&row).map_err(|problem| format!("row {index} of its own ops {problem}"));
        rows.into_iter().enumerate().map(read).collect()
    }

    fn table_at(&self, id: u32) -> *const c_void {
        // SAFETY: the function lives as long as the library and takes the backend that came with it.
        self.table.map_or(std::ptr::null(), |table| unsafe { table(self.raw, id) })
    }
}

/// Copies an array of structs at the plugin's own stride.
///
/// # Safety
/// A non-null `at` has `count` structs at a distance of `stride` bytes, each of `struct_size` readable bytes.
unsafe fn rows<T: crate::raw::Sized32>(at: *const T, count: usize, stride: usize) -> Result<Vec<T>, String> {
    if count > MOST_ROWS || !stride.is_multiple_of(align_of::<T>()) || (count > 1 && stride == 0) {
        return Err(format!("has {count} entries at a distance of {stride} bytes, which is impossible"));
    }
    // SAFETY: within the array, by the caller's contract.
    (0..count).map(|index| unsafe { read_sized(at.byte_add(if at.is_null() { 0 } else { index * stride })) }).collect()
}

fn read_vendor_op(row: &DiOpInfo) -> Result<VendorOp, String> {
    // SAFETY: texts of a row live as long as the backend.
    let name = unsafe { read_text(row.name) }.map_err(|problem| format!("has a name that {problem}"))?;
    let id = row.op_id;
    if id < VENDOR_OPS {
        return Err(format!("({name}) has the id {id:#x}, but ids of vendors begin at {VENDOR_OPS:#x}"));
    }
    if (row.args_size as usize) < size_of::<DiOpHeader>() {
        let head = size_of::<DiOpHeader>();
        return Err(format!("({name}) has arguments of {} bytes, but their head has {head}", row.args_size));
    }
    // SAFETY: the arguments of a row live as long as the backend.
    let args = unsafe { rows(row.args, row.n_args, row.arg_stride) };
    let args = args.map_err(|problem| format!("({name}) has an argument list that {problem}"))?;
    let args = args.iter().map(|arg| read_vendor_arg(arg, row.args_size));
    let args = args.collect::<Result<_, _>>().map_err(|problem| format!("({name}) {problem}"))?;
    let classes = [
        (DI_CONTRACT_EXACT, "exact"),
        (DI_CONTRACT_ULP, "ulp"),
        (DI_CONTRACT_BOUND, "bound"),
        (DI_CONTRACT_DIST, "dist"),
    ];
    let contract = word(row.contract, &classes);
    Ok(VendorOp { id, version: row.op_version, args_size: row.args_size, contract, args, name })
}

fn read_vendor_arg(arg: &DiArgInfo, args_size: u32) -> Result<VendorArg, String> {
    // SAFETY: texts of a row live as long as the backend.
    let name = unsafe { read_text(arg.name) }.map_err(|problem| format!("has an argument whose name {problem}"))?;
    let (kind, bytes, align) = match arg.kind {
        DI_ARG_TENSOR => ("tensor", size_of::<DiTensor>(), align_of::<DiTensor>()),
        DI_ARG_TENSOR_LIST => ("tensor_list", size_of::<DiTensorList>(), align_of::<DiTensorList>()),
        DI_ARG_U32 => ("u32", size_of::<u32>(), align_of::<u32>()),
        DI_ARG_I32 => ("i32", size_of::<i32>(), align_of::<i32>()),
        DI_ARG_F32 => ("f32", size_of::<f32>(), align_of::<f32>()),
        other => return Err(format!("has the argument {name} of kind {other}, which there is not")),
    };
    let begin = arg.offset as usize;
    if begin < size_of::<DiOpHeader>() || begin + bytes > args_size as usize {
        return Err(format!("has the argument {name} at bytes {begin}..{} of {args_size}", begin + bytes));
    }
    if !begin.is_multiple_of(align) {
        return Err(format!("has the argument {name} at byte {begin}, but a {kind} needs a multiple of {align}"));
    }
    let roles = [(DI_ROLE_IN, "in"), (DI_ROLE_OUT, "out"), (DI_ROLE_INOUT, "inout")];
    let role = word(arg.role, &roles);
    Ok(VendorArg { offset: arg.offset, kind: kind.to_owned(), role, optional: arg.optional != 0, name })
}
