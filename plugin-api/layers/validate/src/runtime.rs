//! The runtime table: devices, memory, streams, events.

#![allow(unsafe_code)]

use std::ffi::c_void;

use deepinfer_plugin_api::abi::*;
use deepinfer_plugin_api::sdk::{Delays, Fault, HostEvent, HostQueue};

use crate::boundary::{exposed, guard, guard_void, guard_wait, pointer};
use crate::finding::{Culprit, Finding, Rule};
use crate::handles::{Handle, Kind};
use crate::lane::Lane;
use crate::layer::Layer;
use crate::ranges::Ranges;
use crate::watch::{MARGIN, POISON};
use crate::world::Device;

/// The layer's table over that of a backend: optional functions are there where they are there below.
pub(crate) fn table(layer: &Layer) -> DiRuntimeApi {
    let below = &layer.next.runtime;
    // Delayed work is not on the vendor's stream.
    let is_direct = layer.options.jitter.is_none();
    DiRuntimeApi {
        struct_size: size_of::<DiRuntimeApi>() as u32,
        reserved0: 0,
        device_count: Some(device_count),
        device_info: Some(device_info),
        device_open: Some(device_open),
        device_close: Some(device_close),
        device_mem_info: Some(device_mem_info),
        alloc: Some(alloc),
        free_: Some(free_),
        stream_create: Some(stream_create),
        stream_destroy: Some(stream_destroy),
        stream_sync: Some(stream_sync),
        event_create: Some(event_create),
        event_destroy: Some(event_destroy),
        event_record: Some(event_record),
        event_wait: Some(event_wait),
        event_query: Some(event_query),
        event_sync: Some(event_sync),
        copy: Some(copy),
        fill: Some(fill),
        space_info: below.space_info.map(|_| space_info as _),
        device_link: below.device_link.map(|_| device_link as _),
        stream_native: below.stream_native.filter(|_| is_direct).map(|_| stream_native as _),
        event_elapsed: below.event_elapsed.map(|_| event_elapsed as _),
        copy_2d: below.copy_2d.map(|_| copy_2d as _),
    }
}

/// A function of the backend below, called with its own pointer first.
macro_rules! below {
    ($layer:expr, $function:ident, $($arg:expr),* $(,)?) => {
        $layer.took(
            stringify!($function),
            ($layer.next.runtime.$function.expect("there, as the layer's is"))($layer.next.raw, $($arg),*),
        )
    };
}

// SAFETY of every function below: the header's contract. `backend` is the layer's; other objects are handles, which are
// looked up before anything of the backend is called with what they stand for; out-pointers are writable.

unsafe extern "C" fn device_count(backend: *mut DiBackend, out: *mut u32) -> *mut DiError {
    // SAFETY: see above.
    unsafe { guard(backend, "device_count", |layer| below!(layer, device_count, out)) }
}

unsafe extern "C" fn device_info(backend: *mut DiBackend, index: u32, out: *mut DiDeviceInfo) -> *mut DiError {
    // SAFETY: see above.
    unsafe {
        guard(backend, "device_info", |layer| {
            let function = layer.next.runtime.device_info.expect("mandatory");
            layer.filled("device_info", out, |out| function(layer.next.raw, index, out))
        })
    }
}

unsafe extern "C" fn space_info(
    backend: *mut DiBackend,
    device: u32,
    index: u32,
    out: *mut DiSpaceInfo,
) -> *mut DiError {
    // SAFETY: see above.
    unsafe {
        guard(backend, "space_info", |layer| {
            let function = layer.next.runtime.space_info.expect("there, as the layer's is");
            layer.filled("space_info", out, |out| function(layer.next.raw, device, index, out))
        })
    }
}

unsafe extern "C" fn device_link(backend: *mut DiBackend, a: u32, b: u32, out: *mut DiLinkInfo) -> *mut DiError {
    // SAFETY: see above.
    unsafe {
        guard(backend, "device_link", |layer| {
            let function = layer.next.runtime.device_link.expect("there, as the layer's is");
            layer.filled("device_link", out, |out| function(layer.next.raw, a, b, out))
        })
    }
}

