//! CANN's runtime (AscendCL, `libascendcl.so`): found, opened and started when it is asked about first.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use deepinfer_plugin_api::sdk::{Fault, FaultCode};
use libloading::Library;

use crate::image::is_twin;

/// What bindgen makes of `include/di_acl.h`; a test keeps it fresh.
#[rustfmt::skip]
#[allow(non_camel_case_types, non_snake_case, non_upper_case_globals, dead_code, missing_docs, unreachable_pub)]
#[allow(unsafe_op_in_unsafe_fn, clippy::all, clippy::undocumented_unsafe_blocks)]
pub(crate) mod sys;

const LIBRARY: &str = "libascendcl.so";

/// Names of those functions that a library lacks.
macro_rules! missing {
    ($acl:expr, $($name:ident)*) => {{
        let mut names = Vec::new();
        $(if $acl.$name.is_err() {
            names.push(stringify!($name));
        })*
        names
    }};
}

/// The runtime, started. It starts threads, which must not outlive its code: it is never closed.
///
/// # Errors
/// It is not there, too old, or does not start.
pub(crate) fn acl() -> Result<&'static sys::AscendCl, Fault> {
    static ACL: OnceLock<Result<sys::AscendCl, Fault>> = OnceLock::new();
    ACL.get_or_init(start).as_ref().map_err(Clone::clone)
}

fn start() -> Result<sys::AscendCl, Fault> {
    let library = if is_twin() { of_twin()? } else { open()? };
    // SAFETY: the types are those of `di_acl.h`, which says what the runtime's functions take.
    let acl = unsafe { sys::AscendCl::from_library(library) };
    let acl = acl.map_err(|e| Fault::unsupported(format!("{LIBRARY} cannot be used: {e}")))?;
    let missing = missing_to_list(&acl);
    if !missing.is_empty() {
        return Err(Fault::unsupported(format!("the CANN that is installed has no {}", missing.join(", "))));
    }
    // SAFETY: no configuration file.
    match unsafe { acl.aclInit(std::ptr::null()) } {
        // Another user in this process may have started it.
        sys::ACL_SUCCESS | sys::ACL_ERROR_REPEAT_INITIALIZE => Ok(acl),
        code => {
            let said = recent(&acl).map_or(String::new(), |text| format!(": {text}"));
            let text = format!("CANN is installed, but its runtime does not start (error {code}){said}");
            let mut fault = Fault::new(FaultCode::Internal, text);
            fault.vendor_code = code;
            Err(fault)
        }
    }
}

/// The fake runtime, if it understands what the environment tells it.
fn of_twin() -> Result<Library, Fault> {
    let library = crate::image::fake()?;
    // SAFETY: the type is that of the function in `fake/ascendcl.cpp`; its result is null, or a text that lives as long as the
    // library, which is never closed.
    let problem = unsafe {
        let get = library.get::<unsafe extern "C" fn() -> *const c_char>("di_fake_problem");
        let text = get.map_or(std::ptr::null(), |get| get());
        if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy().into_owned()) }
    };
    problem.map_or(Ok(library), |text| Err(Fault::invalid(text)))
}

/// Without these not even devices are listed.
fn missing_to_list(acl: &sys::AscendCl) -> Vec<&'static str> {
    missing!(acl, aclInit aclrtGetDeviceCount)
}

/// Without these no device is opened. All others are parts that can be absent: texts, mapped host memory, graphs.
pub(crate) fn missing_to_open(acl: &sys::AscendCl) -> Vec<&'static str> {
    missing!(acl, aclrtSetDevice aclrtGetCurrentContext aclrtSetCurrentContext aclrtGetMemInfo aclrtMalloc aclrtFree
        aclrtMallocHost aclrtFreeHost aclrtMemcpyAsync aclrtMemsetAsync aclrtCreateStreamWithConfig aclrtDestroyStream
        aclrtSynchronizeStream aclrtCreateEventExWithFlag aclrtDestroyEvent aclrtRecordEvent aclrtStreamWaitEvent
        aclrtQueryEventStatus aclrtSynchronizeEvent aclrtBinaryLoadFromData aclrtBinaryGetFunction
        aclrtLaunchKernelWithHostArgs)
}

/// Whether work can be recorded and run again.
pub(crate) fn has_graphs(acl: &sys::AscendCl) -> bool {
    missing!(acl, aclmdlRICaptureBegin aclmdlRICaptureEnd aclmdlRIExecuteAsync aclmdlRIDestroy).is_empty()
}

/// What the runtime says about the last failure in this thread, in one line. It says it once.
pub(crate) fn recent(acl: &sys::AscendCl) -> Option<String> {
    let get = acl.aclGetRecentErrMsg.as_ref().ok()?;
    // SAFETY: null, or a text that lives until the next call of this thread.
    let text = unsafe {
        let text = get();
        if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy().into_owned()) }
    };
    let words = text?.split_whitespace().collect::<Vec<_>>().join(" ");
    (!words.is_empty()).then_some(words)
}

/// Opens the library: where the system finds it, else in the toolkit's own folder.
fn open() -> Result<Library, Fault> {
    let in_toolkit = toolkit().map(|folder| folder.join("lib64").join(LIBRARY));
    let found = [Some(PathBuf::from(LIBRARY)), in_toolkit]
        .into_iter()
        .flatten()
        // SAFETY: opens the vendor's library, as every CANN program does.
        .find_map(|path| unsafe { Library::new(path) }.ok());
    found.ok_or_else(|| {
        Fault::unsupported(format!("no CANN: {LIBRARY} was found neither by the system nor below $ASCEND_HOME_PATH"))
    })
}

/// Folder of the CANN toolkit.
pub(crate) fn toolkit() -> Option<PathBuf> {
    path_of(c"ASCEND_HOME_PATH").filter(|path| path.is_absolute())
}

/// A path that the environment names. A process with raised privileges does not let its environment choose code to load.
pub(crate) fn path_of(variable: &CStr) -> Option<PathBuf> {
    unsafe extern "C" {
        /// The C library's `getenv`, but null in a process with raised privileges.
        fn secure_getenv(name: *const c_char) -> *const c_char;
    }
    // SAFETY: the name is terminated; the result is null or a terminated text, copied before anybody changes it.
    let value = unsafe {
        let value = secure_getenv(variable.as_ptr());
        if value.is_null() { None } else { Some(CStr::from_ptr(value).to_bytes().to_owned()) }
    };
    value.map(|bytes| Path::new(OsStr::from_bytes(&bytes)).to_owned())
}
