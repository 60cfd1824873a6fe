//! The backend below: its tables, read once.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::offset_of;

use deepinfer_plugin_api::abi::*;
use deepinfer_plugin_api::sdk::{FIRST_VENDOR_ID, Fault, FaultCode, no_extents};
use deepinfer_plugin_api::{ArgInfo, Contract, Kind, OpInfo, Role, generated};

use crate::read;

/// An implementation of an op.
pub(crate) struct Entry {
    /// Of no more bytes than the backend knows; zero behind.
    pub(crate) raw: DiOpEntry,
    /// The reflection row; `None` if neither the catalogue nor the backend has one of this id and version.
    pub(crate) op: Option<&'static OpInfo>,
    pub(crate) name: &'static str,
    pub(crate) implementation: &'static str,
}

/// The backend below.
pub(crate) struct Next {
    pub(crate) raw: *mut DiBackend,
    pub(crate) runtime: DiRuntimeApi,
    pub(crate) entries: Vec<Entry>,
    pub(crate) shutdown: Option<unsafe extern "C" fn(*mut DiBackend) -> *mut DiError>,
    table: Option<unsafe extern "C" fn(*mut DiBackend, u32) -> *const c_void>,
}

// SAFETY: the pointers are only passed to the backend, whose functions may be called from any thread as the header says; the
// layer's callers keep to it, or it is found.
unsafe impl Send for Next {}
// SAFETY: as above.
unsafe impl Sync for Next {}

impl Next {
    /// Reads the tables of a backend.
    ///
    /// # Errors
    /// A mandatory part is missing.
    ///
    /// # Safety
    /// `api` is the table of a successful entry reply, which lives as long as the process.
    pub(crate) unsafe fn read(api: *const DiBackendApi) -> Result<Self, Fault> {
        let broken = |what: String| Fault::new(FaultCode::Abi, format!("what is to be wrapped {what}"));
        // SAFETY: the caller's contract; tables, entries and texts live as long as the process, and begin with their sizes.
        unsafe {
            let api = read::sized(api);
            if api.runtime.is_null() {
                return Err(broken("has no runtime table".to_owned()));
            }
            let runtime = read::sized(api.runtime);
            if let Some(name) = missing(&runtime) {
                return Err(broken(format!("has no {name} in its runtime table")));
            }
            let mut next =
                Self { raw: api.backend, runtime, entries: Vec::new(), shutdown: api.shutdown, table: api.table };
            let vendor = next.vendor_ops();
            for index in 0..api.n_ops {
                let raw = read::sized(api.ops.byte_add(index * api.op_stride));
                let known = generated::OPS.iter().copied().chain(vendor.iter().copied());
                let op = known.into_iter().find(|op| (op.id, op.version) == (raw.op_id, raw.op_version));
                let (name, implementation) = (leak(raw.name), leak(raw.impl_name));
                if raw.run.is_none() {
                    return Err(broken(format!("has an implementation of {name} without run")));
                }
                next.entries.push(Entry { raw, op, name, implementation });
            }
            Ok(next)
        }
    }

    /// An optional table, as far as the backend knows it.
    pub(crate) fn optional<T: Copy>(&self, id: u32) -> Option<T> {
        let table = self.table?;
        // SAFETY: the backend's own function; a table that is not null lives as long as the backend and begins with its size.
        unsafe {
            let table = table(self.raw, id).cast::<T>();
            (!table.is_null()).then(|| read::sized(table))
        }
    }

    /// The table of the backend's own ops, which has no functions, as it is.
    pub(crate) fn ops_table(&self) -> *const c_void {
        // SAFETY: the backend's own function.
        self.table.map_or(std::ptr::null(), |table| unsafe { table(self.raw, DI_TABLE_OPS) })
    }

    /// Reflection rows of the backend's own ops.
    fn vendor_ops(&self) -> Vec<&'static OpInfo> {
        let Some(table) = self.optional::<DiOpsTable>(DI_TABLE_OPS) else { return Vec::new() };
        let at = |index: usize| table.ops.cast::<u8>().wrapping_add(index * table.op_stride).cast::<DiOpInfo>();
        // SAFETY: rows lie `op_stride` apart and begin with their sizes, and so do their arguments.
        (0..table.n_ops).filter_map(|index| unsafe { vendor_op(&read::sized(at(index))) }).collect()
    }

    /// The file that the backend came from, for whoever wants to select it again.
    pub(crate) fn origin(&self) -> String {
        let address = self.runtime.device_count.map_or(0, |function| function as usize);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        mapped_file(&maps, address).unwrap_or_else(|| "BACKEND".to_owned())
    }
}

