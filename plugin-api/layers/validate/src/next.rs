//! The backend below: its tables, read once.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::offset_of;
use std::sync::{Mutex, PoisonError};

use deepinfer_plugin_api::abi::*;
use deepinfer_plugin_api::sdk::{FIRST_VENDOR_ID, Fault, FaultCode, no_extents};
use deepinfer_plugin_api::{ArgInfo, Contract, Kind, OpInfo, Role, generated};

use crate::read;

/// Most bytes of a text; more are taken for a wild length.
const MOST_TEXT: usize = 1 << 16;

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
    /// What is wrong with optional tables, which are taken for absent then; each the end of a sentence.
    flaws: Mutex<Vec<String>>,
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
            let api = read::checked(api).map_err(broken)?;
            if api.runtime.is_null() {
                return Err(broken("has no runtime table".to_owned()));
            }
            let runtime = read::checked(api.runtime);
            let runtime = runtime.map_err(|problem| broken(format!("has a runtime table that {problem}")))?;
            if let Some(name) = missing(&runtime) {
                return Err(broken(format!("has no {name} in its runtime table")));
            }
            let (raw, shutdown, table) = (api.backend, api.shutdown, api.table);
            let mut next = Self { raw, runtime, entries: Vec::new(), shutdown, flaws: Mutex::default(), table };
            let vendor = next.vendor_ops();
            let entries = read::rows(api.ops, api.n_ops, api.op_stride);
            for raw in entries.map_err(|problem| broken(format!("has an op table that {problem}")))? {
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

    /// An optional table, as far as the backend knows it. One that cannot be read is a flaw.
    pub(crate) fn optional<T: Copy>(&self, id: u32) -> Option<T> {
        let table = self.table?;
        // SAFETY: the backend's own function; a table that is not null lives as long as the backend and begins with its size.
        unsafe {
            let table = table(self.raw, id).cast::<T>();
            if table.is_null() {
                return None;
            }
            read::checked(table).map_err(|problem| self.add_flaw(format!("table {id} {problem}"))).ok()
        }
    }

    fn add_flaw(&self, flaw: String) {
        self.flaws.lock().unwrap_or_else(PoisonError::into_inner).push(flaw);
    }

    /// What was wrong with optional tables since the last time.
    pub(crate) fn take_flaws(&self) -> Vec<String> {
        std::mem::take(&mut self.flaws.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The table of the backend's own ops, which has no functions, as it is.
    pub(crate) fn ops_table(&self) -> *const c_void {
        // SAFETY: the backend's own function.
        self.table.map_or(std::ptr::null(), |table| unsafe { table(self.raw, DI_TABLE_OPS) })
    }

    /// Reflection rows of the backend's own ops.
    fn vendor_ops(&self) -> Vec<&'static OpInfo> {
        let Some(table) = self.optional::<DiOpsTable>(DI_TABLE_OPS) else { return Vec::new() };
        // SAFETY: rows lie `op_stride` apart and begin with their sizes, and so do their arguments.
        let rows = unsafe { read::rows(table.ops, table.n_ops, table.op_stride) };
        let rows = rows.unwrap_or_else(|problem| {
            self.add_flaw(format!("the table of its own ops {problem}"));
            Vec::new()
        });
        let op = |(index, row)| {
            // SAFETY: as above.
            let op = unsafe { vendor_op(&row) };
            op.map_err(|problem| self.add_flaw(format!("row {index} of its own ops {problem}"))).ok()
        };
        rows.into_iter().enumerate().filter_map(op).collect()
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

/// An op of the backend's own.
///
/// # Errors
/// What is wrong with its row, as the end of a sentence.
///
/// # Safety
/// As [`Next::vendor_ops`].
unsafe fn vendor_op(row: &DiOpInfo) -> Result<&'static OpInfo, String> {
    if row.op_id < FIRST_VENDOR_ID {
        return Err(format!("has the id {:#x}, but ids of vendors begin at {FIRST_VENDOR_ID:#x}", row.op_id));
    }
    if (row.args_size as usize) < size_of::<DiOpHeader>() {
        let head = size_of::<DiOpHeader>();
        return Err(format!("has arguments of {} bytes, but their head has {head}", row.args_size));
    }
    // SAFETY: the caller's contract.
    let args = unsafe { read::rows(row.args, row.n_args, row.arg_stride) };
    let args = args.map_err(|problem| format!("has an argument list that {problem}"))?;
    // SAFETY: as above.
    let args = args.iter().map(|arg| unsafe { vendor_arg(arg, row.args_size) }).collect::<Result<_, _>>()?;
    Ok(Box::leak(Box::new(OpInfo {
        id: row.op_id,
        // SAFETY: as above.
        name: unsafe { leak(row.name) },
        version: row.op_version,
        family: "vendor",
        profiles: &[],
        args_size: row.args_size as usize,
        contract: Contract::EXACT,
        extents: no_extents,
        args: Vec::leak(args),
        refuses: &[],
    })))
}

/// # Safety
/// As [`Next::vendor_ops`].
unsafe fn vendor_arg(arg: &DiArgInfo, args_size: u32) -> Result<ArgInfo, String> {
    // SAFETY: the caller's contract.
    let name = unsafe { leak(arg.name) };
    let (kind, bytes, align) = match arg.kind {
        DI_ARG_TENSOR => (Kind::Tensor, size_of::<DiTensor>(), align_of::<DiTensor>()),
        DI_ARG_TENSOR_LIST => (Kind::TensorList, size_of::<DiTensorList>(), align_of::<DiTensorList>()),
        DI_ARG_U32 => (Kind::U32, 4, 4),
        DI_ARG_I32 => (Kind::I32, 4, 4),
        DI_ARG_F32 => (Kind::F32, 4, 4),
        other => return Err(format!("has the argument {name} of kind {other}, which there is not")),
    };
    let role = match arg.role {
        DI_ROLE_IN => Role::In,
        DI_ROLE_OUT => Role::Out,
        DI_ROLE_INOUT => Role::InOut,
        other => return Err(format!("has the argument {name} of role {other}, which there is not")),
    };
    let (offset, optional) = (arg.offset as usize, arg.optional != 0);
    if offset < size_of::<DiOpHeader>() || offset + bytes > args_size as usize || !offset.is_multiple_of(align) {
        let end = offset + bytes;
        return Err(format!(
            "has the argument {name} at bytes {offset}..{end} of {args_size}; it must lie behind the head, within the \
             struct, at a multiple of {align}"
        ));
    }
    Ok(ArgInfo { name, offset, kind, role, optional, since: 0, formats: 0, shape: &[], like: "" })
}

/// Text of the backend, which lives as long as the process; invalid bytes are replaced, and what is too long is cut.
///
/// # Safety
/// A pointer that is not null has `len` readable bytes.
unsafe fn leak(text: DiStr) -> &'static str {
    if text.ptr.is_null() {
        return "";
    }
    // SAFETY: the caller's contract.
    let bytes = unsafe { std::slice::from_raw_parts(text.ptr, text.len.min(MOST_TEXT)) };
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