unsafe extern "C" fn device_open(
    backend: *mut DiBackend,
    index: u32,
    ext: *const DiExt,
    out: *mut *mut DiDevice,
) -> *mut DiError {
    // SAFETY: see above.
    unsafe {
        guard(backend, "device_open", |layer| {
            let mut raw = std::ptr::null_mut();
            let error = below!(layer, device_open, index, ext, &raw mut raw)?;
            if !error.is_null() {
                return Ok(error);
            }
            let next = layer.made("device_open", raw, Kind::Device)?;
            match layer.describe(index, raw, next) {
                Ok(device) => out.write(pointer(layer.world().open_device(device))),
                Err(fault) => {
                    let close = layer.next.runtime.device_close.expect("mandatory");
                    close(layer.next.raw, raw);
                    return Err(fault);
                }
            }
            Ok(error)
        })
    }
}

unsafe extern "C" fn device_close(backend: *mut DiBackend, device: *mut DiDevice) {
    // SAFETY: see above.
    unsafe {
        guard_void(backend, "device_close", |layer| {
            let (device, _) = layer.find("device_close", Kind::Device, device.addr())?;
            let left = layer.world().on_device(device);
            if !left.is_empty() {
                let problem = format!("{device} still has {}", left.join(", "));
                layer.reporter.mention(&Finding::new(Rule::Leak, Culprit::Core, "device_close", problem));
            }
            let Some(closed) = layer.world().close_device(device) else { return Ok(()) };
            if closed.own_stream != 0 {
                let destroy = layer.next.runtime.stream_destroy.expect("mandatory");
                destroy(layer.next.raw, exposed(closed.own_stream));
            }
            let close = layer.next.runtime.device_close.expect("mandatory");
            close(layer.next.raw, exposed(closed.next));
            Ok(())
        });
    }
}

unsafe extern "C" fn device_mem_info(
    backend: *mut DiBackend,
    device: *mut DiDevice,
    space: u32,
    free: *mut u64,
    total: *mut u64,
) -> *mut DiError {
    // SAFETY: see above.
    unsafe {
        guard(backend, "device_mem_info", |layer| {
            let (_, next) = layer.device("device_mem_info", device.addr())?;
            below!(layer, device_mem_info, exposed(next), space, free, total)
        })
    }
}

unsafe extern "C" fn alloc(
    backend: *mut DiBackend,
    device: *mut DiDevice,
    space: u32,
    bytes: u64,
    align: u64,
    out: *mut *mut DiBuffer,
    address: *mut *mut c_void,
) -> *mut DiError {
    // SAFETY: see above.
    unsafe {
        guard(backend, "alloc", |layer| {
            let (device, next) = layer.device("alloc", device.addr())?;
            if !align.is_power_of_two() {
                let problem = format!("the alignment {align} is no power of two");
                layer.reporter.report(&Finding::new(Rule::Struct, Culprit::Core, "alloc", problem))?;
            }
            // Redzones around memory of the device: in front as many bytes as keep the alignment.
            let front = if layer.options.poison && space == 0 { MARGIN.max(align) } else { 0 };
            let back = if front > 0 { MARGIN } else { 0 };
            let Some(all) = bytes.checked_add(front + back) else {
                return below!(layer, alloc, exposed(next), space, bytes, align, out, address);
            };
            let (mut raw, mut at) = (std::ptr::null_mut(), std::ptr::null_mut());
            let error = below!(layer, alloc, exposed(next), space, all, align, &raw mut raw, &raw mut at)?;
            if !error.is_null() {
                return Ok(error);
            }
            let next_buffer = layer.made("alloc", raw, Kind::Buffer)?;
            let start = at.expose_provenance() as u64;
            let (whole, user) = (start..start + all, start + front..start + front + bytes);
            let accepted = layer.not_in_capture("alloc", device, true).and_then(|()| {
                if all > 0 && (start == 0 || !start.is_multiple_of(align.max(1))) {
                    let problem = format!("{all} bytes aligned to {align} were promised at {start:#x}");
                    let finding = Finding::new(Rule::OutPointer, Culprit::Backend, "alloc", problem);
                    return Err(layer.reporter.refuse(&finding));
                }
                if front > 0 { layer.poison(device, whole.clone()) } else { Ok(()) }
            });
            if let Err(fault) = accepted {
                let free = layer.next.runtime.free_.expect("mandatory");
                free(layer.next.raw, raw);
                return Err(fault);
            }
            let buffer = layer.world().allocate(next_buffer, device, whole, user);
            out.write(pointer(buffer));
            address.write(at.byte_add(front as usize));
            Ok(error)
        })
    }
}

