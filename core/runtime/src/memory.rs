//! The opened device that its streams share, and who gives memory back to it.
//!
//! Queued work may still touch memory whose last owner is gone, whichever stream it was queued on. What is dropped is
//! therefore *retired*, and given back once every stream that had work at that moment has been waited for.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use deepinfer_ops::OpError;
use deepinfer_plugin_api::abi::{
    DI_E_INTERNAL, DI_SPACE_DEVICE, DiBackend, DiBuffer, DiDevice, DiEvent, DiGraphExec, DiPlan, DiPlanDestroyFn,
};

use crate::backend::{LoadedBackend, PluginError, call};
use crate::lifecycle::Lease;
use crate::raw::take_error;

/// An open device. Streams, buffers, events and plans share it; the last of them closes it.
pub(crate) struct Opened {
    pub(crate) backend: &'static LoadedBackend,
    pub(crate) device: *mut DiDevice,
    /// Set by the first error after which the device is unusable; every later call of every stream gives it again.
    pub(crate) lost: OnceLock<OpError>,
    state: Mutex<State>,
    /// Retired buffers, to see without the lock that there is none.
    retired_buffers: AtomicUsize,
    /// Last: the backend may end when the device is closed.
    _lease: Lease,
}

#[derive(Default)]
struct State {
    /// Number of the latest retirement.
    clock: u64,
    /// In the order of their numbers.
    retired: VecDeque<(u64, Retired)>,
    streams: Vec<Arc<Progress>>,
}

/// How far a stream has come, as others may see it.
#[derive(Default)]
pub(crate) struct Progress {
    /// Whether work may have been queued since the last wait. Set by the thread that uses the stream before it queues,
    /// which is before it can drop what the work touches; who retires that later therefore sees it.
    busy: AtomicBool,
    /// Retirements up to this number were before the last wait began, or before an event that has passed.
    passed: AtomicU64,
}

/// What queued work may still use.
pub(crate) enum Retired {
    /// Memory.
    Buffer(*mut DiBuffer),
    /// A plan, and what destroys it.
    Plan(DiPlanDestroyFn, *mut DiPlan),
    /// An event, for which a stream may wait.
    Event(*mut DiEvent),
    /// A captured command list, and what destroys it.
    Graph(unsafe extern "C" fn(*mut DiBackend, *mut DiGraphExec), *mut DiGraphExec),
}

// SAFETY: the pointers are only passed back to the plugin, which takes calls about devices and memory from any thread.
unsafe impl Send for Opened {}
// SAFETY: as above; what is retired is behind a lock.
unsafe impl Sync for Opened {}

impl Opened {
    /// Opens device `index`.
    pub(crate) fn open(backend: &'static LoadedBackend, index: u32) -> Result<Arc<Self>, PluginError> {
        let lease = backend.lease()?;
        let mut device = std::ptr::null_mut();
        // SAFETY: `raw` is the plugin's and the out-pointer is writable.
        match unsafe { take_error(call!(backend, device_open, index, std::ptr::null(), &raw mut device)) } {
            Some(error) => Err(error),
            None => {
                let (lost, state, retired_buffers) = Default::default();
                Ok(Arc::new(Self { backend, device, lost, state, retired_buffers, _lease: lease }))
            }
        }
    }

    /// A stream exists from here on; it has no work yet.
    pub(crate) fn add_stream(&self) -> Arc<Progress> {
        let progress = Arc::new(Progress::default());
        self.state().streams.push(progress.clone());
        progress
    }

    /// A stream has run dry for good.
    pub(crate) fn remove_stream(&self, progress: &Arc<Progress>) {
        self.state().streams.retain(|stream| !Arc::ptr_eq(stream, progress));
        self.collect();
    }

    /// Number of the latest retirement: what a wait that begins now will have passed.
    pub(crate) fn now(&self) -> u64 {
        self.state().clock
    }