/// The file that is mapped at an address, from the text of `/proc/self/maps`.
fn mapped_file(maps: &str, address: usize) -> Option<String> {
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let bound = |text| usize::from_str_radix(text, 16).ok();
        let path = &rest[rest.find('/')?..];
        (bound(start)?..bound(end)?).contains(&address).then(|| path.to_owned())
    })
}

/// # Safety
/// As [`Next::vendor_ops`].
unsafe fn vendor_op(row: &DiOpInfo) -> Option<&'static OpInfo> {
    if row.op_id < FIRST_VENDOR_ID || (row.args_size as usize) < size_of::<DiOpHeader>() {
        return None;
    }
    let args: Option<Vec<ArgInfo>> = (0..row.n_args)
        .map(|index| {
            // SAFETY: the caller's contract.
            let arg = unsafe { read::sized(row.args.byte_add(index * row.arg_stride)) };
            let (kind, bytes) = match arg.kind {
                DI_ARG_TENSOR => (Kind::Tensor, size_of::<DiTensor>()),
                DI_ARG_TENSOR_LIST => (Kind::TensorList, size_of::<DiTensorList>()),
                DI_ARG_U32 => (Kind::U32, 4),
                DI_ARG_I32 => (Kind::I32, 4),
                DI_ARG_F32 => (Kind::F32, 4),
                _ => return None,
            };
            let role = match arg.role {
                DI_ROLE_IN => Role::In,
                DI_ROLE_OUT => Role::Out,
                DI_ROLE_INOUT => Role::InOut,
                _ => return None,
            };
            let (offset, optional) = (arg.offset as usize, arg.optional != 0);
            if offset + bytes > row.args_size as usize {
                return None;
            }
            // SAFETY: as above.
            let name = unsafe { leak(arg.name) };
            Some(ArgInfo { name, offset, kind, role, optional, formats: 0, shape: &[], like: "" })
        })
        .collect();
    Some(Box::leak(Box::new(OpInfo {
        id: row.op_id,
        // SAFETY: as above.
        name: unsafe { leak(row.name) },
        version: row.op_version,
        family: "vendor",
        profiles: &[],
        args_size: row.args_size as usize,
        contract: Contract::EXACT,
        extents: no_extents,
        args: Vec::leak(args?),
        refuses: &[],
    })))
}

/// Text of the backend, which lives as long as the process; invalid bytes are replaced.
///
/// # Safety
/// A pointer that is not null has `len` readable bytes.
unsafe fn leak(text: DiStr) -> &'static str {
    if text.ptr.is_null() {
        return "";
    }
    // SAFETY: the caller's contract.
    let bytes = unsafe { std::slice::from_raw_parts(text.ptr, text.len) };
    String::from_utf8_lossy(bytes).into_owned().leak()
}

/// The first mandatory function that is not there.
fn missing(runtime: &DiRuntimeApi) -> Option<&'static str> {
    macro_rules! first_absent {
        ($($function:ident)*) => { [$((stringify!($function), runtime.$function.is_none())),*] };
    }
    first_absent![device_count device_info device_open device_close device_mem_info alloc free_ stream_create
        stream_destroy stream_sync event_create event_destroy event_record event_wait event_query event_sync copy fill]
    .into_iter()
    .find_map(|(name, is_absent)| is_absent.then_some(name))
}

/// What is wrong with an error object, as the end of a sentence.
///
/// # Safety
/// `error` is not null and points to `struct_size` readable bytes.
pub(crate) unsafe fn error_problem(error: *const DiError) -> Option<String> {
    // SAFETY: the caller's contract; the size comes first.
    let size = unsafe { error.cast::<u32>().read() };
    let needed = offset_of!(DiError, release) + size_of::<usize>();
    if (size as usize) < needed {
        return Some(format!("has struct_size {size}; {needed} bytes are needed to release it"));
    }
    // SAFETY: as above.
    let raw = unsafe { read::sized(error) };
    if raw.release.is_none() {
        return Some("has no release function".to_owned());
    }
    if raw.code == 0 {
        return Some("has the code 0, which means success".to_owned());
    }
    let is_nowhere = |text: DiStr| text.ptr.is_null() && text.len > 0;
    let text = if is_nowhere(raw.message) { "message" } else { "origin" };
    (is_nowhere(raw.message) || is_nowhere(raw.origin)).then(|| format!("has a {text} at no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_at_an_address() {
        let maps = "7f0000000000-7f0000001000 r--p 00000000 08:01 12 /lib/a b.so\n7f0000001000-7f0000002000 rw-p 00000000 00:00 0\n";
        assert_eq!(mapped_file(maps, 0x7f00_0000_0fff).as_deref(), Some("/lib/a b.so"));
        assert_eq!(mapped_file(maps, 0x7f00_0000_1000), None);
        assert_eq!(mapped_file(maps, 0x10), None);
    }
}
