//! Streams and events, and the faults that kernels find in values.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUstream};
use deepinfer_plugin_api::generated::OPS;
use deepinfer_plugin_api::sdk::{Fault, FaultCode};

use crate::device::Device;
use crate::error::check;

/// A word in pinned host memory. A kernel that meets a wrong value writes there which op, which argument and how it is
/// wrong, unless something is there already; whoever waits for the work takes it out.
pub(crate) struct FaultWord {
    device: Arc<Device>,
    host: *mut c_void,
}

// SAFETY: the word is read and written atomically, by the host and by kernels.
unsafe impl Send for FaultWord {}
// SAFETY: as above.
unsafe impl Sync for FaultWord {}

impl FaultWord {
    fn new(device: &Arc<Device>) -> Result<Self, Fault> {
        let mut host: *mut c_void = std::ptr::null_mut();
        // SAFETY: the context is current; the address is writable. The word is zeroed before anyone else knows it.
        unsafe {
            check("pinned memory", sys::cuMemHostAlloc(&mut host, 4, sys::CU_MEMHOSTALLOC_DEVICEMAP))?;
            host.cast::<u32>().write(0);
        }
        Ok(Self { device: Arc::clone(device), host })
    }

    /// Its address for kernels.
    pub(crate) fn address(&self) -> CUdeviceptr {
        self.host.expose_provenance() as CUdeviceptr
    }

    /// Takes out what was found.
    fn take(&self) -> Result<(), Fault> {
        // SAFETY: the word lives until it is dropped; every access is atomic.
        let word = unsafe { AtomicU32::from_ptr(self.host.cast()) }.swap(0, Ordering::AcqRel);
        match word {
            0 => Ok(()),
            word => Err(describe(word)),
        }
    }
}

impl Drop for FaultWord {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated by `cuMemHostAlloc`; no work of the stream is left.
            let _ = unsafe { sys::cuMemFreeHost(self.host) };
        }
    }
}

/// The sentence of a fault word: op id in the low 16 bits, then the place of the argument in the catalogue and of the rule
/// among its refusals, plus one, in a byte each.
fn describe(word: u32) -> Fault {
    let op = OPS.iter().find(|op| op.id == word & 0xFFFF);
    let Some(op) = op else {
        return Fault::new(FaultCode::Internal, format!("a kernel left the fault {word:#x}, which no op has"));
    };
    let argument = op.args.get((word >> 16 & 0xFF) as usize).map_or("an argument", |arg| arg.name);
    let rule = (word >> 24).checked_sub(1).and_then(|rule| op.refuses.get(rule as usize));
    let why = rule.map_or("a value is wrong", |rule| rule.when);
    Fault::invalid(format!("{argument}: {why}")).or_origin(op.name)
}

/// A stream.
pub(crate) struct Stream {
    device: Arc<Device>,
    raw: CUstream,
    faults: Arc<FaultWord>,
}

// SAFETY: a stream may be used from any thread; the boundary promises one at a time.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream that does not wait for the default one.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, Fault> {
        device.bind()?;
        let mut raw: CUstream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; the address is writable.
        check("a stream", unsafe { sys::cuStreamCreate(&mut raw, flags) })?;
        let faults = Arc::new(FaultWord::new(device)?);
        Ok(Self { device: Arc::clone(device), raw, faults })
    }

    /// The device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The driver's handle.
    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    /// Where its kernels leave what they find.
    pub(crate) fn faults(&self) -> &Arc<FaultWord> {
        &self.faults
    }

    /// Queues that `bytes` bytes become zero.
    ///
    /// # Safety
    /// They are memory of the device that stays until the work is done.
    pub(crate) unsafe fn zero(&self, at: CUdeviceptr, bytes: usize) -> Result<(), Fault> {
        self.device.bind()?;
        // SAFETY: the stream is alive; the caller promises the memory.
        check("a fill", unsafe { sys::cuMemsetD8Async(at, 0, bytes, self.raw) })
    }

    /// Waits for all work.
    pub(crate) fn sync(&self) -> Result<(), Fault> {
        self.device.bind()?;
        // SAFETY: the stream is alive.
        check("the stream", unsafe { sys::cuStreamSynchronize(self.raw) })?;
        self.faults.take()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: created by `cuStreamCreate`. Work that is left ends by itself; the fault word must outlive it.
            unsafe {
                let _ = sys::cuStreamSynchronize(self.raw);
                let _ = sys::cuStreamDestroy_v2(self.raw);
            }
        }
    }
}

/// A point in a stream.
pub(crate) struct Event {
    device: Arc<Device>,
    raw: CUevent,
    /// Of the stream in which it was recorded last.
    faults: std::sync::Mutex<Option<Arc<FaultWord>>>,
}

// SAFETY: an event may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that has passed.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, Fault> {
        device.bind()?;
        let mut raw: CUevent = std::ptr::null_mut();
        // SAFETY: the context is current; the address is writable. With timing, for `event_elapsed`.
        check("an event", unsafe { sys::cuEventCreate(&mut raw, sys::CUevent_flags::CU_EVENT_DEFAULT as u32) })?;
        Ok(Self { device: Arc::clone(device), raw, faults: std::sync::Mutex::new(None) })
    }

    /// Marks the present end of a stream.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), Fault> {
        self.device.bind()?;
        // SAFETY: both are alive and of one context.
        check("the record of an event", unsafe { sys::cuEventRecord(self.raw, stream.raw) })?;
        *self.lock() = Some(Arc::clone(&stream.faults));
        Ok(())
    }

    /// Makes later work of a stream wait.
    pub(crate) fn wait(&self, stream: &Stream) -> Result<(), Fault> {
        self.device.bind()?;
        // SAFETY: both are alive.
        check("the wait for an event", unsafe { sys::cuStreamWaitEvent(stream.raw, self.raw, 0) })
    }

    /// Whether it has passed.
    pub(crate) fn query(&self) -> Result<bool, Fault> {
        self.device.bind()?;
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => {
                check("the event", status)?;
                self.take_faults().map(|()| true)
            }
        }
    }

    /// Blocks until it has passed.
    pub(crate) fn sync(&self) -> Result<(), Fault> {
        self.device.bind()?;
        // SAFETY: the event is alive.
        check("the event", unsafe { sys::cuEventSynchronize(self.raw) })?;
        self.take_faults()
    }

    /// Milliseconds from this one to another; both have passed.
    pub(crate) fn elapsed(&self, to: &Event) -> Result<f32, Fault> {
        self.device.bind()?;
        let mut milliseconds = 0.0;
        // SAFETY: both are alive; the address is writable.
        check("the time between events", unsafe { sys::cuEventElapsedTime_v2(&mut milliseconds, self.raw, to.raw) })?;
        Ok(milliseconds)
    }

    /// Later work of the stream may have left the fault: to report it early is allowed, to lose it is not.
    fn take_faults(&self) -> Result<(), Fault> {
        self.lock().as_ref().map_or(Ok(()), |faults| faults.take())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<FaultWord>>> {
        self.faults.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: created by `cuEventCreate`, destroyed once.
            let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}
