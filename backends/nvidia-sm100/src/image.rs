//! The embedded machine code, and its functions on each device.

use std::ffi::CStr;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUfunction, CUmodule};
use deepinfer_plugin_api::abi::DI_SPACE_DEVICE;
use deepinfer_plugin_api::sdk::Fault;

use crate::device::{Device, MOST_DEVICES};
use crate::error::{check, fault};
use crate::memory::memory;

/// Machine code of one file of `kernels/`, for every target.
pub(crate) struct Image {
    pub(crate) index: usize,
    pub(crate) name: &'static str,
    pub(crate) bytes: &'static [u8],
}

/// One constant per kernel file, named as it is.
pub(crate) mod images {
    use super::Image;

    include!(concat!(env!("OUT_DIR"), "/images.rs"));
}

/// Whether the plugin was built with its kernels.
pub(crate) const fn is_built() -> bool {
    cfg!(cuda_kernels)
}

/// Modules of a device, loaded at their first use.
pub(crate) struct Modules([OnceLock<Handle>; images::COUNT]);

impl Default for Modules {
    fn default() -> Self {
        Self([const { OnceLock::new() }; images::COUNT])
    }
}

/// A handle of the driver, valid as long as the device's context, which is never given back.
#[derive(Clone, Copy)]
struct Handle(usize);

/// A `__global__` function of a kernel file. What was found is kept in it, by device.
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

    /// Its handle on a device whose context is current.
    pub(crate) fn on(&self, device: &Device) -> Result<CUfunction, Fault> {
        let slot = &self.found[device.ordinal()];
        if let Some(handle) = slot.get() {
            return Ok(std::ptr::with_exposed_provenance_mut(handle.0));
        }
        let module = device.modules().get(device, self.image)?;
        let mut function: CUfunction = std::ptr::null_mut();
        // SAFETY: the module is loaded in the current context; the name ends with a zero.
        let status = unsafe { sys::cuModuleGetFunction(&mut function, module, self.name.as_ptr()) };
        check(self.name.to_str().unwrap_or_default(), status)?;
        slot.get_or_init(|| Handle(function.expose_provenance()));
        Ok(function)
    }
}

impl Modules {
    /// The module of an image in the current context.
    fn get(&self, device: &Device, image: &'static Image) -> Result<CUmodule, Fault> {
        let slot = &self.0[image.index];
        if let Some(handle) = slot.get() {
            return Ok(std::ptr::with_exposed_provenance_mut(handle.0));
        }
        let mut module: CUmodule = std::ptr::null_mut();
        let status = {
            let _relaxed = RelaxedCapture::begin();
            // SAFETY: the image is a whole fat binary that lives as long as the process.
            unsafe { sys::cuModuleLoadData(&mut module, image.bytes.as_ptr().cast()) }
        };
        if status != sys::CUresult::CUDA_SUCCESS {
            let free =
                memory(device, DI_SPACE_DEVICE).map_or(String::new(), |(free, _)| format!(" ({free} bytes are free)"));
            return Err(fault(format_args!("the machine code of {} does not load{free}", image.name), status));
        }
        // Of two threads that load it at once, one module is kept and the other stays unused.
        let kept = slot.get_or_init(|| Handle(module.expose_provenance()));
        Ok(std::ptr::with_exposed_provenance_mut(kept.0))
    }
}

/// While it lives, this thread may load code although one of its streams is being captured; what it does then is no part of
/// the capture.
struct RelaxedCapture(sys::CUstreamCaptureMode);

impl RelaxedCapture {
    fn begin() -> Self {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the mode is writable and becomes the one that was. Where the call fails, loading tells what is wrong.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
        Self(mode)
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        // SAFETY: as in `begin`.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.0) };
    }
}
