//! Allocations: plain ones on the device, and host memory that is mapped into it.

use std::ffi::c_void;
use std::sync::Arc;

use deepinfer_plugin_api::abi::{DI_SPACE_DEVICE, DI_SPACE_HOST_PINNED};
use deepinfer_plugin_api::sdk::{Fault, FaultCode};

use crate::acl::sys;
use crate::device::{Device, Pinned};
use crate::error::{Class, class};

/// What the runtime aligns to at least.
const NATURAL_ALIGN: u64 = 64;

/// Copies of a kernel move blocks of this many bytes: an allocation is a multiple of it.
pub(crate) const GRANULARITY: u64 = 32;

/// An allocation.
pub(crate) struct Buffer {
    device: Arc<Device>,
    space: u32,
    base: *mut c_void,
}

// SAFETY: the address is only given back, from any thread.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Allocates `bytes`, possibly 0, and says where they begin.
    pub(crate) fn new(device: &Arc<Device>, space: u32, bytes: u64, align: u64) -> Result<(Self, *mut c_void), Fault> {
        // An allocation of nothing has an address of its own all the same.
        let padded = bytes.max(1).checked_next_multiple_of(GRANULARITY);
        let padded = padded.and_then(|padded| padded.checked_add(if align > NATURAL_ALIGN { align } else { 0 }));
        let padded = padded.and_then(|padded| usize::try_from(padded).ok());
        let padded = padded.ok_or_else(|| {
            let text = format!("{bytes} bytes aligned to {align} are more than the address space has");
            Fault::new(FaultCode::OutOfMemory, text)
        })?;
        let acl = device.bind()?;
        let mut base: *mut c_void = std::ptr::null_mut();
        let code = match space {
            // SAFETY: the context is current; the address is writable.
            DI_SPACE_DEVICE => unsafe { acl.aclrtMalloc(&mut base, padded, sys::ACL_MEM_MALLOC_HUGE_FIRST) },
            // SAFETY: as above.
            DI_SPACE_HOST_PINNED => unsafe { acl.aclrtMallocHost(&mut base, padded) },
            _ => return Err(unknown_space(space)),
        };
        if code != sys::ACL_SUCCESS {
            let what = match (space, free_after(device, space, code)) {
                (DI_SPACE_DEVICE, Some(free)) => {
                    format!("{bytes} bytes of device memory are needed, but {free} are free")
                }
                (_, Some(free)) => format!("{bytes} bytes of pinned host memory are needed, but {free} are free"),
                _ => format!("{bytes} bytes are needed in memory space {space}"),
            };
            return Err(device.fault(what, code));
        }
        let buffer = Self { device: Arc::clone(device), space, base };
        if space == DI_SPACE_HOST_PINNED {
            buffer.map(acl, padded)?;
        }
        let address = base.addr().next_multiple_of(align.max(1) as usize);
        Ok((buffer, base.map_addr(|_| address)))
    }

    /// Maps pinned memory into the device, so that kernels read it.
    fn map(&self, acl: &sys::AscendCl, bytes: usize) -> Result<(), Fault> {
        let Ok(register) = acl.aclrtHostRegister.as_ref() else {
            return Err(Fault::unsupported("the CANN that is installed has no aclrtHostRegister"));
        };
        let mut on_device: *mut c_void = std::ptr::null_mut();
        // SAFETY: our own allocation, writable as the mapping of a 950 wants it; the address is writable.
        let code = unsafe { register(self.base, bytes as u64, sys::ACL_HOST_REGISTER_MAPPED, &mut on_device) };
        if code != sys::ACL_SUCCESS {
            let mut fault = self.device.fault("host memory that the device reads", code);
            if fault.code != FaultCode::DeviceLost {
                fault.code = FaultCode::Unsupported;
            }
            return Err(fault);
        }
        let on_device = on_device.expose_provenance();
        self.device.note_pinned(self.base.expose_provenance(), Some(Pinned { bytes, on_device }));
        Ok(())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let is_mapped = self.space == DI_SPACE_HOST_PINNED && self.device.pinned(self.base.addr()).is_some();
        if is_mapped {
            self.device.note_pinned(self.base.addr(), None);
        }
        // A lost device has nothing left to free.
        let Ok(acl) = self.device.bind() else { return };
        // SAFETY: allocated in this space, and freed once; the boundary promises that no work uses it.
        let (unmapped, freed) = unsafe {
            let unmapped = match acl.aclrtHostUnregister.as_ref() {
                Ok(unregister) if is_mapped => unregister(self.base),
                _ => sys::ACL_SUCCESS,
            };
            let freed = match self.space {
                DI_SPACE_HOST_PINNED => acl.aclrtFreeHost(self.base),
                _ => acl.aclrtFree(self.base),
            };
            (unmapped, freed)
        };
        // The error of earlier work can come back here; whoever waits for that work reports it.
        let _ = self.device.check("host memory that the device reads", unmapped);
        let _ = self.device.check("memory that is given back", freed);
    }
}

/// Free bytes of a space after a call that gave `code`, for its sentence. A lost device is not asked: that would only use up the words
/// of the runtime, which it tells once.
pub(crate) fn free_after(device: &Device, space: u32, code: sys::aclError) -> Option<u64> {
    if class(code) == Class::DeviceLost {
        return None;
    }
    memory(device, space).ok().map(|(free, _)| free)
}

/// Free and total bytes of a space.
pub(crate) fn memory(device: &Device, space: u32) -> Result<(u64, u64), Fault> {
    match space {
        DI_SPACE_DEVICE => {
            let acl = device.bind()?;
            let (mut free, mut total) = (0, 0);
            // SAFETY: the context is current; both addresses are writable.
            let code = unsafe { acl.aclrtGetMemInfo(sys::ACL_HBM_MEM, &mut free, &mut total) };
            device.check("the memory of the device", code)?;
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
