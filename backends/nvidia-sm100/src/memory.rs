//! Allocations: plain ones on the device, and host memory that the device reads directly.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdeviceptr};
use deepinfer_plugin_api::abi::{DI_SPACE_DEVICE, DI_SPACE_HOST_PINNED};
use deepinfer_plugin_api::sdk::Fault;

use crate::device::Device;
use crate::error::{check, fault};

/// What the driver aligns to.
const NATURAL_ALIGN: u64 = 256;

/// An allocation.
pub(crate) struct Buffer {
    device: Arc<Device>,
    space: u32,
    base: CUdeviceptr,
}

impl Buffer {
    /// Allocates `bytes`, possibly 0, and says where they begin.
    pub(crate) fn new(device: &Arc<Device>, space: u32, bytes: u64, align: u64) -> Result<(Self, *mut c_void), Fault> {
        device.bind()?;
        // An allocation of nothing has an address of its own all the same.
        let padded = bytes.max(1).checked_add(if align > NATURAL_ALIGN { align } else { 0 });
        let padded = padded.and_then(|bytes| usize::try_from(bytes).ok());
        let too_large = || {
            Fault::new(
                deepinfer_plugin_api::sdk::FaultCode::OutOfMemory,
                format!("{bytes} bytes aligned to {align} are more than the address space has"),
            )
        };
        let padded = padded.ok_or_else(too_large)?;
        let mut base: CUdeviceptr = 0;
        let status = match space {
            // SAFETY: the context is current; the address is writable.
            DI_SPACE_DEVICE => unsafe { sys::cuMemAlloc_v2(&mut base, padded) },
            DI_SPACE_HOST_PINNED => {
                let mut host: *mut c_void = std::ptr::null_mut();
                let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
                // SAFETY: as above.
                let status = unsafe { sys::cuMemHostAlloc(&mut host, padded, flags) };
                base = host.expose_provenance() as CUdeviceptr;
                status
            }
            _ => return Err(unknown_space(space)),
        };
        if status != sys::CUresult::CUDA_SUCCESS {
            let what = match (space, memory(device, space)) {
                (DI_SPACE_DEVICE, Ok((free, _))) => {
                    format!("{bytes} bytes of device memory are needed, but {free} are free")
                }
                (_, Ok((free, _))) => format!("{bytes} bytes of pinned host memory are needed, but {free} are free"),
                _ => format!("{bytes} bytes are needed in memory space {space}"),
            };
            return Err(fault(what, status));
        }
        let address = base.next_multiple_of(align.max(1));
        let buffer = Self { device: Arc::clone(device), space, base };
        Ok((buffer, std::ptr::with_exposed_provenance_mut(address as usize)))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A lost device has nothing left to free.
        if self.device.bind().is_err() {
            return;
        }
        // SAFETY: allocated in this space, and freed once; the boundary promises that no work uses it.
        let status = unsafe {
            match self.space {
                DI_SPACE_HOST_PINNED => sys::cuMemFreeHost(std::ptr::with_exposed_provenance_mut(self.base as usize)),
                _ => sys::cuMemFree_v2(self.base),
            }
        };
        // The error of earlier work can come back here; whoever waits for that work reports it.
        let _ = status;
    }
}

/// Free and total bytes of a space.
pub(crate) fn memory(device: &Device, space: u32) -> Result<(u64, u64), Fault> {
    match space {
        DI_SPACE_DEVICE => {
            device.bind()?;
            let (mut free, mut total) = (0, 0);
            // SAFETY: the context is current; both addresses are writable.
            check("the memory of the device", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
            Ok((free as u64, total as u64))
        }
        DI_SPACE_HOST_PINNED => host_memory(),
        _ => Err(unknown_space(space)),
    }
}

/// What the host has, in bytes: any of it can be pinned.
fn host_memory() -> Result<(u64, u64), Fault> {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kibibytes| kibibytes * 1024)
    };
    let both = field("MemAvailable:").zip(field("MemTotal:"));
    both.ok_or_else(|| Fault::unsupported("this system does not say in /proc/meminfo how much memory is free"))
}

fn unknown_space(space: u32) -> Fault {
    Fault::invalid(format!(
        "memory space {space} does not exist; there are {DI_SPACE_DEVICE} (device) and {DI_SPACE_HOST_PINNED} (pinned host memory)"
    ))
}