    /// A wait for a stream is over that began at `since`.
    pub(crate) fn passed(&self, progress: &Progress, since: u64) {
        progress.busy.store(false, Ordering::Release);
        self.passed_event(progress, since);
    }

    /// An event of a stream has passed that was recorded after `since`; what came later may be pending.
    pub(crate) fn passed_event(&self, progress: &Progress, since: u64) {
        // Events may be looked at late, after a wait for the stream.
        progress.passed.fetch_max(since, Ordering::AcqRel);
        self.collect();
    }

    /// Whether buffers wait to be freed.
    pub(crate) fn has_retired_buffers(&self) -> bool {
        self.retired_buffers.load(Ordering::Relaxed) > 0
    }

    /// Takes over what its last owner gave up.
    pub(crate) fn retire(&self, what: Retired) {
        {
            let mut state = self.state();
            state.clock += 1;
            let number = state.clock;
            self.retired_buffers.fetch_add(usize::from(matches!(what, Retired::Buffer(_))), Ordering::Relaxed);
            state.retired.push_back((number, what));
        }
        self.collect();
    }

    /// Gives back what no stream can touch any more.
    fn collect(&self) {
        while let Some(what) = self.state().next_free() {
            let backend = self.backend;
            // SAFETY: made by this backend, given up by its owner, given back once; every stream has passed its last use.
            unsafe {
                match what {
                    Retired::Buffer(buffer) => {
                        call!(backend, free_, buffer);
                        self.retired_buffers.fetch_sub(1, Ordering::Relaxed);
                    }
                    Retired::Plan(destroy, plan) => destroy(backend.raw, plan),
                    Retired::Event(event) => call!(backend, event_destroy, event),
                    Retired::Graph(destroy, graph) => destroy(backend.raw, graph),
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the oldest retired thing, if all streams have passed it.
    fn next_free(&mut self) -> Option<Retired> {
        let &(number, _) = self.retired.front()?;
        let is_free = self
            .streams
            .iter()
            .all(|stream| !stream.busy.load(Ordering::Acquire) || number <= stream.passed.load(Ordering::Acquire));
        if is_free { self.retired.pop_front().map(|(_, what)| what) } else { None }
    }
}

impl Progress {
    /// Work is about to be queued.
    #[inline]
    pub(crate) fn begin_work(&self) {
        self.busy.store(true, Ordering::Relaxed);
    }

    /// Whether work may be pending.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: nobody else holds the device: every buffer, event, plan and stream holds an `Arc` of it, and what they
        // retired was given back when the last stream went.
        unsafe { call!(self.backend, device_close, self.device) }
    }
}

/// Device memory, or host memory that the device reads; retired when dropped.
pub(crate) struct Buffer {
    opened: Arc<Opened>,
    raw: *mut DiBuffer,
    address: *mut c_void,
}

// SAFETY: the pointers are only passed to the plugin, which takes `free_` from any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above; nothing can be done with a shared buffer.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `bytes` of device memory aligned to `align`, a power of two.
    pub(crate) fn new(opened: &Arc<Opened>, bytes: u64, align: u64) -> Result<Self, PluginError> {
        Self::in_space(opened, DI_SPACE_DEVICE, bytes, align)
    }

    /// Allocates in a space of the device.
    pub(crate) fn in_space(opened: &Arc<Opened>, space: u32, bytes: u64, align: u64) -> Result<Self, PluginError> {
        let (mut raw, mut address) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the device is open and the out-pointers are writable.
        let error = unsafe {
            let (buffer, at) = (&raw mut raw, &raw mut address);
            take_error(call!(opened.backend, alloc, opened.device, space, bytes, align, buffer, at))
        };
        if let Some(error) = error {
            return Err(error);
        }
        let buffer = Self { opened: opened.clone(), raw, address };
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
        self.opened.retire(Retired::Buffer(self.raw));
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "device memory at {:p}", self.address)
    }
}