unsafe extern "C" fn free_(backend: *mut DiBackend, buffer: *mut DiBuffer) {
    // SAFETY: see above.
    unsafe {
        guard_void(backend, "free_", |layer| {
            let (buffer, device) = layer.find("free_", Kind::Buffer, buffer.addr())?;
            let pending = layer.world().pending_use(buffer);
            let mut outcome = Ok(());
            if let Some(stream) = pending {
                let problem = format!("{buffer} is freed, but work of {stream} that uses it was not waited for");
                layer.reporter.mention(&Finding::new(Rule::Lifetime, Culprit::Core, "free_", problem));
            } else {
                outcome = layer.check_redzones(buffer, device);
            }
            let Some(freed) = layer.world().free(buffer) else { return Ok(()) };
            let free = layer.next.runtime.free_.expect("mandatory");
            free(layer.next.raw, exposed(freed.next));
            outcome
        });
    }
}

unsafe extern "C" fn stream_create(
    backend: *mut DiBackend,
    device: *mut DiDevice,
    priority: i32,
    flags: u32,
    out: *mut *mut DiStream,
) -> *mut DiError {
    // SAFETY: see above.
    unsafe {
        guard(backend, "stream_create", |layer| {
            let (device, next) = layer.device("stream_create", device.addr())?;
            let mut raw = std::ptr::null_mut();
            let error = below!(layer, stream_create, exposed(next), priority, flags, &raw mut raw)?;
            if !error.is_null() {
                return Ok(error);
            }
            let next_stream = layer.made("stream_create", raw, Kind::Stream)?;
            let stream = layer.world().create_stream(next_stream, device);
            if let Some(seed) = layer.options.jitter {
                let delays = Delays::seeded(seed.wrapping_add(stream.number as u64));
                match HostQueue::start("validate-jitter", Some(delays)) {
                    Ok(queue) => layer.add_queue(stream, queue),
                    Err(fault) => {
                        layer.world().destroy_stream(stream);
                        let destroy = layer.next.runtime.stream_destroy.expect("mandatory");
                        destroy(layer.next.raw, raw);
                        return Err(fault);
                    }
                }
            }
            out.write(pointer(stream));
            Ok(error)
        })
    }
}

unsafe extern "C" fn stream_destroy(backend: *mut DiBackend, stream: *mut DiStream) {
    // SAFETY: see above.
    unsafe {
        guard_void(backend, "stream_destroy", |layer| {
            let (stream, _) = layer.find("stream_destroy", Kind::Stream, stream.addr())?;
            // Finishes the delayed work.
            drop(layer.remove_queue(stream));
            let Some(gone) = layer.world().destroy_stream(stream) else { return Ok(()) };
            let destroy = layer.next.runtime.stream_destroy.expect("mandatory");
            destroy(layer.next.raw, exposed(gone.next));
            Ok(())
        });
    }
}

unsafe extern "C" fn stream_sync(backend: *mut DiBackend, stream: *mut DiStream) -> *mut DiError {
    // SAFETY: see above.
    unsafe {
        guard_wait(backend, "stream_sync", |layer| {
            layer.on_stream("stream_sync", stream.addr(), |stream, device, next| {
                let delayed = layer.queue(stream).map_or(Ok(()), |queue| queue.sync());
                let error = below!(layer, stream_sync, exposed(next))?;
                layer.world().synchronize(stream);
                if delayed.is_err() {
                    layer.settle(error)?;
                    return delayed.map(|()| std::ptr::null_mut());
                }
                layer.not_in_capture("stream_sync", device, error.is_null())?;
                Ok(error)
            })
        })
    }
}

