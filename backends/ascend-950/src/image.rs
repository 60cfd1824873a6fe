//! The embedded kernels, and their functions on each device.

use std::ffi::CStr;
use std::io::Write as _;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::OnceLock;

use deepinfer_plugin_api::abi::DI_SPACE_DEVICE;
use deepinfer_plugin_api::sdk::{Fault, FaultCode};
use libloading::Library;

use crate::acl::sys::{self, aclrtBinHandle, aclrtFuncHandle};
use crate::acl::{acl, path_of};
use crate::device::{Device, MOST_DEVICES};
use crate::error::{check, fault};
use crate::memory::free_after;

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

/// Why this plugin has no kernels, if it has none.
pub(crate) fn problem() -> Option<&'static str> {
    (images::MODE == "none").then_some(images::PROBLEM)
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
    // The loader knows libraries by their path, which must not come again: the file stays open.
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
        check(format_args!("the kernel {}", self.name()), code)?;
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
        let replaced = replacement(image)?;
        let bytes = replaced.as_deref().unwrap_or(image.bytes);
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
            return Err(fault(format_args!("the kernels of {} do not load{free}", image.name), code));
        }
        // Of two threads that load it at once, one binary is kept and the other stays unused.
        let kept = slot.get_or_init(|| Handle(binary.expose_provenance()));
        Ok(std::ptr::with_exposed_provenance_mut(kept.0))
    }
}

/// The image that a developer puts in place of an embedded one: `OP.so` in `$DEEPINFER_ASCEND_KERNELS`.
fn replacement(image: &Image) -> Result<Option<Vec<u8>>, Fault> {
    let Some(folder) = path_of(c"DEEPINFER_ASCEND_KERNELS") else { return Ok(None) };
    let invalid = |text: String| Fault::new(FaultCode::Invalid, text);
    if !folder.is_absolute() || !folder.is_dir() {
        return Err(invalid(format!(
            "DEEPINFER_ASCEND_KERNELS is \"{}\", which is no absolute path of a folder: name one with OP.so files, or unset it",
            folder.display()
        )));
    }
    let file = folder.join(format!("{}.so", image.name));
    let told = |e: std::io::Error| invalid(format!("{}: {e}", file.display()));
    // Of an op without a file the embedded image stays; a link to nothing is a mistake, and so is a folder that cannot be searched.
    match file.symlink_metadata() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        found => found.map_err(told)?,
    };
    if !file.metadata().map_err(told)?.is_file() {
        return Err(invalid(format!("{} is no file", file.display())));
    }
    let bytes = std::fs::read(&file).map_err(told)?;
    if is_cut_off(&bytes) {
        let length = bytes.len();
        return Err(invalid(format!("{}: {length} bytes are no whole image: build it again", file.display())));
    }
    Ok(Some(bytes))
}

/// Whether this is no ELF file of 64 bits, or one whose table of sections, which stands at its end, lies beyond it.
fn is_cut_off(bytes: &[u8]) -> bool {
    const HEADER: usize = 64;
    let Some(header) = bytes.get(..HEADER).filter(|header| header.starts_with(b"\x7FELF\x02")) else { return true };
    let short = |at: usize| u64::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let table = u64::from_le_bytes(header[40..48].try_into().unwrap_or_default());
    table.saturating_add(short(58) * short(60)) > bytes.len() as u64
}

#[cfg(test)]
mod tests {
    use super::is_cut_off;

    #[test]
    fn an_image_that_is_cut_off_is_told_from_a_whole_one() {
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(!is_cut_off(&whole));
        for length in [0, 10, 64, 4000, whole.len() - 1] {
            assert!(is_cut_off(&whole[..length]), "{length}");
        }
        assert!(is_cut_off(&[7; 4000]));
    }
}
