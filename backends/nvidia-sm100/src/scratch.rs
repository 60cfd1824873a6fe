//! Memory that a call needs only while its kernels run.

use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUdeviceptr, CUmemoryPool};
use deepinfer_plugin_api::sdk::Fault;

use crate::device::MOST_DEVICES;
use crate::error::check;
use crate::stream::Stream;

/// What the driver may keep between calls instead of giving it back at every synchronisation.
const MOST_KEPT: u64 = 256 << 20;

/// An allocation in the order of a stream: what is queued before the drop may use it. In a capture it is one of the graph's own.
pub(crate) struct Scratch<'a> {
    stream: &'a Stream,
    base: CUdeviceptr,
}

impl<'a> Scratch<'a> {
    /// `bytes` zeros, at least one.
    pub(crate) fn zeroed(stream: &'a Stream, bytes: usize) -> Result<Self, Fault> {
        stream.device().bind()?;
        keep_memory(stream)?;
        let mut base: CUdeviceptr = 0;
        // SAFETY: the stream is alive, in the current context; the address is writable.
        check("scratch memory", unsafe { sys::cuMemAllocAsync(&mut base, bytes, stream.raw()) })?;
        let scratch = Self { stream, base };
        // SAFETY: the range was just allocated for work of this stream from here on.
        check("scratch memory", unsafe { sys::cuMemsetD8Async(base, 0, bytes, stream.raw()) })?;
        Ok(scratch)
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> u64 {
        self.base
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated in the order of this stream, freed once, behind the work that uses it.
        let _ = unsafe { sys::cuMemFreeAsync(self.base, self.stream.raw()) };
    }
}

/// Tells the pool of the device, once, to keep memory that is free.
fn keep_memory(stream: &Stream) -> Result<(), Fault> {
    static TOLD: [OnceLock<()>; MOST_DEVICES] = [const { OnceLock::new() }; MOST_DEVICES];
    let told = &TOLD[stream.device().ordinal()];
    if told.get().is_some() {
        return Ok(());
    }
    let mut device = 0;
    let mut pool: CUmemoryPool = std::ptr::null_mut();
    let mut kept = MOST_KEPT;
    let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the context is current; the addresses are writable, and the attribute is a number of 64 bits.
    unsafe {
        check("the current device", sys::cuCtxGetDevice(&mut device))?;
        check("the memory pool of the device", sys::cuDeviceGetDefaultMemPool(&mut pool, device))?;
        check("the memory pool of the device", sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut kept).cast()))?;
    }
    told.get_or_init(|| ());
    Ok(())
}
