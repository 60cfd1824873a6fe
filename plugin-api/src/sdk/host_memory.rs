//! Memory of the host, for backends that compute there.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;

use crate::sdk::{Fault, FaultCode};

/// An aligned allocation; freed when dropped.
pub struct HostMemory {
    address: *mut u8,
    layout: Layout,
}

// SAFETY: plain memory, owned by this value.
unsafe impl Send for HostMemory {}

impl HostMemory {
    /// Allocates `bytes` aligned to `align`. The content is undefined. Zero bytes get an address, too.
    ///
    /// # Errors
    /// Memory ran out, or the size does not fit the address space.
    pub fn new(bytes: u64, align: u64) -> Result<Self, Fault> {
        let layout = usize::try_from(bytes.max(1))
            .ok()
            .and_then(|b| Layout::from_size_align(b, usize::try_from(align).ok()?).ok())
            .ok_or_else(|| Fault::invalid(format!("{bytes} bytes aligned to {align} do not fit the address space")))?;
        // SAFETY: the layout is not empty.
        let address = unsafe { alloc(layout) };
        if address.is_null() {
            return Err(Fault::new(FaultCode::OutOfMemory, format!("{bytes} bytes of host memory are not available")));
        }
        Ok(Self { address, layout })
    }

    /// First byte.
    pub fn address(&self) -> *mut c_void {
        self.address.cast()
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: from `alloc` with this layout.
        unsafe { dealloc(self.address, self.layout) }
    }
}
