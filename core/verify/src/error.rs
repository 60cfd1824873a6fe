//! Errors, by what the caller can do.

use deepinfer_engine::{BuildError, EngineError};
use deepinfer_ops::OpError;

/// Why nothing could be verified. That two runs differ is no error but what a [`Report`](crate::Report) says.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The text of a cell cannot be understood.
    #[error("\"{field}\" is no part of a cell; it must be {wanted}")]
    CellText {
        /// What was found.
        field: String,
        /// What it may be.
        wanted: &'static str,
    },
    /// An axis has no such name.
    #[error("there is no axis \"{name}\"; the axes are {all}")]
    NoAxis {
        /// What was asked for.
        name: String,
        /// All names.
        all: String,
    },
    /// No engine can be built for a cell.
    #[error("no engine can be built for the cell {cell}: {source}")]
    Build {
        /// The cell.
        cell: String,
        /// Why.
        source: Box<BuildError>,
    },
    /// The engine refuses a request of the workload.
    #[error("the engine refuses request {request} of seed {seed}: {source}")]
    Refused {
        /// Number of the request.
        request: usize,
        /// Seed of the workload.
        seed: u64,
        /// Why.
        source: Box<EngineError>,
    },
    /// A request cannot run even alone, so that there is nothing to hold others to.
    #[error("request {request} of seed {seed} fails when it runs alone: {message}")]
    Alone {
        /// Number of the request.
        request: usize,
        /// Seed of the workload.
        seed: u64,
        /// Why.
        message: String,
    },
    /// An earlier error took the model along.
    #[error("the model was lost to an earlier error; load it again")]
    NoModel,
    /// The device is at fault.
    #[error(transparent)]
    Device(#[from] OpError),
    /// The other process has not done its work.
    #[error("the cell {cell} did not run in a process of its own: {reason}")]
    Child {
        /// The cell.
        cell: String,
        /// Why.
        reason: String,
    },
}
