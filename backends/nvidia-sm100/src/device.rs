//! An opened GPU: its primary context, in which everything else lives.

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute as Attribute};
use deepinfer_plugin_api::sdk::{Fault, FaultCode};

use crate::error::{check, fault};
use crate::image::Modules;

/// Most devices of a process.
pub(crate) const MOST_DEVICES: usize = 64;

/// Oldest machine code: that of Hopper.
const LEAST_CAPABILITY: (i32, i32) = (9, 0);

/// An opened device. The context is the primary one, as other CUDA libraries of the process use it; it is not given back,
/// because handles of functions and memory would die with it.
pub(crate) struct Device {
    ordinal: usize,
    context: CUcontext,
    modules: Modules,
    capability: (i32, i32),
    multiprocessors: u32,
}

// SAFETY: a context may be made current on any thread, also on several at once.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Retains the context of device `ordinal`.
    pub(crate) fn open(ordinal: usize) -> Result<Self, Fault> {
        if ordinal >= MOST_DEVICES {
            return Err(Fault::unsupported(format!(
                "device {ordinal} is beyond the {MOST_DEVICES} that are looked after"
            )));
        }
        let (mut device, mut context): (CUdevice, CUcontext) = (0, std::ptr::null_mut());
        // SAFETY: the driver has started, since the device was listed; both addresses are writable.
        unsafe {
            check("the device", sys::cuDeviceGet(&mut device, ordinal as i32))?;
            let capability = (
                attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            );
            if capability < LEAST_CAPABILITY {
                let ((has, minor), (needs, _)) = (capability, LEAST_CAPABILITY);
                return Err(Fault::unsupported(format!(
                    "device {ordinal} has compute capability {has}.{minor}, but the kernels need {needs}.0 or later"
                )));
            }
            match sys::cuDevicePrimaryCtxRetain(&mut context, device) {
                sys::CUresult::CUDA_SUCCESS => {}
                // At this point nothing is lost: the device is somebody else's, or out of order.
                sys::CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => {
                    return Err(Fault::new(
                        FaultCode::Internal,
                        "the driver gives no context (CUDA_ERROR_DEVICE_UNAVAILABLE): another process has the device to \
                         itself, or it is out of order; nvidia:N chooses device N",
                    ));
                }
                status => return Err(fault("the device's context", status)),
            }
            let multiprocessors =
                attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.unsigned_abs();
            Ok(Self { ordinal, context, modules: Modules::default(), capability, multiprocessors })
        }
    }

    /// Makes its context that of the calling thread. Every call of the driver is made behind this: threads come from
    /// anywhere, and other libraries have contexts of their own.
    pub(crate) fn bind(&self) -> Result<(), Fault> {
        // SAFETY: the context is retained for the life of the process.
        check("the device's context", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    /// Its number.
    pub(crate) fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Whether it runs code for Hopper's own instructions.
    pub(crate) fn is_hopper(&self) -> bool {
        self.capability == (9, 0)
    }

    /// Its multiprocessors.
    pub(crate) fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Modules that are loaded on it.
    pub(crate) fn modules(&self) -> &Modules {
        &self.modules
    }
}

/// An attribute of a device.
///
/// # Safety
/// `device` is one of the driver's.
pub(crate) unsafe fn attribute(device: CUdevice, which: Attribute) -> Result<i32, Fault> {
    let mut value = 0;
    // SAFETY: the caller's contract; the address is writable.
    check("an attribute of a device", unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) })?;
    Ok(value)
}
