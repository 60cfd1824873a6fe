//! Errors of a backend, and the C objects that carry them.

use std::fmt;

use crate::abi::{
    DI_E_DEVICE_LOST, DI_E_INTERNAL, DI_E_INVALID, DI_E_OOM, DI_E_PANIC, DI_E_UNSUPPORTED, DI_E_WORKSPACE,
    DI_EF_POISONED, DI_EF_RETRYABLE, DI_EF_STICKY, DiError, DiStr,
};
use crate::check::ArgError;

/// What the caller can do about a [`Fault`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultCode {
    /// Fix the call.
    Invalid,
    /// Use another backend or another shape.
    Unsupported,
    /// Free memory or ask for less.
    OutOfMemory,
    /// Give the workspace that the plan asked for.
    Workspace,
    /// Reopen the device.
    DeviceLost,
    /// Report a bug: a panic was caught.
    Panic,
    /// Report a bug.
    Internal,
}

/// An error of a backend: a code for the program and a sentence for the person.
#[derive(Clone, Debug)]
pub struct Fault {
    /// What the caller can do.
    pub code: FaultCode,
    /// A sentence.
    pub message: String,
    /// Code of the vendor's library, or 0.
    pub vendor_code: i32,
}

impl Fault {
    /// A fault without a vendor code.
    pub fn new(code: FaultCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), vendor_code: 0 }
    }

    /// [`FaultCode::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(FaultCode::Invalid, message)
    }

    /// [`FaultCode::Unsupported`].
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(FaultCode::Unsupported, message)
    }

    /// Moves the fault into a C error object, which frees itself.
    pub(crate) fn into_raw(self, origin: &str) -> *mut DiError {
        let (code, flags) = match self.code {
            FaultCode::Invalid => (DI_E_INVALID, 0),
            FaultCode::Unsupported => (DI_E_UNSUPPORTED, 0),
            FaultCode::OutOfMemory => (DI_E_OOM, DI_EF_RETRYABLE),
            FaultCode::Workspace => (DI_E_WORKSPACE, 0),
            FaultCode::DeviceLost => (DI_E_DEVICE_LOST, DI_EF_STICKY),
            FaultCode::Panic => (DI_E_PANIC, DI_EF_POISONED),
            FaultCode::Internal => (DI_E_INTERNAL, 0),
        };
        let mut owned = Box::new(OwnedError {
            error: DiError {
                struct_size: size_of::<DiError>() as u32,
                code,
                flags,
                vendor_code: self.vendor_code,
                message: DiStr { ptr: std::ptr::null(), len: 0 },
                origin: DiStr { ptr: std::ptr::null(), len: 0 },
                release: Some(release),
            },
            message: self.message,
            origin: origin.to_owned(),
        });
        // The strings live in the box, whose address no longer changes.
        owned.error.message = DiStr { ptr: owned.message.as_ptr(), len: owned.message.len() };
        owned.error.origin = DiStr { ptr: owned.origin.as_ptr(), len: owned.origin.len() };
        Box::into_raw(owned).cast()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

impl From<ArgError> for Fault {
    fn from(e: ArgError) -> Self {
        Fault::invalid(e.to_string())
    }
}

/// The C object first, so that a pointer to it is a pointer to the whole.
#[repr(C)]
struct OwnedError {
    error: DiError,
    message: String,
    origin: String,
}

#[allow(unsafe_code)]
unsafe extern "C" fn release(error: *mut DiError) {
    // SAFETY: only `into_raw` sets this function, on objects that it boxed as `OwnedError`; the holder calls it once.
    drop(unsafe { Box::from_raw(error.cast::<OwnedError>()) });
}

/// `Ok` to null, `Err` to an object.
pub(crate) fn to_raw(result: Result<(), Fault>, origin: &str) -> *mut DiError {
    match result {
        Ok(()) => std::ptr::null_mut(),
        Err(fault) => fault.into_raw(origin),
    }
}

/// Text of a caught panic.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

/// A call while the backend is poisoned.
pub(crate) fn poisoned(name: &str) -> Fault {
    Fault::new(FaultCode::Panic, format!("{name} is unusable after a panic; restart the process"))
}