unsafe extern "C" fn event_create(
    backend: *mut DiBackend,
    device: *mut DiDevice,
    flags: u32,
    out: *mut *mut DiEvent,
) -> *mut DiError {
    // SAFETY: see above.
    unsafe {
        guard(backend, "event_create", |layer| {
            let (device, next) = layer.device("event_create", device.addr())?;
            let mut raw = std::ptr::null_mut();
            let error = below!(layer, event_create, exposed(next), flags, &raw mut raw)?;
            if error.is_null() {
                let next_event = layer.made("event_create", raw, Kind::Event)?;
                out.write(pointer(layer.world().create_event(next_event, device)));
            }
            Ok(error)
        })
    }
}

unsafe extern "C" fn event_destroy(backend: *mut DiBackend, event: *mut DiEvent) {
    // SAFETY: see above.
    unsafe {
        guard_void(backend, "event_destroy", |layer| {
            let (event, _) = layer.find("event_destroy", Kind::Event, event.addr())?;
            layer.remove_point(event);
            let Some(gone) = layer.world().events.remove(event) else { return Ok(()) };
            let destroy = layer.next.runtime.event_destroy.expect("mandatory");
            destroy(layer.next.raw, exposed(gone.next));
            Ok(())
        });
    }
}

unsafe extern "C" fn event_record(backend: *mut DiBackend, event: *mut DiEvent, stream: *mut DiStream) -> *mut DiError {
    // SAFETY: see above.
    unsafe {
        guard(backend, "event_record", |layer| {
            let (event, of, next_event) = layer.event("event_record", event.addr())?;
            layer.on_stream("event_record", stream.addr(), |stream, device, next| {
                layer.same_device("event_record", (event, of), (stream, device))?;
                let error = match layer.queue(stream).zip(layer.point(event)) {
                    Some((queue, point)) => {
                        queue.record(&point);
                        std::ptr::null_mut()
                    }
                    None => below!(layer, event_record, exposed(next_event), exposed(next))?,
                };
                layer.world().record(event, stream);
                Ok(error)
            })
        })
    }
}

unsafe extern "C" fn event_wait(backend: *mut DiBackend, stream: *mut DiStream, event: *mut DiEvent) -> *mut DiError {
    // SAFETY: see above.
    unsafe {
        guard(backend, "event_wait", |layer| {
            let (event, _, next_event) = layer.event("event_wait", event.addr())?;
            layer.on_stream("event_wait", stream.addr(), |stream, _, next| {
                let error = match layer.queue(stream).zip(layer.point(event)) {
                    Some((queue, point)) => {
                        queue.wait(&point);
                        std::ptr::null_mut()
                    }
                    None => below!(layer, event_wait, exposed(next), exposed(next_event))?,
                };
                layer.world().wait(stream, event);
                Ok(error)
            })
        })
    }
}

unsafe extern "C" fn event_query(backend: *mut DiBackend, event: *mut DiEvent, done: *mut i32) -> *mut DiError {
    // SAFETY: see above.
    unsafe {
        guard(backend, "event_query", |layer| {
            let (event, _, next) = layer.event("event_query", event.addr())?;
            let error = match layer.point(event) {
                Some(point) => {
                    done.write(i32::from(point.query()?));
                    std::ptr::null_mut()
                }
                None => below!(layer, event_query, exposed(next), done)?,
            };
            if error.is_null() && done.read() != 0 {
                layer.world().passed(event);
            }
            Ok(error)
        })
    }
}

