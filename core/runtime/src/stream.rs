//! A stream of work, events in it, and host memory that copies may read after the call.

#![allow(unsafe_code)]

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use deepinfer_plugin_api::abi::{DI_SPACE_HOST_PINNED, DiEvent, DiStream};

use crate::backend::{PluginError, call};
use crate::in_flight::{InFlight, PendingDownload};
use crate::memory::{Buffer, Opened, Progress, Retired};
use crate::raw::take_error;

/// A stream of an open device. It may move to another thread, but is used by one at a time.
pub(crate) struct Stream {
    pub(crate) opened: Arc<Opened>,
    pub(crate) raw: *mut DiStream,
    pub(crate) progress: Arc<Progress>,
    /// What queued work touches and no other owner need keep.
    pub(crate) in_flight: Arc<InFlight>,
}

// SAFETY: the header lets a stream be used from any thread, one at a time; the type is not `Sync`.
unsafe impl Send for Stream {}

impl Stream {
    /// Makes a stream.
    pub(crate) fn create(opened: Arc<Opened>) -> Result<Self, PluginError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the device is open and the out-pointer is writable.
        match unsafe { take_error(call!(opened.backend, stream_create, opened.device, 0, 0, &raw mut raw)) } {
            Some(error) => Err(error),
            None => {
                let progress = opened.add_stream();
                Ok(Self { opened, raw, progress, in_flight: Arc::default() })
            }
        }
    }

    /// The raw stream, for a call that queues work on it.
    #[inline]
    pub(crate) fn for_work(&self) -> *mut DiStream {
        self.progress.begin_work();
        self.raw
    }

    /// Keeps something alive until the work queued so far is done.
    pub(crate) fn keep(&self, what: Arc<dyn Any + Send + Sync>) {
        self.in_flight.keep(what);
    }

    /// Whether work may be pending.
    pub(crate) fn is_busy(&self) -> bool {
        self.progress.is_busy()
    }

    /// Ends a download whose copy to the first `len` of `bytes` was queued: marks the present end of the stream's work.
    pub(crate) fn finish_download(
        &self,
        bytes: HostBytes,
        len: usize,
    ) -> Result<PendingDownload, (&'static str, PluginError)> {
        // Before the event is recorded: what is dropped later may still be touched behind it.
        let since = self.opened.now();
        let event = match self.in_flight.event() {
            None => Event::record(self),
            Some(event) => event.record_again(self).map(|()| event),
        };
        match event {
            Ok(event) => {
                let mark = self.in_flight.mark();
                let shared = (&self.opened, &self.progress, &self.in_flight);
                Ok(PendingDownload::new(shared, (mark, since), (bytes, event), len))
            }
            Err(error) => {
                self.in_flight.keep_bytes(bytes);
                Err(error)
            }
        }
    }

    /// Waits until the stream has run dry, and gives back what was only kept for its work.
    ///
    /// # Errors
    /// The first fault of the work that was waited for.
    pub(crate) fn synchronize(&self) -> Result<(), PluginError> {
        let since = self.opened.now();
        self.in_flight.count_wait();
        // SAFETY: the stream is alive, and this thread alone uses it, as the type is not `Sync`.
        let fault = unsafe { take_error(call!(self.opened.backend, stream_sync, self.raw)) };
        // After a fault, too: the work is over, however it ended.
        self.in_flight.passed_all();
        self.opened.passed(&self.progress, since);
        fault.map_or(Ok(()), Err)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Of a device that is known to be lost, every wait says that again.
        if let Err(fault) = self.synchronize()
            && self.opened.lost.get().is_none()
        {
            tracing::warn!("{}: the last work on the device failed: {fault}", self.opened.backend.name());
        }
        // SAFETY: made by this table, destroyed once, after its work and before its device.
        unsafe { call!(self.opened.backend, stream_destroy, self.raw) };
        self.opened.remove_stream(&self.progress);
    }
}

/// A point in the work of a stream. Any thread may look at it; another stream may wait for it.
pub struct Event(Arc<Mark>);

/// The plugin's event; shared with the streams that wait for it, which may be those of another device.
pub(crate) struct Mark {
    pub(crate) opened: Arc<Opened>,
    pub(crate) raw: *mut DiEvent,
}

// SAFETY: the pointer is only passed to the plugin; calls that take an event and no stream may come from any thread.
unsafe impl Send for Mark {}
// SAFETY: as above.
unsafe impl Sync for Mark {}

