//! What the CUDA driver says about its devices. None of these calls creates a context.

use cudarc::driver::{DriverError, result, sys};
use deepinfer_plugin_api::abi::{DI_DEVICE_CUDA, DI_SPACE_DEVICE, DI_SPACE_HOST_PINNED};
use deepinfer_plugin_api::sdk::{DeviceInfo, Fault, SpaceInfo};

use crate::error::{check, fault};

/// The oldest driver that loads the kernels, as the driver counts: that of CUDA 13.0.
const LEAST_VERSION: i32 = 13_000;

/// NVIDIA's number in the PCI registry.
const PCI_VENDOR: u32 = 0x10DE;

/// Lists devices.
///
/// # Errors
/// Says why there is none.
pub(crate) fn devices() -> Result<Vec<DeviceInfo>, Fault> {
    // Asked first, because every other function of the bindings panics when the library is absent.
    // SAFETY: opens the driver's library by its name, as every CUDA program does.
    if !unsafe { sys::is_culib_present() } {
        return Err(Fault::unsupported("no NVIDIA driver: libcuda.so.1 was not found"));
    }
    let count = match result::init().and_then(|()| result::device::get_count()) {
        Ok(count) => count,
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => 0,
        Err(e) => return Err(fault("the NVIDIA driver does not start", e.0)),
    };
    require_recent()?;
    if count == 0 {
        return Err(Fault::unsupported("the NVIDIA driver is installed, but it finds no device"));
    }
    (0..count).map(describe).collect()
}

/// Refuses a driver that does not know the machine code that is shipped.
fn require_recent() -> Result<(), Fault> {
    let mut version = 0;
    // SAFETY: the address is writable.
    check("the version of the NVIDIA driver", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    if version < LEAST_VERSION {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        return Err(Fault::unsupported(format!(
            "the NVIDIA driver is of CUDA {major}.{minor}, but the kernels need one of CUDA 13.0 (driver 580) or later"
        )));
    }
    Ok(())
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
        // SAFETY: as above.
        let total_bytes = unsafe { result::device::total_mem(device) }? as u64;
        let space = |kind, total_bytes| SpaceInfo { kind, min_align: 256, granularity: 512, total_bytes };
        Ok(DeviceInfo {
            device_type: DI_DEVICE_CUDA,
            name: result::device::get_name(device)?,
            arch: format!("sm_{}{}", attribute(MAJOR)?, attribute(MINOR)?),
            total_bytes,
            compute_units: attribute(MULTIPROCESSORS)?.unsigned_abs(),
            pci_vendor: PCI_VENDOR,
            spaces: vec![space(DI_SPACE_DEVICE, total_bytes), space(DI_SPACE_HOST_PINNED, 0)],
            ..DeviceInfo::default()
        })
    };
    ask().map_err(|DriverError(status)| fault(format_args!("NVIDIA device {ordinal} does not answer"), status))
}
