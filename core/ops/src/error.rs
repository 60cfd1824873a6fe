//! Errors of ops and devices, by what the caller can do.

use std::fmt;

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
        "{origin} refuses a call of {op} that it {promise}: {reason}; say so in supports or plan, before the call is run"
    )]
    Dishonest {
        /// `backend/implementation`.
        origin: String,
        /// Op.
        op: String,
        /// How it said that it takes the call.
        promise: Promise,
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
    #[error("{}device memory is not available: {reason}", match bytes { 0 => String::new(), n => format!("{n} bytes of ") })]
    OutOfMemory {
        /// Bytes asked for; 0 where only the backend knows.
        bytes: u64,
        /// What the backend said.
        reason: String,
    },
    /// The backend's context is unusable: reopen the device or restart.
    #[error("the device is lost: {0}")]
    DeviceLost(String),
    /// The backend panicked and caught it: its state is unknown, and it refuses everything from now on. Restart the process.
    #[error("{origin}: {message}")]
    Panicked {
        /// `backend/op`.
        origin: String,
        /// What it said; from the Rust SDK, "panic in OP: TEXT (FILE:LINE)".
        message: String,
    },
    /// The backend reports a fault of its own.
    #[error("{origin}: {message}")]
    Backend {
        /// `backend/op`.
        origin: String,
        /// What it said.
        message: String,
    },
}

/// How an implementation says that it takes a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Its `supports` said yes.
    Supports,
    /// Its `plan` made a plan for the call.
    Plan,
    /// It has neither of them, which means every call of the catalogue.
    Catalogue,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Promise::Supports => "accepted in supports",
            Promise::Plan => "made a plan for",
            Promise::Catalogue => "must take, since it has neither supports nor plan",
        })
    }
}
