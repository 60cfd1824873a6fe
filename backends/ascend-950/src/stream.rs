//! Streams and events.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use deepinfer_plugin_api::abi::{DI_COPY_D2D, DI_COPY_D2H, DI_COPY_H2D, DI_COPY_P2P};
use deepinfer_plugin_api::sdk::{Fault, FaultCode};

use crate::acl::sys::{self, aclrtEvent, aclrtStream};
use crate::device::Device;
use crate::error::LOST;
use crate::faults::{FaultWord, Slot};
use crate::plain;
use crate::vendor::call::Kept;

/// What the runtime's copies within a device want of both addresses.
const COPY_ALIGN: usize = 64;

/// A stream.
pub(crate) struct Stream {
    device: Arc<Device>,
    raw: aclrtStream,
    faults: Arc<FaultWord>,
    slot: Slot,
    is_captured: AtomicBool,
    /// What queued calls of the vendor's ops need, oldest first, with the event behind each, if there is one.
    kept: Mutex<VecDeque<(Option<RawEvent>, Kept)>>,
}

// SAFETY: a stream may be used from any thread; the boundary promises one at a time.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream of its own.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, Fault> {
        let acl = device.bind()?;
        let mut raw: aclrtStream = std::ptr::null_mut();
        // SAFETY: the context is current; the address is writable.
        let code = unsafe { acl.aclrtCreateStreamWithConfig(&mut raw, 0, sys::ACL_STREAM_FAST_LAUNCH) };
        device.check("a stream", code)?;
        let made = FaultWord::new(device, raw).and_then(|faults| Ok((Arc::new(faults), Slot::new(device)?)));
        match made {
            Ok((faults, slot)) => {
                let (is_captured, kept) = Default::default();
                Ok(Self { device: Arc::clone(device), raw, faults, slot, is_captured, kept })
            }
            Err(fault) => {
                // SAFETY: just made, and given back once.
                let code = unsafe { acl.aclrtDestroyStream(raw) };
                let _ = device.check("the end of a stream", code);
                Err(fault)
            }
        }
    }

    /// The device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The runtime's handle.
    pub(crate) fn raw(&self) -> aclrtStream {
        self.raw
    }

    /// Where its kernels leave what they find.
    pub(crate) fn faults(&self) -> &Arc<FaultWord> {
        &self.faults
    }

    /// The address of the word in which a kernel of this stream says that a value is wrong.
    #[allow(dead_code)]
    pub(crate) fn fault_word(&self) -> *mut u8 {
        self.faults.address()
    }

    /// Whether work is recorded instead of done.
    pub(crate) fn is_captured(&self) -> bool {
        self.is_captured.load(Ordering::Relaxed)
    }

    /// Says whether work is recorded from here on.
    pub(crate) fn set_captured(&self, is_captured: bool) {
        self.is_captured.store(is_captured, Ordering::Relaxed);
    }

    /// Notes that a capture could not be ended after `fault`. All that is asked of the device from now on gets the answer that
    /// this gives: of a device that is lost, since the capture also holds what its thread does elsewhere.
    pub(crate) fn give_up(&self, mut fault: Fault) -> Fault {
        if fault.code != FaultCode::DeviceLost {
            fault.code = FaultCode::DeviceLost;
            fault.message += "; the stream stays captured";
            fault.message += LOST;
        }
        self.device.note(fault)
    }

    /// Makes the context current and the word of faults ready for the next work.
    pub(crate) fn begin(&self) -> Result<&'static sys::AscendCl, Fault> {
        let acl = self.device.bind()?;
        if !self.is_captured() {
            self.faults.prepare(&self.device, self.raw)?;
        }
        Ok(acl)
    }

    /// Waits for all work.
    pub(crate) fn sync(&self) -> Result<(), Fault> {
        let acl = self.begin()?;
        let number = if self.is_captured() { 0 } else { self.faults.copy(acl, self.raw, &self.slot)? };
        // SAFETY: the stream is alive.
        self.device.wait("the stream", || unsafe { acl.aclrtSynchronizeStream(self.raw) })?;
        self.lock_kept().clear();
        self.faults.take(number, &self.slot)
    }

    /// Keeps something until the stream has passed what is queued now, and gives up what it has passed. Where no event can be
    /// made for that, it is kept until a later one, or a wait, tells.
    pub(crate) fn keep(&self, what: Kept) -> Result<(), Fault> {
        let (event, done) = match self.mark() {
            Ok(event) => (Some(event), Ok(())),
            Err(fault) => (None, Err(fault)),
        };
        let mut kept = self.lock_kept();
        kept.push_back((event, what));
        let acl = self.device.bind()?;
        while let Some(first) = kept.iter().position(|(event, _)| event.is_some())
            && kept[first].0.as_ref().is_some_and(|event| event.has_passed(acl))
        {
            kept.drain(..=first);
        }
        done
    }

    /// An event at the present end of the stream.
    fn mark(&self) -> Result<RawEvent, Fault> {
        let acl = self.device.bind()?;
        let event = RawEvent::new(&self.device, acl, sys::ACL_EVENT_SYNC)?;
        // SAFETY: both are alive and of one context.
        self.device.check("the record of an event", unsafe { acl.aclrtRecordEvent(event.raw, self.raw) })?;
        Ok(event)
    }

    fn lock_kept(&self) -> MutexGuard<'_, VecDeque<(Option<RawEvent>, Kept)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies in the stream's order; `kind` is a `DI_COPY_*`.
    ///
    /// # Safety
    /// `bytes` are readable at `src` and writable at `dst` until the stream has passed; the two places do not overlap.
    pub(crate) unsafe fn copy(
        &self,
        dst: *mut c_void,
        src: *const c_void,
        bytes: usize,
        kind: u32,
    ) -> Result<(), Fault> {
        // Host memory that the boundary lends as memory of a device is the host's for a copy.
        let is_pinned = |address: *const c_void| self.device.pinned(address.addr()).is_some();
        let from_device = matches!(kind, DI_COPY_D2H | DI_COPY_D2D | DI_COPY_P2P) && !is_pinned(src);
        let to_device = matches!(kind, DI_COPY_H2D | DI_COPY_D2D | DI_COPY_P2P) && !is_pinned(dst);
        let kind = match (from_device, to_device) {
            (false, true) => sys::ACL_MEMCPY_HOST_TO_DEVICE,
            (true, false) => sys::ACL_MEMCPY_DEVICE_TO_HOST,
            (true, true) if !(dst.addr() | src.addr()).is_multiple_of(COPY_ALIGN) => {
                // SAFETY: the caller's contract.
                return unsafe { plain::copy(self, dst, src, bytes) };
            }
            (true, true) => sys::ACL_MEMCPY_DEVICE_TO_DEVICE,
            (false, false) => {
                // The processor copies, when it is the copy's turn.
                self.sync()?;
                // SAFETY: the caller's contract; they may overlap.
                unsafe { std::ptr::copy(src.cast::<u8>(), dst.cast(), bytes) };
                return Ok(());
            }
        };
        let acl = self.begin()?;
        // SAFETY: the caller's contract; the stream is alive.
        self.device.check("a copy", unsafe { acl.aclrtMemcpyAsync(dst, bytes, src, bytes, kind, self.raw) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(acl) = self.device.bind() {
            // SAFETY: created by this runtime. Work that is left ends by itself; the word of faults must outlive it.
            let (waited, destroyed) =
                unsafe { (acl.aclrtSynchronizeStream(self.raw), acl.aclrtDestroyStream(self.raw)) };
            let _ = self.device.check("the stream", waited);
            let _ = self.device.check("the end of a stream", destroyed);
        }
    }
}

/// An event of the runtime.
struct RawEvent {
    device: Arc<Device>,
    raw: aclrtEvent,
}

// SAFETY: an event may be used from any thread.
unsafe impl Send for RawEvent {}
// SAFETY: as above.
unsafe impl Sync for RawEvent {}

impl RawEvent {
    fn new(device: &Arc<Device>, acl: &sys::AscendCl, flags: u32) -> Result<Self, Fault> {
        let mut raw: aclrtEvent = std::ptr::null_mut();
        // SAFETY: the context is current; the address is writable.
        device.check("an event", unsafe { acl.aclrtCreateEventExWithFlag(&mut raw, flags) })?;
        Ok(Self { device: Arc::clone(device), raw })
    }

    /// Whether it is known to have passed.
    fn has_passed(&self, acl: &sys::AscendCl) -> bool {
        let mut status = sys::ACL_EVENT_RECORDED_STATUS_NOT_READY;
        // SAFETY: the event is alive; the address is writable.
        let code = unsafe { acl.aclrtQueryEventStatus(self.raw, &mut status) };
        self.device.check("the event", code).is_ok() && status == sys::ACL_EVENT_RECORDED_STATUS_COMPLETE
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        if let Ok(acl) = self.device.bind() {
            // SAFETY: created by this runtime, destroyed once.
            let code = unsafe { acl.aclrtDestroyEvent(self.raw) };
            let _ = self.device.check("the end of an event", code);
        }
    }
}

/// The record that an event waits for.
struct Recorded {
    faults: Arc<FaultWord>,
    number: u64,
}

/// A point in a stream.
pub(crate) struct Event {
    device: Arc<Device>,
    event: RawEvent,
    slot: Slot,
    recorded: Mutex<Option<Recorded>>,
}

impl Event {
    /// An event that has passed.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, Fault> {
        let slot = Slot::new(device)?;
        let acl = device.bind()?;
        // With the time, for `elapsed`.
        let event = RawEvent::new(device, acl, sys::ACL_EVENT_SYNC | sys::ACL_EVENT_TIME_LINE)?;
        Ok(Self { device: Arc::clone(device), event, slot, recorded: Mutex::default() })
    }

    /// Marks the present end of a stream.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), Fault> {
        let acl = stream.begin()?;
        if !stream.is_captured() {
            let number = stream.faults().copy(acl, stream.raw(), &self.slot)?;
            *self.lock() = Some(Recorded { faults: Arc::clone(stream.faults()), number });
        }
        // SAFETY: both are alive and of one context.
        self.device.check("the record of an event", unsafe { acl.aclrtRecordEvent(self.event.raw, stream.raw()) })
    }

    /// Makes later work of a stream wait.
    pub(crate) fn wait(&self, stream: &Stream) -> Result<(), Fault> {
        let acl = stream.begin()?;
        // SAFETY: both are alive.
        self.device.check("the wait for an event", unsafe { acl.aclrtStreamWaitEvent(stream.raw(), self.event.raw) })
    }

    /// Whether it has passed.
    pub(crate) fn query(&self) -> Result<bool, Fault> {
        let acl = self.device.bind()?;
        let mut status = sys::ACL_EVENT_RECORDED_STATUS_NOT_READY;
        // SAFETY: the event is alive; the address is writable.
        self.device.check("the event", unsafe { acl.aclrtQueryEventStatus(self.event.raw, &mut status) })?;
        if status != sys::ACL_EVENT_RECORDED_STATUS_COMPLETE {
            return Ok(false);
        }
        self.take_faults().map(|()| true)
    }

    /// Blocks until it has passed.
    pub(crate) fn sync(&self) -> Result<(), Fault> {
        let acl = self.device.bind()?;
        // SAFETY: the event is alive.
        self.device.wait("the event", || unsafe { acl.aclrtSynchronizeEvent(self.event.raw) })?;
        self.take_faults()
    }

    /// Milliseconds from this one to another; both have passed.
    pub(crate) fn elapsed(&self, to: &Event) -> Result<f32, Fault> {
        let acl = self.device.bind()?;
        let Ok(elapsed) = acl.aclrtEventElapsedTime.as_ref() else {
            return Err(Fault::unsupported("the CANN that is installed has no aclrtEventElapsedTime"));
        };
        let mut milliseconds = 0.0;
        // SAFETY: both are alive; the address is writable.
        let code = unsafe { elapsed(&mut milliseconds, self.event.raw, to.event.raw) };
        self.device.check("the time between events", code)?;
        Ok(milliseconds)
    }

    fn take_faults(&self) -> Result<(), Fault> {
        self.lock().as_ref().map_or(Ok(()), |recorded| recorded.faults.take(recorded.number, &self.slot))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Recorded>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
