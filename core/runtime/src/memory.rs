//! The opened device and its stream, and who gives memory back to it.
//!
//! Queued work may still touch memory whose last owner is gone. Dropped buffers are therefore *retired* and freed after
//! the next wait for the stream, or at once when the device takes no more work.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use deepinfer_plugin_api::abi::{DI_E_INTERNAL, DI_SPACE_DEVICE, DiBuffer, DiDevice, DiStream};

use crate::backend::{LoadedBackend, PluginError, call};
use crate::raw::take_error;

/// An open device with its one stream. Buffers and the device handle share it; the last of them closes it.
pub(crate) struct Shared {
    pub(crate) backend: &'static LoadedBackend,
    pub(crate) device: *mut DiDevice,
    /// Used by the thread that owns the `OpenDevice`, and by `drop`, when nobody else is left.
    pub(crate) stream: *mut DiStream,
    retired: Mutex<Retired>,
    /// Length of the list of retired buffers, to see without the lock that it is empty.
    retired_count: AtomicUsize,
}

#[derive(Default)]
struct Retired {
    buffers: Vec<*mut DiBuffer>,
    /// The device handle is gone and the stream has run dry: buffers may be freed directly.
    is_idle: bool,
}

// SAFETY: the pointers are only passed back to the plugin. Its table takes `device_*`, `alloc` and `free_` from any
// thread; the stream is used as its field says.
unsafe impl Send for Shared {}
// SAFETY: as above; the list of retired buffers is behind a lock.
unsafe impl Sync for Shared {}

impl Shared {
    /// Opens device `index` and creates its stream.
    pub(crate) fn open(backend: &'static LoadedBackend, index: u32) -> Result<Arc<Self>, PluginError> {
        let (mut device, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: `raw` is the plugin's, the out-pointers are writable, and the device is closed again if the stream
        // cannot be made.
        unsafe {
            if let Some(error) = take_error(call!(backend, device_open, index, std::ptr::null(), &raw mut device)) {
                return Err(error);
            }
            if let Some(error) = take_error(call!(backend, stream_create, device, 0, 0, &raw mut stream)) {
                call!(backend, device_close, device);
                return Err(error);
            }
        }
        let (retired, retired_count) = Default::default();
        Ok(Arc::new(Self { backend, device, stream, retired, retired_count }))
    }

    /// Waits until the stream has run dry, then frees what was retired before.
    ///
    /// # Errors
    /// The first fault of the work that was waited for.
    ///
    /// # Safety
    /// No other thread uses the stream.
    pub(crate) unsafe fn synchronize(&self) -> Result<(), PluginError> {
        // SAFETY: the stream is alive until `drop`, and the caller keeps other threads off it.
        let fault = unsafe { take_error(call!(self.backend, stream_sync, self.stream)) };
        // After a fault, too: the work is over, however it ended.
        self.free_retired();
        fault.map_or(Ok(()), Err)
    }

    /// Whether buffers wait to be freed.
    pub(crate) fn has_retired(&self) -> bool {
        self.retired_count.load(Ordering::Relaxed) > 0
    }

    /// The device handle is gone: no work will come any more.
    ///
    /// # Safety
    /// As [`Shared::synchronize`], now and later.
    pub(crate) unsafe fn finish(&self) {
        // SAFETY: the same contract.
        if let Err(fault) = unsafe { self.synchronize() } {
            tracing::warn!("{}: the last work on the device failed: {fault}", self.backend.name());
        }
        self.retired().is_idle = true;
        // Buffers may have been retired between the wait and the flag.
        self.free_retired();
    }

    fn free_retired(&self) {
        let mut retired = self.retired();
        for buffer in retired.buffers.drain(..) {
            // SAFETY: from `alloc` of this device, given up by its owner, freed once; the stream has passed its last use.
            unsafe { call!(self.backend, free_, buffer) }
        }
        self.retired_count.store(0, Ordering::Relaxed);
    }

    fn retire(&self, buffer: *mut DiBuffer) {
        let mut retired = self.retired();
        if retired.is_idle {
            // SAFETY: as in `free_retired`; the stream has run dry for good.
            unsafe { call!(self.backend, free_, buffer) }
        } else {
            retired.buffers.push(buffer);
            self.retired_count.store(retired.buffers.len(), Ordering::Relaxed);
        }
    }

    fn retired(&self) -> std::sync::MutexGuard<'_, Retired> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: nobody else holds the device: every buffer holds an `Arc` of it, so they are all freed, and the handle
        // made the stream run dry. Streams go before their device.
        unsafe {
            call!(self.backend, stream_destroy, self.stream);
            call!(self.backend, device_close, self.device);
        }
    }
}

/// Device memory; retired when dropped.
pub(crate) struct Buffer {
    shared: Arc<Shared>,
    raw: *mut DiBuffer,
    address: *mut c_void,
}

// SAFETY: the pointers are only passed to the plugin, which takes `free_` from any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above; nothing can be done with a shared buffer.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `bytes` aligned to `align`, a power of two.
    pub(crate) fn new(shared: &Arc<Shared>, bytes: u64, align: u64) -> Result<Self, PluginError> {
        let (mut raw, mut address) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the device is open and the out-pointers are writable.
        let error = unsafe {
            let (buffer, at) = (&raw mut raw, &raw mut address);
            take_error(call!(shared.backend, alloc, shared.device, DI_SPACE_DEVICE, bytes, align, buffer, at))
        };
        if let Some(error) = error {
            return Err(error);
        }
        let buffer = Self { shared: shared.clone(), raw, address };
        if bytes > 0 && (address.is_null() || !address.addr().is_multiple_of(align as usize)) {
            return Err(PluginError {
                code: DI_E_INTERNAL,
                flags: 0,
                vendor_code: 0,
                message: format!("{bytes} bytes aligned to {align} were promised at {address:p}"),
                origin: String::new(),
            });
        }
        Ok(buffer)
    }

    /// Device address of the first byte.
    pub(crate) fn address(&self) -> *mut c_void {
        self.address
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.shared.retire(self.raw);
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "device memory at {:p}", self.address)
    }
}
