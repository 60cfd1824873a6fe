//! Errors of a backend, and the C objects that carry them.

use std::fmt;

use crate::abi::{
    DI_E_ABI, DI_E_DEVICE_LOST, DI_E_INTERNAL, DI_E_INVALID, DI_E_NOT_CAPTURABLE, DI_E_OOM, DI_E_PANIC,
    DI_E_UNSUPPORTED, DI_E_WORKSPACE, DI_EF_POISONED, DI_EF_RETRYABLE, DI_EF_STICKY, DiError, DiStr,
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
    /// Use another version of the plugin or of the core.
    Abi,
    /// Make the call outside of a graph capture.
    NotCapturable,
    /// Report a bug: a panic was caught.
    Panic,
    /// Report a bug.
    Internal,
}

impl FaultCode {
    /// The `DI_E_*` of the boundary.
    pub const fn raw(self) -> i32 {
        match self {
            FaultCode::Invalid => DI_E_INVALID,
            FaultCode::Unsupported => DI_E_UNSUPPORTED,
            FaultCode::OutOfMemory => DI_E_OOM,
            FaultCode::Workspace => DI_E_WORKSPACE,
            FaultCode::DeviceLost => DI_E_DEVICE_LOST,
            FaultCode::Abi => DI_E_ABI,
            FaultCode::NotCapturable => DI_E_NOT_CAPTURABLE,
            FaultCode::Panic => DI_E_PANIC,
            FaultCode::Internal => DI_E_INTERNAL,
        }
    }

    /// The code of a `DI_E_*`; of a number that this version does not know, [`FaultCode::Internal`].
    pub const fn from_raw(code: i32) -> Self {
        match code {
            DI_E_INVALID => FaultCode::Invalid,
            DI_E_UNSUPPORTED => FaultCode::Unsupported,
            DI_E_OOM => FaultCode::OutOfMemory,
            DI_E_WORKSPACE => FaultCode::Workspace,
            DI_E_DEVICE_LOST => FaultCode::DeviceLost,
            DI_E_ABI => FaultCode::Abi,
            DI_E_NOT_CAPTURABLE => FaultCode::NotCapturable,
            DI_E_PANIC => FaultCode::Panic,
            _ => FaultCode::Internal,
        }
    }
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
    /// The op or function in which it arose, when that is not the one that reports it.
    pub origin: Option<String>,
}

impl Fault {
    /// A fault without a vendor code.
    pub fn new(code: FaultCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), vendor_code: 0, origin: None }
    }

    /// [`FaultCode::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(FaultCode::Invalid, message)
    }

    /// [`FaultCode::Unsupported`].
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(FaultCode::Unsupported, message)
    }

    /// The fault as one that arose in `what`, unless it knows its origin.
    #[must_use]
    pub fn or_origin(mut self, what: &str) -> Self {
        self.origin.get_or_insert_with(|| what.to_owned());
        self
    }

    /// Moves the fault into a C error object, which frees itself. `name` is the plugin's; the object's origin is
    /// `name/op` when the fault knows its own, and `name` otherwise. An origin that has a `/` already is that of another
    /// plugin, whose fault a layer passes on, and stays as it is.
    pub fn into_raw(self, name: &str) -> *mut DiError {
        let flags = match self.code {
            FaultCode::OutOfMemory => DI_EF_RETRYABLE,
            FaultCode::DeviceLost => DI_EF_STICKY,
            FaultCode::Panic => DI_EF_POISONED,
            _ => 0,
        };
        let mut owned = Box::new(OwnedError {
            error: DiError {
                struct_size: size_of::<DiError>() as u32,
                code: self.code.raw(),
                flags,
                vendor_code: self.vendor_code,
                message: DiStr { ptr: std::ptr::null(), len: 0 },
                origin: DiStr { ptr: std::ptr::null(), len: 0 },
                release: Some(release),
            },
            message: self.message,
            origin: match self.origin {
                None => name.to_owned(),
                Some(origin) if origin.contains('/') => origin,
                Some(origin) => format!("{name}/{origin}"),
            },
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

/// An error object of another module, read.
///
/// For a layer, which gets errors of the backend below it. One that is only passed on is best left as it is.
#[derive(Clone, Debug)]
pub struct ForeignError {
    /// `DI_E_*`.
    pub code: i32,
    /// `DI_EF_*` bits.
    pub flags: u32,
    /// Code of the vendor's library, or 0.
    pub vendor_code: i32,
    /// A sentence.
    pub message: String,
    /// `backend/op`.
    pub origin: String,
}

#[allow(unsafe_code)]
impl ForeignError {
    /// Reads an error and leaves it to its holder; `None` for null, which is success. Fields that a shorter object lacks
    /// read as zero.
    ///
    /// # Safety
    /// `error` is null or a live error object.
    pub unsafe fn read(error: *const DiError) -> Option<Self> {
        if error.is_null() {
            return None;
        }
        // SAFETY: the caller vouches for `struct_size` bytes; the texts live as long as the object.
        unsafe {
            let error = read_prefix(error);
            Some(Self {
                code: error.code,
                flags: error.flags,
                vendor_code: error.vendor_code,
                message: text(error.message),
                origin: text(error.origin),
            })
        }
    }

    /// Reads an error and releases it; `None` for null, which is success.
    ///
    /// # Safety
    /// `error` is null or a live error object that nobody uses afterwards.
    pub unsafe fn take(error: *mut DiError) -> Option<Self> {
        // SAFETY: the same contract.
        unsafe {
            let read = Self::read(error)?;
            if let Some(release) = read_prefix(error).release {
                release(error);
            }
            Some(read)
        }
    }
}

impl fmt::Display for ForeignError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.message)
    }
}

