//! The backend: devices, memory, streams and events of the CUDA driver.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys;
use deepinfer_plugin_api::abi::{DI_COPY_P2P, DI_LF_PEER_ACCESS, DI_LF_PEER_COPY, DI_LINK_PCIE, DI_LINK_SELF};
use deepinfer_plugin_api::sdk::{Backend, DeviceInfo, Extras, Fault, GraphBackend, LinkInfo, Rows2d};

use crate::device::{Device, MOST_DEVICES};
use crate::driver;
use crate::error::check;
use crate::image::is_built;
use crate::memory::{self, Buffer};
use crate::stream::{Event, Stream};

/// The devices of the CUDA driver. It takes no options.
pub(crate) struct Nvidia {
    /// Opened devices, kept: their contexts are, too.
    opened: [std::sync::Mutex<Option<Arc<Device>>>; MOST_DEVICES],
}

impl Backend for Nvidia {
    const NAME: &'static str = "nvidia";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const EXTRAS: Extras<Self> = Extras {
        device_link: Some(Self::link),
        stream_native: Some(|_, stream| Ok(stream.raw().cast())),
        event_elapsed: Some(|_, from, to| from.elapsed(to)),
        copy_2d: Some(Self::copy_rows),
        graph: Some(<Self as GraphBackend>::TABLE),
        ..Extras::NONE
    };
    type Device = Arc<Device>;
    type Buffer = Buffer;
    type Stream = Stream;
    type Event = Event;

    fn start(options: &str) -> Result<Self, Fault> {
        if !options.is_empty() {
            return Err(Fault::invalid(format!("nvidia takes no options, but was given {options:?}")));
        }
        Ok(Self { opened: [const { std::sync::Mutex::new(None) }; MOST_DEVICES] })
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, Fault> {
        driver::devices()
    }

    fn open_device(&self, index: u32) -> Result<Arc<Device>, Fault> {
        if !is_built() {
            return Err(Fault::unsupported(
                "this plugin was built without its CUDA kernels, since there was no nvcc; \
                 `cargo xtask cuda` fetches one, then build it again",
            ));
        }
        let count = self.devices()?.len();
        let slot = self.opened.get(index as usize).filter(|_| (index as usize) < count);
        let slot = slot.ok_or_else(|| Fault::invalid(format!("device {index} does not exist; there are {count}")))?;
        let mut slot = slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(device) = &*slot {
            return Ok(Arc::clone(device));
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
        check_kind(kind)?;
        if bytes == 0 {
            return Ok(());
        }
        stream.device().bind()?;
        let (dst, src) = (dst.expose_provenance() as u64, src.expose_provenance() as u64);
        // Addresses are of one space of the process: the driver sees by itself on which side each lies.
        // SAFETY: the caller promises the memory on both sides.
        check("a copy", unsafe { sys::cuMemcpyAsync(dst, src, bytes as usize, stream.raw()) })
    }

    unsafe fn fill(
        &self,
        stream: &Stream,
        dst: *mut c_void,
        pattern: u32,
        pattern_bytes: u32,
        count: u64,
    ) -> Result<(), Fault> {
        if count == 0 {
            return Ok(());
        }
        stream.device().bind()?;
        let (dst, count) = (dst.expose_provenance() as u64, count as usize);
        // SAFETY: the caller promises the memory.
        let status = unsafe {
            match pattern_bytes {
                1 => sys::cuMemsetD8Async(dst, pattern as u8, count, stream.raw()),
                2 => sys::cuMemsetD16Async(dst, pattern as u16, count, stream.raw()),
                4 => sys::cuMemsetD32Async(dst, pattern, count, stream.raw()),
                _ => {
                    return Err(Fault::invalid(format!(
                        "patterns of {pattern_bytes} bytes do not exist; there are 1, 2, 4"
                    )));
                }
            }
        };
        check("a fill", status)
    }
}

impl Nvidia {
    fn link(&self, a: u32, b: u32) -> Result<LinkInfo, Fault> {
        let count = self.devices()?.len() as u32;
        if let Some(index) = [a, b].into_iter().find(|&index| index >= count) {
            return Err(Fault::invalid(format!("device {index} does not exist; there are {count}")));
        }
        if a == b {
            let flags = DI_LF_PEER_ACCESS | DI_LF_PEER_COPY;
            return Ok(LinkInfo { class: DI_LINK_SELF, flags, hops: 0, bytes_per_s: 0, latency_ns: 0 });
        }
        let mut access = 0;
        let which = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
        // SAFETY: both devices exist; the address is writable.
        let status = unsafe { sys::cuDeviceGetP2PAttribute(&mut access, which, a as i32, b as i32) };
        check("the link of two devices", status)?;
        let flags = DI_LF_PEER_COPY | if access != 0 { DI_LF_PEER_ACCESS } else { 0 };
        // Whether it is NVLink the driver does not say; the rate is unknown with it.
        Ok(LinkInfo { class: DI_LINK_PCIE, flags, hops: 0, bytes_per_s: 0, latency_ns: 0 })
    }

    /// Its contract is that of [`Extras::copy_2d`].
    unsafe fn copy_rows(&self, stream: &Stream, rows: Rows2d) -> Result<(), Fault> {
        check_kind(rows.kind)?;
        if rows.width == 0 || rows.height == 0 {
            return Ok(());
        }
        stream.device().bind()?;
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            srcHost: std::ptr::null(),
            srcDevice: rows.src.expose_provenance() as u64,
            srcArray: std::ptr::null_mut(),
            srcPitch: rows.src_pitch as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            dstHost: std::ptr::null_mut(),
            dstDevice: rows.dst.expose_provenance() as u64,
            dstArray: std::ptr::null_mut(),
            dstPitch: rows.dst_pitch as usize,
            WidthInBytes: rows.width as usize,
            Height: rows.height as usize,
        };
        // SAFETY: the caller promises the memory of every row.
        check("a copy of rows", unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream.raw()) })
    }
}

fn check_kind(kind: u32) -> Result<(), Fault> {
    match kind {
        0..=DI_COPY_P2P => Ok(()),
        _ => Err(Fault::invalid(format!("copies of kind {kind} do not exist; there are 0 to {DI_COPY_P2P}"))),
    }
}
