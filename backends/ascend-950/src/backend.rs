//! The backend: devices, memory, streams and events of CANN's runtime.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use deepinfer_plugin_api::abi::DI_COPY_P2P;
use deepinfer_plugin_api::sdk::{Backend, DeviceInfo, Extras, Fault, GraphBackend};

use crate::device::{self, Device, MOST_DEVICES};
use crate::memory::{self, Buffer};
use crate::plain::fill;
use crate::stream::{Event, Stream};

/// The devices of CANN's runtime, or the host twin. It takes no options.
pub(crate) struct Ascend {
    /// Opened devices, kept: their contexts are, too.
    opened: [Mutex<Option<Arc<Device>>>; MOST_DEVICES],
}

impl Backend for Ascend {
    const NAME: &'static str = "ascend";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const EXTRAS: Extras<Self> = Extras {
        stream_native: Some(|_, stream| Ok(stream.raw())),
        event_elapsed: Some(|_, from, to| from.elapsed(to)),
        graph: Some(<Self as GraphBackend>::TABLE),
        ..Extras::NONE
    };
    type Device = Arc<Device>;
    type Buffer = Buffer;
    type Stream = Stream;
    type Event = Event;

    fn start(options: &str) -> Result<Self, Fault> {
        if !options.is_empty() {
            return Err(Fault::invalid(format!("ascend takes no options, but was given {options:?}")));
        }
        Ok(Self { opened: [const { Mutex::new(None) }; MOST_DEVICES] })
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, Fault> {
        device::devices()
    }

    fn open_device(&self, index: u32) -> Result<Arc<Device>, Fault> {
        let count = self.devices()?.len();
        let slot = self.opened.get(index as usize).filter(|_| (index as usize) < count);
        let slot = slot.ok_or_else(|| Fault::invalid(format!("device {index} does not exist; there are {count}")))?;
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = &*slot {
            return device.bind().map(|_| Arc::clone(device));
        }
        let device = Arc::new(Device::open(index as usize)?);
        *slot = Some(Arc::clone(&device));
        Ok(device)
    }

    fn memory(&self, device: &Arc<Device>, space: u32) -> Result<(u64, u64), Fault> {
        memory::memory(device, space)
    }

    fn alloc(&self, device: &Arc<Device>, space: u32, bytes: u64, align: u64) -> Result<(Buffer, *mut c_void), Fault> {
        Buffer::new(device, space, bytes, align)
    }

    fn create_stream(&self, device: &Arc<Device>) -> Result<Stream, Fault> {
        Stream::new(device)
    }

    fn sync_stream(&self, stream: &Stream) -> Result<(), Fault> {
        stream.sync()
    }

    fn create_event(&self, device: &Arc<Device>) -> Result<Event, Fault> {
        Event::new(device)
    }

    fn record_event(&self, event: &Event, stream: &Stream) -> Result<(), Fault> {
        event.record(stream)
    }

    fn wait_event(&self, stream: &Stream, event: &Event) -> Result<(), Fault> {
        event.wait(stream)
    }

    fn query_event(&self, event: &Event) -> Result<bool, Fault> {
        event.query()
    }

    fn sync_event(&self, event: &Event) -> Result<(), Fault> {
        event.sync()
    }

    unsafe fn copy(
        &self,
        stream: &Stream,
        dst: *mut c_void,
        src: *const c_void,
        bytes: u64,
        kind: u32,
    ) -> Result<(), Fault> {
        if kind > DI_COPY_P2P {
            return Err(Fault::invalid(format!("copies of kind {kind} do not exist; there are 0 to {DI_COPY_P2P}")));
        }
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller promises the memory on both sides.
        unsafe { stream.copy(dst, src, bytes as usize, kind) }
    }

    unsafe fn fill(
        &self,
        stream: &Stream,
        dst: *mut c_void,
        pattern: u32,
        pattern_bytes: u32,
        count: u64,
    ) -> Result<(), Fault> {
        if !matches!(pattern_bytes, 1 | 2 | 4) {
            return Err(Fault::invalid(format!("patterns of {pattern_bytes} bytes do not exist; there are 1, 2, 4")));
        }
        let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(pattern_bytes as usize));
        let bytes = bytes.ok_or_else(|| Fault::invalid(format!("a fill of {count} patterns has no end")))?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller promises the memory.
        unsafe { fill(stream, dst, &pattern.to_le_bytes()[..pattern_bytes as usize], bytes) }
    }
}