unsafe extern "C" fn event_sync(backend: *mut DiBackend, event: *mut DiEvent) -> *mut DiError {
    // SAFETY: see above.
    unsafe {
        guard_wait(backend, "event_sync", |layer| {
            let (event, _, next) = layer.event("event_sync", event.addr())?;
            let error = match layer.point(event) {
                Some(point) => {
                    point.sync()?;
                    std::ptr::null_mut()
                }
                None => below!(layer, event_sync, exposed(next))?,
            };
            layer.world().passed(event);
            Ok(error)
        })
    }
}

unsafe extern "C" fn event_elapsed(
    backend: *mut DiBackend,
    from: *mut DiEvent,
    to: *mut DiEvent,
    milliseconds: *mut f32,
) -> *mut DiError {
    // SAFETY: see above.
    unsafe {
        guard(backend, "event_elapsed", |layer| {
            let (from, _, next_from) = layer.event("event_elapsed", from.addr())?;
            let (to, _, next_to) = layer.event("event_elapsed", to.addr())?;
            match layer.point(from).zip(layer.point(to)) {
                Some((from, to)) => {
                    milliseconds.write(HostEvent::elapsed(&from, &to)?.as_secs_f32() * 1e3);
                    Ok(std::ptr::null_mut())
                }
                None => below!(layer, event_elapsed, exposed(next_from), exposed(next_to), milliseconds),
            }
        })
    }
}

unsafe extern "C" fn stream_native(
    backend: *mut DiBackend,
    stream: *mut DiStream,
    out: *mut *mut c_void,
) -> *mut DiError {
    // SAFETY: see above.
    unsafe {
        guard(backend, "stream_native", |layer| {
            layer.on_stream("stream_native", stream.addr(), |_, _, next| {
                below!(layer, stream_native, exposed(next), out)
            })
        })
    }
}

unsafe extern "C" fn copy(
    backend: *mut DiBackend,
    stream: *mut DiStream,
    dst: *mut c_void,
    src: *const c_void,
    bytes: u64,
    kind: u32,
) -> *mut DiError {
    let (dst, src) = (dst.expose_provenance(), src.expose_provenance());
    // SAFETY: see above.
    unsafe {
        guard(backend, "copy", |layer| {
            layer.on_stream("copy", stream.addr(), |stream, device, next| {
                let sides = [(dst as u64, bytes, true), (src as u64, bytes, false)];
                let uses = layer.check_copy("copy", device, kind, &sides)?;
                layer.world().submit(stream, &uses);
                layer.work(stream, next, "copy", move || {
                    below!(layer, copy, exposed(next), exposed(dst), exposed(src), bytes, kind)
                })
            })
        })
    }
}

unsafe extern "C" fn copy_2d(
    backend: *mut DiBackend,
    stream: *mut DiStream,
    dst: *mut c_void,
    dst_pitch: u64,
    src: *const c_void,
    src_pitch: u64,
    width: u64,
    height: u64,
    kind: u32,
) -> *mut DiError {
    let (dst, src) = (dst.expose_provenance(), src.expose_provenance());
    // SAFETY: see above.
    unsafe {
        guard(backend, "copy_2d", |layer| {
            layer.on_stream("copy_2d", stream.addr(), |stream, device, next| {
                let reach = |pitch: u64| match (width, height) {
                    (0, _) | (_, 0) => 0,
                    _ => (height - 1).saturating_mul(pitch).saturating_add(width),
                };
                let sides = [(dst as u64, reach(dst_pitch), true), (src as u64, reach(src_pitch), false)];
                let uses = layer.check_copy("copy_2d", device, kind, &sides)?;
                layer.world().submit(stream, &uses);
                layer.work(stream, next, "copy_2d", move || {
                    let (stream, dst, src) = (exposed(next), exposed(dst), exposed::<c_void>(src));
                    below!(layer, copy_2d, stream, dst, dst_pitch, src, src_pitch, width, height, kind)
                })
            })
        })
    }
}

