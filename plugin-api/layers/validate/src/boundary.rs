//! What the functions of all tables share: where panics end, structs that the backend fills, handles as pointers.

#![allow(unsafe_code)]

use deepinfer_plugin_api::abi::{DiBackend, DiError};
use deepinfer_plugin_api::sdk::{Fault, FaultCode, ForeignError, LogLevel, log};

use crate::finding::{Culprit, Finding, Rule};
use crate::handles::{Handle, Kind};
use crate::layer::Layer;

/// Largest struct that a caller may ask to be filled.
const MOST_BYTES: usize = 1 << 16;
/// Bytes behind such a struct that must stay as they are.
const CANARY: [u64; 8] = [0xA5C3_96F0_5A3C_690F; 8];

/// A handle as it crosses the boundary. Nobody dereferences it.
pub(crate) fn pointer<T>(handle: Handle) -> *mut T {
    std::ptr::without_provenance_mut(handle.address())
}

/// An object of the backend, kept as a number.
pub(crate) fn exposed<T>(next: usize) -> *mut T {
    std::ptr::with_exposed_provenance_mut(next)
}

/// The layer behind the pointer that every function gets first.
///
/// # Safety
/// `backend` is the one of an entry reply of this library.
pub(crate) unsafe fn layer(backend: *mut DiBackend) -> &'static Layer {
    // SAFETY: the entry leaked a `Layer` and gave its address.
    unsafe { &*backend.cast::<Layer>() }
}

/// Runs the function `what` and turns its outcome into what the boundary wants.
///
/// # Safety
/// As [`layer`].
pub(crate) unsafe fn guard(
    backend: *mut DiBackend,
    what: &str,
    body: impl FnOnce(&'static Layer) -> Result<*mut DiError, Fault>,
) -> *mut DiError {
    // SAFETY: the same contract.
    let layer = unsafe { layer(backend) };
    // A fault of the body is not one of the layer: the backend's panic must not poison what is over it.
    match layer.containment.run(what, || Ok(body(layer))).and_then(|outcome| outcome) {
        Ok(error) => error,
        Err(fault) => layer.containment.to_raw(what, Err(fault)),
    }
}

/// [`guard`] for a function that waits: it does so after a panic, too, since the caller is about to free memory.
///
/// # Safety
/// As [`layer`].
pub(crate) unsafe fn guard_wait(
    backend: *mut DiBackend,
    what: &str,
    body: impl FnOnce(&'static Layer) -> Result<*mut DiError, Fault>,
) -> *mut DiError {
    // SAFETY: the same contract.
    let layer = unsafe { layer(backend) };
    let mut outcome = Ok(std::ptr::null_mut());
    let waited = layer.containment.wait(what, || {
        outcome = body(layer);
        Ok(())
    });
    match outcome {
        Ok(foreign) if !foreign.is_null() => foreign,
        Ok(_) => layer.containment.to_raw(what, waited),
        Err(fault) => layer.containment.to_raw(what, Err(fault)),
    }
}

/// [`guard`] for a function that cannot fail.
///
/// # Safety
/// As [`layer`].
pub(crate) unsafe fn guard_void(
    backend: *mut DiBackend,
    what: &str,
    body: impl FnOnce(&'static Layer) -> Result<(), Fault>,
) {
    // SAFETY: the same contract.
    let layer = unsafe { layer(backend) };
    let mut outcome = Ok(());
    let waited = layer.containment.wait(what, || {
        outcome = body(layer);
        Ok(())
    });
    match outcome.and(waited) {
        Err(fault) if matches!(fault.code, FaultCode::Panic | FaultCode::DeviceLost) => {
            layer.note_loss(|| format!("{what}: {fault}; nothing more is looked at where memory is freed"));
        }
        Err(fault) => log(LogLevel::Error, format!("{what}: {fault}")),
        Ok(()) => {}
    }
}

impl Layer {
    /// An object that the backend has just made, which must be one.
    ///
    /// # Errors
    /// It is null: a success without a result.
    pub(crate) fn made<T>(&self, what: &str, object: *mut T, kind: Kind) -> Result<usize, Fault> {
        if !object.is_null() {
            return Ok(object.expose_provenance());
        }
        let problem = format!("it reported success, but gave no {}", kind.name());
        Err(self.reporter.refuse(&Finding::new(Rule::OutPointer, Culprit::Backend, what, problem)))
    }

    /// Calls the backend with a copy of the caller's struct, behind which nothing may be written, and copies back what it
    /// filled in.
    ///
    /// # Errors
    /// The backend wrote beyond `struct_size`, or the struct cannot hold its own size.
    ///
    /// # Safety
    /// `out` points to a struct that begins with its `struct_size`, so many bytes of it writable.
    pub(crate) unsafe fn filled<T>(
        &self,
        what: &str,
        out: *mut T,
        call: impl FnOnce(*mut T) -> *mut DiError,
    ) -> Result<*mut DiError, Fault> {
        let refuse = |by, rule, problem: String| Err(self.reporter.refuse(&Finding::new(rule, by, what, problem)));
        if out.is_null() {
            return refuse(Culprit::Core, Rule::Struct, "there is no struct to fill".to_owned());
        }
        // SAFETY: the size comes first.
        let size = unsafe { out.cast::<u32>().read() } as usize;
        if !(size_of::<u32>()..=MOST_BYTES).contains(&size) {
            return refuse(Culprit::Core, Rule::Struct, format!("the struct to fill has struct_size {size}"));
        }
        let words = size.div_ceil(size_of::<u64>());
        let mut copy = vec![0_u64; words + CANARY.len()];
        let bytes = copy.as_mut_ptr().cast::<u8>();
        // SAFETY: `size` bytes exist on both sides, and the canary has room behind them.
        let (error, is_intact) = unsafe {
            std::ptr::copy_nonoverlapping(out.cast::<u8>(), bytes, size);
            bytes.add(size).cast::<[u64; 8]>().write_unaligned(CANARY);
            let error = self.took(what, call(bytes.cast()))?;
            (error, bytes.add(size).cast::<[u64; 8]>().read_unaligned() == CANARY)
        };
        if !is_intact {
            // SAFETY: ours, and nobody else has it.
            drop(unsafe { ForeignError::take(error) });
            return refuse(Culprit::Backend, Rule::OutPointer, format!("it wrote beyond struct_size {size}"));
        }
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(bytes.cast_const(), out.cast::<u8>(), size) };
        Ok(error)
    }
}