impl Event {
    /// Marks the present end of a stream's work.
    pub(crate) fn record(stream: &Stream) -> Result<Self, (&'static str, PluginError)> {
        let opened = &stream.opened;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the device is open and `raw` is writable.
        if let Some(error) = unsafe { take_error(call!(opened.backend, event_create, opened.device, 0, &raw mut raw)) }
        {
            return Err(("event_create", error));
        }
        let event = Event(Arc::new(Mark { opened: opened.clone(), raw }));
        event.record_again(stream).map(|()| event)
    }

    /// Moves the event to the present end of a stream's work.
    fn record_again(&self, stream: &Stream) -> Result<(), (&'static str, PluginError)> {
        let Mark { opened, raw } = &*self.0;
        // SAFETY: event and stream are alive; this thread alone uses the stream.
        let error = unsafe { take_error(call!(opened.backend, event_record, *raw, stream.for_work())) };
        error.map_or(Ok(()), |error| Err(("event_record", error)))
    }

    /// The plugin's event.
    pub(crate) fn mark(&self) -> &Arc<Mark> {
        &self.0
    }

    /// Whether the work before it is done; does not block.
    ///
    /// # Errors
    /// A fault of that work.
    pub fn is_done(&self) -> Result<bool, PluginError> {
        let Mark { opened, raw } = &*self.0;
        let mut done = 0;
        // SAFETY: the event is alive and `done` is writable.
        let error = unsafe { take_error(call!(opened.backend, event_query, *raw, &raw mut done)) };
        error.map_or(Ok(done != 0), Err)
    }

    /// Blocks until the work before it is done.
    ///
    /// # Errors
    /// A fault of that work.
    pub fn wait(&self) -> Result<(), PluginError> {
        // SAFETY: the event is alive.
        unsafe { take_error(call!(self.0.opened.backend, event_sync, self.0.raw)) }.map_or(Ok(()), Err)
    }

    /// Time of the device from `earlier` to this event, both of one backend and done. `None` when the backend does not
    /// measure it.
    ///
    /// # Errors
    /// One of them is not done, or a fault of the work before it.
    ///
    /// # Panics
    /// If the events are of different backends.
    pub fn time_since(&self, earlier: &Event) -> Result<Option<Duration>, PluginError> {
        let backend = self.0.opened.backend;
        assert!(std::ptr::eq(backend, earlier.0.opened.backend), "events of two backends have no common clock");
        let Some(elapsed) = backend.runtime.event_elapsed else { return Ok(None) };
        let mut milliseconds = 0f32;
        // SAFETY: both events are alive and of this backend; the number is writable.
        match unsafe { take_error(elapsed(backend.raw, earlier.0.raw, self.0.raw, &raw mut milliseconds)) } {
            Some(error) => Err(error),
            // Events of two streams may be in the other order; then no time has passed.
            None => Ok(Some(Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).unwrap_or_default())),
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.opened.retire(Retired::Event(self.raw));
    }
}

/// Bytes of the host that a device reads without a copy by the driver, where the backend has such memory; ordinary memory
/// elsewhere. The source of uploads that nobody waits for: see [`OpenDevice::upload_later`](crate::OpenDevice::upload_later).
pub struct HostBytes {
    memory: HostMemory,
    bytes: usize,
}

enum HostMemory {
    Pinned(Buffer),
    Ordinary(Vec<u8>),
}

impl HostBytes {
    /// Zeroed bytes.
    pub(crate) fn new(opened: &Arc<Opened>, bytes: usize) -> Self {
        let memory = match Buffer::in_space(opened, DI_SPACE_HOST_PINNED, bytes as u64, 64) {
            Ok(buffer) if bytes > 0 => {
                // SAFETY: the header promises host memory of this size; nobody else has it.
                unsafe { buffer.address().cast::<u8>().write_bytes(0, bytes) };
                HostMemory::Pinned(buffer)
            }
            _ => HostMemory::Ordinary(vec![0; bytes]),
        };
        Self { memory, bytes }
    }

    /// Whether the device reads the memory directly.
    pub fn is_pinned(&self) -> bool {
        matches!(self.memory, HostMemory::Pinned(_))
    }
}

impl std::ops::Deref for HostBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            // SAFETY: initialised host memory of this size, borrowed with `self`.
            HostMemory::Pinned(buffer) => unsafe {
                std::slice::from_raw_parts(buffer.address().cast::<u8>().cast_const(), self.bytes)
            },
            HostMemory::Ordinary(bytes) => bytes,
        }
    }
}

impl std::ops::DerefMut for HostBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            // SAFETY: as above, borrowed mutably.
            HostMemory::Pinned(buffer) => unsafe {
                std::slice::from_raw_parts_mut(buffer.address().cast::<u8>(), self.bytes)
            },
            HostMemory::Ordinary(bytes) => bytes,
        }
    }
}