unsafe extern "C" fn fill(
    backend: *mut DiBackend,
    stream: *mut DiStream,
    dst: *mut c_void,
    pattern: u32,
    pattern_bytes: u32,
    count: u64,
) -> *mut DiError {
    let dst = dst.expose_provenance();
    // SAFETY: see above.
    unsafe {
        guard(backend, "fill", |layer| {
            layer.on_stream("fill", stream.addr(), |stream, device, next| {
                let bytes = count.saturating_mul(u64::from(pattern_bytes));
                let uses = layer.check_sides("fill", Some(device), &[(dst as u64, bytes, "the destination")])?;
                layer.world().submit(stream, &uses);
                layer.work(stream, next, "fill", move || {
                    below!(layer, fill, exposed(next), exposed(dst), pattern, pattern_bytes, count)
                })
            })
        })
    }
}

impl Layer {
    /// A device and the backend's own.
    pub(crate) fn device(&self, what: &str, address: usize) -> Result<(Handle, usize), Fault> {
        let (device, _) = self.find(what, Kind::Device, address)?;
        let next = self.world().devices.get(device).map_or(0, |device| device.next);
        Ok((device, next))
    }

    /// What the layer keeps of a device that was just opened.
    ///
    /// # Safety
    /// `raw` is device `index` of the backend, open.
    unsafe fn describe(&self, index: u32, raw: *mut DiDevice, next: usize) -> Result<Device, Fault> {
        // SAFETY: zeros are a valid struct; the backend writes no more than it says.
        unsafe {
            let mut info: DiDeviceInfo = std::mem::zeroed();
            info.struct_size = size_of::<DiDeviceInfo>() as u32;
            let error = below!(self, device_info, index, &raw mut info)?;
            self.settle(error)?;
            let mut own = std::ptr::null_mut();
            if self.options.poison {
                let error = below!(self, stream_create, raw, 0, 0, &raw mut own)?;
                self.settle(error)?;
            }
            Ok(Device { next, id: (info.device_type, index as i32), own_stream: own.expose_provenance() })
        }
    }

    /// An event, its device, and the backend's own event.
    fn event(&self, what: &str, address: usize) -> Result<(Handle, Handle, usize), Fault> {
        let (event, device) = self.find(what, Kind::Event, address)?;
        let next = self.world().events.get(event).map_or(0, |event| event.next);
        Ok((event, device, next))
    }

    /// Does something with a stream, which one thread at a time may use. `body` gets the stream, its device and the
    /// backend's own stream.
    pub(crate) fn on_stream(
        &self,
        what: &str,
        address: usize,
        body: impl FnOnce(Handle, Handle, usize) -> Result<*mut DiError, Fault>,
    ) -> Result<*mut DiError, Fault> {
        let (stream, device) = self.find(what, Kind::Stream, address)?;
        if !self.world().enter(stream) {
            let problem = format!("{stream} is in use by another thread");
            return Err(self.reporter.refuse(&Finding::new(Rule::Thread, Culprit::Core, what, problem)));
        }
        let next = self.world().streams.get(stream).map_or(0, |stream| stream.next);
        let outcome = body(stream, device, next);
        self.world().leave(stream);
        outcome
    }

    /// Does a piece of work on a stream, or lets its queue do it.
    ///
    /// # Safety
    /// What `job` uses stays valid until the stream has passed it. Nobody else uses the stream.
    pub(crate) unsafe fn work(
        &'static self,
        stream: Handle,
        next_stream: usize,
        what: &'static str,
        job: impl FnOnce() -> Result<*mut DiError, Fault> + Send + 'static,
    ) -> Result<*mut DiError, Fault> {
        let Some(queue) = self.queue(stream) else { return job() };
        // SAFETY: the error is nobody else's; the queue's thread alone uses the stream until somebody waits for it.
        queue.submit(what, move || unsafe {
            self.settle(job()?)?;
            self.settle_stream(next_stream)
        });
        Ok(std::ptr::null_mut())
    }

