//! What a backend may offer beyond [`Backend`], and the functions of the boundary for it.

#![allow(unsafe_code)]

use std::ffi::c_void;

use crate::abi::*;
use crate::sdk::runtime_table::{State, object, with, write_prefix};
use crate::sdk::{Backend, Fault};

/// The optional parts of a backend. What is `None` is absent from its tables, so that a caller sees before it asks:
///
/// ```text
/// const EXTRAS: Extras<Self> = Extras { event_elapsed: Some(Self::elapsed), ..Extras::NONE };
/// ```
// Plain functions: names for their types would say less than the types.
#[allow(clippy::type_complexity)]
pub struct Extras<B: Backend> {
    /// How devices `a` and `b` of [`Backend::devices`] are connected; creates no context.
    pub device_link: Option<fn(&B, u32, u32) -> Result<LinkInfo, Fault>>,
    /// The vendor's own handle of a stream (`cudaStream_t`, `aclrtStream`).
    pub stream_native: Option<fn(&B, &B::Stream) -> Result<*mut c_void, Fault>>,
    /// Milliseconds between two events that have passed.
    pub event_elapsed: Option<fn(&B, &B::Event, &B::Event) -> Result<f32, Fault>>,
    /// Copies rows between pitched memories, in stream order.
    pub copy_2d: Option<Copy2d<B>>,
    /// Graph capture: [`GraphBackend::TABLE`](crate::sdk::GraphBackend::TABLE).
    pub graph: Option<DiGraphApi>,
    /// Any other optional table by its `DI_TABLE_*`, or null. It lives as long as the process and every function of it is
    /// present. The table of the backend's own ops is made by the SDK.
    pub table: Option<fn(&B, u32) -> *const c_void>,
    /// Joins every thread that the backend has started itself; nothing is called afterwards. Queues of streams end with
    /// their streams.
    pub shutdown: Option<fn(&B) -> Result<(), Fault>>,
}

/// [`Extras::copy_2d`]. Its contract: until the stream has passed the copy, each row is readable at `src` and writable at
/// `dst`; `kind` is a `DI_COPY_*`.
pub type Copy2d<B> = unsafe fn(&B, &<B as Backend>::Stream, Rows2d) -> Result<(), Fault>;

/// Rows at equal distances.
#[derive(Clone, Copy, Debug)]
pub struct Rows2d {
    /// First row to write.
    pub dst: *mut c_void,
    /// Bytes from one written row to the next.
    pub dst_pitch: u64,
    /// First row to read.
    pub src: *const c_void,
    /// Bytes from one read row to the next.
    pub src_pitch: u64,
    /// Bytes of a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
    /// `DI_COPY_*`.
    pub kind: u32,
}

/// How two devices are connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkInfo {
    /// `DI_LINK_*`.
    pub class: u32,
    /// `DI_LF_*` bits.
    pub flags: u32,
    /// Switches in between.
    pub hops: u32,
    /// Bandwidth in one direction, or 0 when unknown.
    pub bytes_per_s: u64,
    /// Latency, or 0 when unknown.
    pub latency_ns: u64,
}

impl<B: Backend> Extras<B> {
    /// None of them.
    pub const NONE: Self = Self {
        device_link: None,
        stream_native: None,
        event_elapsed: None,
        copy_2d: None,
        graph: None,
        table: None,
        shutdown: None,
    };

    /// Where the graph table lies, for the life of the process.
    const GRAPH: Option<&'static DiGraphApi> = match &B::EXTRAS.graph {
        Some(table) => Some(table),
        None => None,
    };
}

/// The part of a backend that the boundary asks for although its table does not have it.
fn absent(what: &str) -> Fault {
    Fault::unsupported(format!("{what} is not offered by this backend"))
}

// Every function below has the contract of `runtime_table`.

pub(crate) unsafe extern "C" fn device_link<B: Backend>(
    backend: *mut DiBackend,
    a: u32,
    b: u32,
    out: *mut DiLinkInfo,
) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`; `out.struct_size` bytes are writable.
    unsafe {
        with::<B>(backend, "device_link", |this| {
            let link = B::EXTRAS.device_link.ok_or_else(|| absent("device_link"))?(this, a, b)?;
            let full = DiLinkInfo {
                struct_size: size_of::<DiLinkInfo>() as u32,
                link_class: link.class,
                flags: link.flags,
                hops: link.hops,
                bytes_per_s: link.bytes_per_s,
                latency_ns: link.latency_ns,
            };
            write_prefix(full, out);
            Ok(())
        })
    }
}

pub(crate) unsafe extern "C" fn stream_native<B: Backend>(
    backend: *mut DiBackend,
    stream: *mut DiStream,
    out: *mut *mut c_void,
) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`.
    unsafe {
        with::<B>(backend, "stream_native", |this| {
            let native = B::EXTRAS.stream_native.ok_or_else(|| absent("stream_native"))?;
            *out = native(this, object(stream, "stream")?)?;
            Ok(())
        })
    }
}

pub(crate) unsafe extern "C" fn event_elapsed<B: Backend>(
    backend: *mut DiBackend,
    from: *mut DiEvent,
    to: *mut DiEvent,
    milliseconds: *mut f32,
) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`.
    unsafe {
        with::<B>(backend, "event_elapsed", |this| {
            let elapsed = B::EXTRAS.event_elapsed.ok_or_else(|| absent("event_elapsed"))?;
            *milliseconds = elapsed(this, object(from, "first event")?, object(to, "second event")?)?;
            Ok(())
        })
    }
}

pub(crate) unsafe extern "C" fn copy_2d<B: Backend>(
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
    // SAFETY: the contract of `runtime_table`, and of the field: all rows are valid until the stream has passed.
    unsafe {
        with::<B>(backend, "copy_2d", |this| {
            if height > 1 && (dst_pitch < width || src_pitch < width) {
                return Err(Fault::invalid(format!(
                    "rows of {width} bytes overlap at pitches of {dst_pitch} and {src_pitch}"
                )));
            }
            let copy = B::EXTRAS.copy_2d.ok_or_else(|| absent("copy_2d"))?;
            copy(this, object(stream, "stream")?, Rows2d { dst, dst_pitch, src, src_pitch, width, height, kind })
        })
    }
}

pub(crate) unsafe extern "C" fn table<B: Backend>(backend: *mut DiBackend, id: u32) -> *const c_void {
    let mut found = std::ptr::null();
    // SAFETY: the contract of `runtime_table`.
    unsafe {
        let error = with::<B>(backend, "table", |this| {
            found = match id {
                DI_TABLE_GRAPH => Extras::<B>::GRAPH.map_or(std::ptr::null(), |table| (&raw const *table).cast()),
                DI_TABLE_OPS => State::of(backend).ops.map_or(std::ptr::null(), |table| (&raw const *table).cast()),
                _ => B::EXTRAS.table.map_or(std::ptr::null(), |find| find(this, id)),
            };
            Ok(())
        });
        // There is no way to report it: an absent table is the answer.
        if let Some(release) = error.as_ref().and_then(|error| error.release) {
            release(error);
        }
    }
    found
}

pub(crate) unsafe extern "C" fn shutdown<B: Backend>(backend: *mut DiBackend) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`; after a panic, too, threads must be joined.
    unsafe {
        crate::sdk::runtime_table::wait_with::<B>(backend, "shutdown", |this| {
            B::EXTRAS.shutdown.ok_or_else(|| absent("shutdown"))?(this)
        })
    }
}
