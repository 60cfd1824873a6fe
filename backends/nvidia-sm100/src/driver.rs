//! What the CUDA driver says about its devices. None of these calls creates a context.

#![allow(unsafe_code)]

use std::fmt::Display;

use cudarc::driver::{DriverError, result, sys};
use deepinfer_plugin_api::abi::DI_DEVICE_CUDA;
use deepinfer_plugin_api::sdk::{DeviceInfo, Fault, FaultCode, Probe};

/// NVIDIA's number in the PCI registry.
const PCI_VENDOR: u32 = 0x10DE;

/// The devices of the CUDA driver.
pub(crate) struct Nvidia;

impl Probe for Nvidia {
    const NAME: &'static str = "nvidia";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    fn devices() -> Result<Vec<DeviceInfo>, Fault> {
        // Asked first, because every other function of the bindings panics when the library is absent.
        // SAFETY: opens the driver's library by its name, as every CUDA program does.
        if !unsafe { sys::is_culib_present() } {
            return Err(Fault::unsupported("no NVIDIA driver: libcuda.so.1 was not found"));
        }
        let count = match result::init().and_then(|()| result::device::get_count()) {
            Ok(count) => count,
            Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => 0,
            Err(e) => return Err(fault("the NVIDIA driver does not start", e)),
        };
        if count == 0 {
            return Err(Fault::unsupported("the NVIDIA driver is installed, but it finds no device"));
        }
        (0..count).map(describe).collect()
    }
}

fn describe(ordinal: i32) -> Result<DeviceInfo, Fault> {
    use sys::CUdevice_attribute_enum::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as MULTIPROCESSORS,
    };
    let ask = || {
        let device = result::device::get(ordinal)?;
        // SAFETY: the handle is the driver's own.
        let attribute = |which| unsafe { result::device::get_attribute(device, which) };
        Ok(DeviceInfo {
            device_type: DI_DEVICE_CUDA,
            name: result::device::get_name(device)?,
            arch: format!("sm_{}{}", attribute(MAJOR)?, attribute(MINOR)?),
            // SAFETY: as above.
            total_bytes: unsafe { result::device::total_mem(device) }? as u64,
            compute_units: attribute(MULTIPROCESSORS)?.unsigned_abs(),
            pci_vendor: PCI_VENDOR,
            ..DeviceInfo::default()
        })
    };
    ask().map_err(|e| fault(format_args!("NVIDIA device {ordinal} does not answer"), e))
}

fn fault(what: impl Display, error: DriverError) -> Fault {
    // The name of an error is text of the driver, which may be older than the error.
    let name = error.error_name().map_or_else(|_| "unknown error".to_owned(), |n| n.to_string_lossy().into_owned());
    let mut fault = Fault::new(FaultCode::Internal, format!("{what}: {name}"));
    fault.vendor_code = error.0 as i32;
    fault
}
