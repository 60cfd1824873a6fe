//! What CANN's runtime (AscendCL, `libascendcl.so`) says about its devices. None of these calls creates a context.

#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use deepinfer_plugin_api::abi::DI_DEVICE_ASCEND;
use deepinfer_plugin_api::sdk::{DeviceInfo, Fault, FaultCode, Probe};
use libloading::Library;

/// Huawei's number in the PCI registry.
const PCI_VENDOR: u32 = 0x19E5;
const LIBRARY: &str = "libascendcl.so";
/// AscendCL's success.
const ACL_SUCCESS: c_int = 0;
/// AscendCL was initialised before, by another user in this process.
const ACL_ERROR_REPEAT_INITIALIZE: c_int = 100_002;

type AclInit = unsafe extern "C" fn(config_path: *const c_char) -> c_int;
type GetDeviceCount = unsafe extern "C" fn(count: *mut u32) -> c_int;
type GetSocName = unsafe extern "C" fn() -> *const c_char;

/// The devices of CANN's runtime.
pub(crate) struct Ascend;

impl Probe for Ascend {
    const NAME: &'static str = "ascend";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    fn devices() -> Result<Vec<DeviceInfo>, Fault> {
        let library = open()?;
        // SAFETY: the types are those of CANN's `acl/acl_rt.h`.
        let (init, get_device_count, get_soc_name) = unsafe {
            (
                symbol::<AclInit>(library, "aclInit")?,
                symbol::<GetDeviceCount>(library, "aclrtGetDeviceCount")?,
                symbol::<GetSocName>(library, "aclrtGetSocName")?,
            )
        };
        let mut count = 0;
        // SAFETY: no configuration file; `count` is writable.
        let codes = unsafe { [init(std::ptr::null()), get_device_count(&raw mut count)] };
        let failed = |code: &&c_int| !matches!(**code, ACL_SUCCESS | ACL_ERROR_REPEAT_INITIALIZE);
        if let Some(&code) = codes.iter().find(failed) {
            let mut fault = Fault::new(FaultCode::Internal, "CANN is installed, but its runtime does not start");
            fault.vendor_code = code;
            return Err(fault);
        }
        if count == 0 {
            return Err(Fault::unsupported("CANN is installed, but it finds no Ascend device"));
        }
        // SAFETY: null, or a text that lives as long as the library.
        let soc = unsafe {
            let name = get_soc_name();
            if name.is_null() { "unknown".to_owned() } else { CStr::from_ptr(name).to_string_lossy().into_owned() }
        };
        // AscendCL names the chip once for all devices. The size of their memory is known only inside a context: 0 here.
        let info = DeviceInfo {
            device_type: DI_DEVICE_ASCEND,
            name: format!("Ascend {soc}"),
            arch: soc.to_lowercase(),
            total_bytes: 0,
            compute_units: 0,
            pci_vendor: PCI_VENDOR,
            ..DeviceInfo::default()
        };
        Ok(vec![info; count as usize])
    }
}

/// Opens the library for the rest of the process: where the system finds it, else in the toolkit's own folder.
fn open() -> Result<&'static Library, Fault> {
    let in_toolkit = toolkit().map(|folder| folder.join("lib64").join(LIBRARY));
    let found = [Some(PathBuf::from(LIBRARY)), in_toolkit]
        .into_iter()
        .flatten()
        // SAFETY: opens the vendor's library, as every CANN program does.
        .find_map(|path| unsafe { Library::new(path) }.ok());
    let library = found.ok_or_else(|| {
        Fault::unsupported(format!("no CANN: {LIBRARY} was found neither by the system nor below $ASCEND_HOME_PATH"))
    })?;
    // It starts threads, which must not outlive its code.
    Ok(Box::leak(Box::new(library)))
}

/// Folder of the CANN toolkit. A process with raised privileges does not let its environment choose code to load.
fn toolkit() -> Option<PathBuf> {
    unsafe extern "C" {
        /// The C library's `getenv`, but null in a process with raised privileges.
        fn secure_getenv(name: *const c_char) -> *const c_char;
    }
    // SAFETY: the name is terminated; the result is null or a terminated text, copied before anybody changes it.
    let value = unsafe {
        let value = secure_getenv(c"ASCEND_HOME_PATH".as_ptr());
        if value.is_null() { None } else { Some(CStr::from_ptr(value).to_bytes().to_owned()) }
    };
    value.map(|bytes| Path::new(OsStr::from_bytes(&bytes)).to_owned()).filter(|path| path.is_absolute())
}

/// A function of the library.
///
/// # Safety
/// `F` is the function's type.
unsafe fn symbol<F: Copy>(library: &Library, name: &str) -> Result<F, Fault> {
    // SAFETY: the caller's contract.
    let symbol = unsafe { library.get::<F>(name) };
    symbol.map(|f| *f).map_err(|_| Fault::unsupported(format!("the CANN that is installed has no {name}")))
}
