//! The embedded kernels, and their functions on each device.

use std::ffi::{CStr, OsString};
use std::io::Write as _;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::OnceLock;

use deepinfer_plugin_api::abi::DI_SPACE_DEVICE;
use deepinfer_plugin_api::sdk::Fault;
use libloading::Library;

use crate::acl::acl;
use crate::acl::sys::{self, aclrtBinHandle, aclrtFuncHandle};
use crate::device::{Device, MOST_DEVICES};
use crate::memory::free_after;
use crate::replacement::replacements;

/// What was compiled from one file of `kernels/`.
pub(crate) struct Image {
    pub(crate) index: usize,
    pub(crate) name: &'static str,
    pub(crate) bytes: &'static [u8],
}

/// One constant per kernel file, named as it is.
pub(crate) mod images {
    #[allow(unused_imports)]
    use super::Image;

    include!(concat!(env!("OUT_DIR"), "/images.rs"));
}

/// Whether the kernels are those of the host twin: nothing then asks for a device of this machine.
pub(crate) const fn is_twin() -> bool {
    cfg!(ascend_twin)
}

/// Why this plugin has no kernels, if it has none, and what to do about it.
pub(crate) fn problem() -> Option<Fault> {
    let text = || format!("this plugin was built without its Ascend kernels: {}", images::PROBLEM);
    (images::MODE == "none").then(|| Fault::unsupported(text()))
}

/// What to say of `DEEPINFER_ASCEND` where a program that runs has another one than the build had.
pub(crate) fn other_mode(set: Option<OsString>) -> Option<String> {
    let set = set.filter(|set| !set.is_empty() && set != images::MODE)?;
    let set = set.to_string_lossy();
    let built = match images::MODE {
        "twin" => "for the host twin",
        "cann" => "for a device",
        _ => "without kernels",
    };
    Some(format!(
        "DEEPINFER_ASCEND is {set:?}, which changes nothing here: it is read when the plugin is built, and this one was built \
         {built}; build it again with that value, or unset the variable"
    ))
}

/// The fake runtime that is embedded for the twin.
///
/// # Errors
/// The system gives no memory for it, or refuses to run code from it.
pub(crate) fn fake() -> Result<Library, Fault> {
    static PATH: OnceLock<Result<String, Fault>> = OnceLock::new();
    let path = PATH.get_or_init(fake_file).as_ref().map_err(Clone::clone)?;
    // Opened twice it is the same library.
    // SAFETY: our own library, which the build made.
    unsafe { Library::new(path) }.map_err(|e| no_fake(&e))
}

/// The seed that the host twin runs by.
///
/// # Errors
/// As [`fake`].
pub(crate) fn seed() -> Result<u64, Fault> {
    let library = fake()?;
    // SAFETY: the type is that of the function in `fake/ascendcl.cpp`.
    let get = unsafe { library.get::<unsafe extern "C" fn() -> u64>("di_fake_seed") }.map_err(|e| no_fake(&e))?;
    // SAFETY: it takes nothing, and only reads.
    Ok(unsafe { get() })
}

fn no_fake(problem: &dyn std::fmt::Display) -> Fault {
    Fault::unsupported(format!("the fake runtime of the host twin: {problem}"))
}

/// Writes the fake runtime to a file that is nothing but memory, and says how it is opened.
fn fake_file() -> Result<String, Fault> {
    unsafe extern "C" {
        /// The C library's function: a file that is nothing but memory.
        fn memfd_create(name: *const std::ffi::c_char, flags: std::ffi::c_uint) -> std::ffi::c_int;
    }
    const CLOSE_ON_EXEC: std::ffi::c_uint = 1;
    // SAFETY: the name is terminated; the descriptor is ours, if there is one.
    let mut file = unsafe {
        match memfd_create(c"libascendcl-fake".as_ptr(), CLOSE_ON_EXEC) {
            -1 => return Err(no_fake(&std::io::Error::last_os_error())),
            descriptor => std::fs::File::from_raw_fd(descriptor),
        }
    };
    file.write_all(images::FAKE).map_err(|e| no_fake(&e))?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // The loader knows libraries by their path, by which this one is opened more than once: the file stays open, the only one that
    // does (images are closed once they are loaded).
    std::mem::forget(file);
    Ok(path)
}

/// Binaries that are loaded on a device, at their first use.
pub(crate) struct Binaries([OnceLock<Handle>; images::COUNT]);

impl Default for Binaries {
    fn default() -> Self {
        Self([const { OnceLock::new() }; images::COUNT])
    }
}

/// A handle of the runtime, valid as long as the device's context, which is never given back.
#[derive(Clone, Copy)]
struct Handle(usize);

/// A kernel of a kernel file. What was found is kept in it, by device.
pub(crate) struct Function {
    image: &'static Image,
    name: &'static CStr,
    found: [OnceLock<Handle>; MOST_DEVICES],
}

impl Function {
    /// `name` of `image`.
    pub(crate) const fn new(image: &'static Image, name: &'static CStr) -> Self {
        Self { image, name, found: [const { OnceLock::new() }; MOST_DEVICES] }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &'static str {
        self.name.to_str().unwrap_or_default()
    }

    /// Its handle on a device whose context is current.
    pub(crate) fn on(&self, device: &Device) -> Result<aclrtFuncHandle, Fault> {
        let slot = &self.found[device.ordinal()];
        if let Some(handle) = slot.get() {
            return Ok(std::ptr::with_exposed_provenance_mut(handle.0));
        }
        let binary = device.binaries().get(device, self.image)?;
        let mut function: aclrtFuncHandle = std::ptr::null_mut();
        // SAFETY: the binary is loaded in the current context; the name ends with a zero.
        let code = unsafe { acl()?.aclrtBinaryGetFunction(binary, self.name.as_ptr(), &mut function) };
        device.check(format_args!("the kernel {}", self.name()), code)?;
        slot.get_or_init(|| Handle(function.expose_provenance()));
        Ok(function)
    }
}

impl Binaries {
    /// The binary of an image in the current context.
    fn get(&self, device: &Device, image: &'static Image) -> Result<aclrtBinHandle, Fault> {
        let slot = &self.0[image.index];
        if let Some(handle) = slot.get() {
            return Ok(std::ptr::with_exposed_provenance_mut(handle.0));
        }
        let bytes = replacements()?.of(image).unwrap_or(image.bytes);
        let mut magic = sys::aclrtBinaryLoadOption {
            type_: sys::ACL_RT_BINARY_LOAD_OPT_MAGIC,
            value: sys::aclrtBinaryLoadOptionValue { rsv: [sys::ACL_RT_BINARY_MAGIC_ELF_VECTOR_CORE, 0, 0, 0] },
        };
        let options = sys::aclrtBinaryLoadOptions { options: &raw mut magic, numOpt: 1 };
        let mut binary: aclrtBinHandle = std::ptr::null_mut();
        // SAFETY: a whole image; the options live until the call returns.
        let code = unsafe {
            acl()?.aclrtBinaryLoadFromData(bytes.as_ptr().cast(), bytes.len(), &raw const options, &mut binary)
        };
        if code != sys::ACL_SUCCESS {
            let free = free_after(device, DI_SPACE_DEVICE, code);
            let free = free.map_or(String::new(), |free| format!(" ({free} bytes are free)"));
            return Err(device.fault(format_args!("the kernels of {} do not load{free}", image.name), code));
        }
        // Of two threads that load it at once, one binary is kept and the other stays unused.
        let kept = slot.get_or_init(|| Handle(binary.expose_provenance()));
        Ok(std::ptr::with_exposed_provenance_mut(kept.0))
    }
}