    /// The sides of a copy of this kind that are device memory lie in live memory: (address, bytes, is the destination).
    fn check_copy(
        &self,
        what: &str,
        device: Handle,
        kind: u32,
        sides: &[(u64, u64, bool)],
    ) -> Result<Vec<Handle>, Fault> {
        let is_checked = |is_destination: bool| match kind {
            DI_COPY_H2D => is_destination,
            DI_COPY_D2H => !is_destination,
            DI_COPY_D2D => true,
            // Of devices that are not known from the call.
            _ => true,
        };
        let device = (kind <= DI_COPY_D2D).then_some(device);
        let checked: Vec<(u64, u64, &str)> = sides
            .iter()
            .filter(|(.., is_destination)| is_checked(*is_destination))
            .map(|&(at, bytes, is_destination)| {
                (at, bytes, if is_destination { "the destination" } else { "the source" })
            })
            .collect();
        self.check_sides(what, device, &checked)
    }

    /// The buffers in which these ranges lie.
    fn check_sides(
        &self,
        what: &str,
        device: Option<Handle>,
        sides: &[(u64, u64, &str)],
    ) -> Result<Vec<Handle>, Fault> {
        let mut uses = Vec::new();
        for &(start, bytes, side) in sides.iter().filter(|(_, bytes, _)| *bytes > 0) {
            let place = self.world().place(device, &(start..start.saturating_add(bytes)));
            match place {
                Ok(buffer) => uses.push(buffer),
                Err(problem) => {
                    let finding = Finding::new(
                        Rule::Memory,
                        Culprit::Core,
                        what,
                        format!("{bytes} bytes of {side}: the range {problem}"),
                    );
                    self.reporter.report(&finding)?;
                }
            }
        }
        Ok(uses)
    }

    /// A call that succeeded although a stream of the device is captured.
    fn not_in_capture(&self, what: &str, device: Handle, has_succeeded: bool) -> Result<(), Fault> {
        let Some(stream) = self.world().capturing(device).filter(|_| has_succeeded) else { return Ok(()) };
        let problem =
            format!("{stream} is captured, so that {what} must fail with DI_E_NOT_CAPTURABLE, but it succeeded");
        self.reporter.report(&Finding::new(Rule::Capture, Culprit::Backend, what, problem))
    }

    /// Fills new memory.
    ///
    /// # Safety
    /// The range is memory that the backend has just allocated on the device.
    unsafe fn poison(&self, device: Handle, range: std::ops::Range<u64>) -> Result<(), Fault> {
        let own = self.world().devices.get(device).map_or(0, |device| device.own_stream);
        let _alone = self.own_streams.lock();
        // SAFETY: the stream is the layer's own, and used under the lock.
        let lane = unsafe { Lane::new(&self.next, own, &|_| None) };
        lane.fill(&Ranges::of(vec![range]), POISON)?;
        lane.sync()
    }

    /// The redzones of a buffer that is about to be freed are as they were made.
    ///
    /// # Safety
    /// No work that uses the buffer is pending.
    unsafe fn check_redzones(&self, buffer: Handle, device: Handle) -> Result<(), Fault> {
        let (whole, user, own) = {
            let world = self.world();
            let Some(buffer) = world.buffers.get(buffer).filter(|buffer| buffer.whole != buffer.user) else {
                return Ok(());
            };
            let own = world.devices.get(device).map_or(0, |device| device.own_stream);
            (buffer.whole.clone(), buffer.user.clone(), own)
        };
        let _alone = self.own_streams.lock();
        // SAFETY: as in `poison`; the buffer is alive.
        let lane = unsafe { Lane::new(&self.next, own, &|_| None) };
        // What does not overlap a front redzone of more than a margin was never anybody's business.
        let image = lane.read(&Ranges::of(vec![whole.start..user.start, user.end..whole.end]))?;
        for (range, bytes) in image.pieces() {
            let Some(index) = bytes.iter().position(|&byte| byte != POISON) else { continue };
            let address = range.start + index as u64;
            let place = if address < user.start {
                format!("{} bytes before its begin", user.start - address)
            } else {
                format!("{} bytes behind its end", address - user.end)
            };
            let problem = format!("somebody wrote {:#04x} outside of {buffer}, {place}", bytes[index]);
            self.reporter.mention(&Finding::new(Rule::OutOfBounds, Culprit::Backend, "free_", problem));
        }
        Ok(())
    }
}
