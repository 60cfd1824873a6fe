//! The backend and its device: host memory, whose work is done when a call returns.
//!
//! For a device with queues of its own, `Stream` and `Event` hold its handles and the functions only enqueue:
//! `sync_stream`, `query_event` and `sync_event` then wait or look, and return the first fault of enqueued work.

use std::ffi::c_void;
use std::fs;

use deepinfer_plugin_api::abi::{DI_COPY_D2D, DI_DEVICE_CPU, DI_SPACE_HOST_PINNED};
use deepinfer_plugin_api::sdk::{Backend, DeviceInfo, Fault, HostMemory};

/// State of the whole backend; handles of a vendor's library go here.
pub struct {{pascal}}Backend;

/// An opened device.
pub struct Device;

impl Backend for {{pascal}}Backend {
    const NAME: &'static str = "{{name}}";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    type Device = Device;
    type Buffer = HostMemory;
    type Stream = ();
    type Event = ();

    fn start(options: &str) -> Result<Self, Fault> {
        match options {
            "" => Ok({{pascal}}Backend),
            _ => Err(Fault::invalid(format!("the options {options:?} are unknown; there are none"))),
        }
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, Fault> {
        Ok(vec![DeviceInfo {
            device_type: DI_DEVICE_CPU,
            name: "host memory".to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
            total_bytes: memory_bytes("MemTotal:")?,
            compute_units: 1,
            numa_node: -1,
            ..DeviceInfo::default()
        }])
    }

    fn open_device(&self, index: u32) -> Result<Device, Fault> {
        match index {
            0 => Ok(Device),
            _ => Err(Fault::invalid(format!("device {index} does not exist; there is device 0"))),
        }
    }

    fn memory(&self, _: &Device, space: u32) -> Result<(u64, u64), Fault> {
        check_space(space)?;
        Ok((memory_bytes("MemAvailable:")?, memory_bytes("MemTotal:")?))
    }

    fn alloc(&self, _: &Device, space: u32, bytes: u64, align: u64) -> Result<(HostMemory, *mut c_void), Fault> {
        check_space(space)?;
        let memory = HostMemory::new(bytes, align)?;
        let address = memory.address();
        Ok((memory, address))
    }

    fn create_stream(&self, _: &Device) -> Result<(), Fault> {
        Ok(())
    }

    fn sync_stream(&self, (): &()) -> Result<(), Fault> {
        Ok(())
    }

    fn create_event(&self, _: &Device) -> Result<(), Fault> {
        Ok(())
    }

    fn record_event(&self, (): &(), (): &()) -> Result<(), Fault> {
        Ok(())
    }

    fn wait_event(&self, (): &(), (): &()) -> Result<(), Fault> {
        Ok(())
    }

    fn query_event(&self, (): &()) -> Result<bool, Fault> {
        Ok(true)
    }

    fn sync_event(&self, (): &()) -> Result<(), Fault> {
        Ok(())
    }

    unsafe fn copy(&self, (): &(), dst: *mut c_void, src: *const c_void, bytes: u64, kind: u32) -> Result<(), Fault> {
        if kind > DI_COPY_D2D {
            return Err(Fault::invalid(format!("copies of kind {kind} do not exist; there are 0 to {DI_COPY_D2D}")));
        }
        if bytes > 0 {
            // SAFETY: `bytes` are readable at `src` and writable at `dst`, as the caller promises.
            unsafe { std::ptr::copy(src.cast::<u8>(), dst.cast::<u8>(), bytes as usize) };
        }
        Ok(())
    }

    unsafe fn fill(&self, (): &(), dst: *mut c_void, pattern: u32, width: u32, count: u64) -> Result<(), Fault> {
        let width = width as usize;
        for i in 0..count as usize * width {
            // SAFETY: `count` times `width` bytes are writable at `dst`, as the caller promises.
            unsafe { dst.cast::<u8>().add(i).write(pattern.to_le_bytes()[i % width]) };
        }
        Ok(())
    }
}

fn check_space(space: u32) -> Result<(), Fault> {
    match space {
        0..=DI_SPACE_HOST_PINNED => Ok(()),
        _ => Err(Fault::invalid(format!("memory space {space} does not exist; there are 0 and 1"))),
    }
}

/// A line of `/proc/meminfo`, whose unit is KiB, in bytes.
fn memory_bytes(field: &str) -> Result<u64, Fault> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.map(|count| count * 1024).ok_or_else(|| Fault::unsupported(format!("/proc/meminfo has no {field}")))
}