impl std::error::Error for ForeignError {}

impl From<ForeignError> for Fault {
    fn from(error: ForeignError) -> Self {
        Fault {
            code: FaultCode::from_raw(error.code),
            message: error.message,
            vendor_code: error.vendor_code,
            origin: Some(error.origin).filter(|origin| !origin.is_empty()),
        }
    }
}

/// The object as far as its writer knew it, zero behind.
///
/// # Safety
/// `error` points to `struct_size` readable bytes.
#[allow(unsafe_code)]
unsafe fn read_prefix(error: *const DiError) -> DiError {
    let mut whole = std::mem::MaybeUninit::<DiError>::zeroed();
    // SAFETY: the size comes first in every version; the copied bytes exist on both sides, and zeroed fields are valid.
    unsafe {
        let bytes = (error.cast::<u32>().read() as usize).min(size_of::<DiError>());
        std::ptr::copy_nonoverlapping(error.cast::<u8>(), whole.as_mut_ptr().cast(), bytes);
        whole.assume_init()
    }
}

/// Borrowed text, copied; invalid bytes are replaced.
///
/// # Safety
/// A `text.ptr` that is not null has `text.len` readable bytes.
#[allow(unsafe_code)]
pub(crate) unsafe fn text(text: DiStr) -> String {
    if text.ptr.is_null() || text.len == 0 {
        return String::new();
    }
    // SAFETY: the caller's contract.
    String::from_utf8_lossy(unsafe { std::slice::from_raw_parts(text.ptr, text.len) }).into_owned()
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_crosses_the_boundary_and_comes_back() {
        let mut fault = Fault::new(FaultCode::NotCapturable, "copies pageable memory").or_origin("copy");
        fault.vendor_code = -3;
        let raw = fault.or_origin("another").into_raw("npu");
        // SAFETY: just made; taken once.
        let (read, taken) = unsafe { (ForeignError::read(raw).unwrap(), ForeignError::take(raw).unwrap()) };
        assert_eq!(read.to_string(), "npu/copy: copies pageable memory");
        assert_eq!((taken.code, taken.flags, taken.vendor_code), (DI_E_NOT_CAPTURABLE, 0, -3));
        let fault = Fault::from(taken);
        assert_eq!((fault.code, fault.origin.as_deref()), (FaultCode::NotCapturable, Some("npu/copy")));
        // A layer that passes it on is not where it arose.
        // SAFETY: just made; taken once.
        let again = unsafe { ForeignError::take(fault.into_raw("layer")) }.unwrap();
        assert_eq!(again.origin, "npu/copy");
        // SAFETY: null is success.
        assert!(unsafe { ForeignError::take(std::ptr::null_mut()) }.is_none());
    }

    #[test]
    fn codes_are_those_of_the_header() {
        for code in DI_E_INVALID..=DI_E_NOT_CAPTURABLE {
            assert_eq!(FaultCode::from_raw(code).raw(), code);
        }
        assert_eq!(FaultCode::from_raw(99), FaultCode::Internal);
    }

    #[test]
    fn of_a_shorter_object_only_its_own_fields_are_read() {
        // Eight bytes, and junk behind them that must not be read as a pointer.
        let short = [8_u32.to_ne_bytes(), DI_E_OOM.to_ne_bytes(), [0xAA; 4], [0xAA; 4]].concat();
        let mut words = vec![u64::from_ne_bytes([0xAA; 8]); size_of::<DiError>() / 8];
        words.iter_mut().zip(short.chunks(8)).for_each(|(w, b)| *w = u64::from_ne_bytes(b.try_into().unwrap()));
        // SAFETY: eight bytes are readable, and there is nothing to release.
        let read = unsafe { ForeignError::take(words.as_mut_ptr().cast()) }.unwrap();
        assert_eq!((read.code, read.flags, read.message.as_str()), (DI_E_OOM, 0, ""));
    }
}
