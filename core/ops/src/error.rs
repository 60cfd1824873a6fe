//! Errors of ops and devices, by what the caller can do.

use deepinfer_plugin_api::ArgError;

/// Why an op, an allocation or a copy failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpError {
    /// The arguments break the catalogue's rules: a bug of the caller.
    #[error(transparent)]
    Argument(#[from] ArgError),
    /// The backend lacks the op or this form of it: choose another backend.
    #[error("{backend} cannot run {op}: {reason}")]
    Unsupported {
        /// Backend.
        backend: String,
        /// Op.
        op: String,
        /// Why.
        reason: String,
    },
    /// The backend said that it runs every call like this, then refused one when it was run: a fault of the backend.
    #[error(
        "{backend}/{implementation} refuses a call of {op} that it {promise}: {reason}; say so in supports or plan, \
         before the call is run"
    )]
    Dishonest {
        /// Backend.
        backend: String,
        /// Op.
        op: String,
        /// Implementation of the op.
        implementation: String,
        /// How it said that it takes the call: "accepted in supports", ...
        promise: &'static str,
        /// Why it refused.
        reason: String,
    },
    /// A step that cannot be part of a command list: do it before or after.
    #[error("{step} is not possible while a command list is recorded; do it before the recording or after it")]
    Recording {
        /// What was asked for: "an upload", ...
        step: &'static str,
    },
    /// Memory ran out: ask for less.
    #[error("{bytes} bytes of device memory are not available: {reason}")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
        /// What the backend said.
        reason: String,
    },
    /// The backend's context is unusable: reopen the device or restart.
    #[error("the device is lost: {0}")]
    DeviceLost(String),
    /// The backend reports a fault of its own.
    #[error("{origin}: {message}")]
    Backend {
        /// `backend/op`.
        origin: String,
        /// What it said.
        message: String,
    },
}
