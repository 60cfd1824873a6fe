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
