//! The exported symbol: versions are agreed, the backend's tables are read, and the layer's are handed over.

#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use deepinfer_plugin_api::abi::*;
use deepinfer_plugin_api::sdk::{Fault, FaultCode, LogLevel, connect, log, panic_text};

use crate::boundary::guard;
use crate::finding::{Culprit, Finding, Rule};
use crate::layer::{Layer, NAME};
use crate::next::Next;
use crate::options::Options;
use crate::{ops, read, runtime, tables};

#[cfg(panic = "abort")]
compile_error!("a plugin built with panic = \"abort\" cannot contain its panics");

/// The only exported symbol of this library. Called once for each backend that is wrapped.
///
/// # Safety
/// As `include/deepinfer_plugin.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deepinfer_backend_entry(request: *const DiEntryRequest, reply: *mut DiEntryReply) -> i32 {
    if request.is_null() || reply.is_null() {
        return DI_E_INVALID;
    }
    // SAFETY: the header promises structs of their `struct_size` bytes. Of the reply no more is written than the caller
    // has room for.
    unsafe {
        let mut own = read::sized(reply.cast_const());
        let outcome = catch_unwind(AssertUnwindSafe(|| start(&read::sized(request), &mut own)));
        let outcome = outcome
            .unwrap_or_else(|payload| Err(Fault::new(FaultCode::Panic, format!("panic: {}", panic_text(&*payload)))));
        let code = match outcome {
            Ok(()) => 0,
            Err(fault) => {
                let code = fault.code.raw();
                own.error = fault.into_raw(NAME);
                code
            }
        };
        let size = (own.struct_size as usize).min(size_of::<DiEntryReply>());
        std::ptr::copy_nonoverlapping((&raw const own).cast::<u8>(), reply.cast::<u8>(), size);
        code
    }
}

/// # Safety
/// As [`deepinfer_backend_entry`].
unsafe fn start(request: &DiEntryRequest, reply: &mut DiEntryReply) -> Result<(), Fault> {
    let text = |text: &'static str| DiStr { ptr: text.as_ptr(), len: text.len() };
    // What a refusal needs, too.
    reply.name = text(NAME);
    reply.version = text(env!("CARGO_PKG_VERSION"));
    reply.build = text(concat!("deepinfer-validate ", env!("CARGO_PKG_VERSION")));
    (reply.major, reply.minor, reply.min_core_minor) = (DI_ABI_MAJOR, DI_ABI_MINOR, 0);
    reply.flags = DI_RF_CONTAINS_PANICS | DI_RF_IS_LAYER;
    if !(request.min_major..=request.max_major).contains(&DI_ABI_MAJOR) {
        let (low, high) = (request.min_major, request.max_major);
        let problem = format!("{NAME} speaks ABI major {DI_ABI_MAJOR} only; the core speaks {low} to {high}");
        return Err(Fault::new(FaultCode::Abi, problem));
    }
    if request.next.is_null() {
        return Err(Fault::unsupported(format!(
            "{NAME} is a layer and needs a backend to wrap; set DEEPINFER_LAYERS={NAME}"
        )));
    }
    // SAFETY: the request's table lives as long as the process, and so do those of the backend below.
    let (next, options) = unsafe {
        connect(request.host, NAME);
        let bytes = match request.options.len {
            0 => &[],
            len => std::slice::from_raw_parts(request.options.ptr, len),
        };
        (Next::read(request.next)?, Options::parse(&String::from_utf8_lossy(bytes))?)
    };
    let entries = ops::table(&next)?;
    log(LogLevel::Info, format!("over {}: {options}", next.origin()));
    // Leaked on purpose: the library is never unloaded, and the core holds these addresses as long as it lives.
    let layer: &'static Layer = Box::leak(Box::new(Layer::new(next, options)?));
    let entries = Vec::leak(entries);
    let runtime: &'static DiRuntimeApi = Box::leak(Box::new(runtime::table(layer)));
    reply.api = Box::leak(Box::new(DiBackendApi {
        struct_size: size_of::<DiBackendApi>() as u32,
        flags: 0,
        backend: std::ptr::from_ref(layer).cast_mut().cast(),
        runtime,
        ops: entries.as_ptr(),
        n_ops: entries.len(),
        op_stride: size_of::<DiOpEntry>(),
        table: Some(tables::table),
        shutdown: Some(shutdown),
    }));
    Ok(())
}

/// # Safety
/// `backend` is the layer's; no device is open.
unsafe extern "C" fn shutdown(backend: *mut DiBackend) -> *mut DiError {
    // SAFETY: the caller's contract.
    unsafe {
        guard(backend, "shutdown", |layer| {
            let open: Vec<String> = layer.world().devices.iter().map(|(device, _)| device.to_string()).collect();
            if !open.is_empty() {
                let problem = format!("{} is still open", open.join(", "));
                layer.reporter.mention(&Finding::new(Rule::Leak, Culprit::Core, "shutdown", problem));
            }
            log(LogLevel::Info, layer.reporter.tally(|tally| tally.to_string()));
            let Some(shutdown) = layer.next.shutdown else { return Ok(std::ptr::null_mut()) };
            layer.took("shutdown", shutdown(layer.next.raw))
        })
    }
}
