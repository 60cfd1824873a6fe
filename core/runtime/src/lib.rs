//! Finding, loading and driving accelerator plugins.
//!
//! [`Runtime`] turns a [`Selection`] (`auto`, a name, or a path) into an [`OpenDevice`], which runs ops and owns memory as
//! [`deepinfer_ops::Device`]. The way there: [`SearchPath`] lists candidate files, [`load`] opens one and shakes hands with
//! it, [`LoadedBackend`] is the result. [`BackendReport`] tells the same story for people.
//!
//! This is the only crate of the core that calls foreign code. What a plugin returns is checked when it is loaded; what
//! the core passes is checked before each call. A library is never unloaded: threads and thread-local destructors of a
//! plugin would outlive its code.

#![deny(unsafe_code)]

mod backend;
mod device;
mod elf;
mod find;
mod host;
mod load;
mod memory;
mod one_line;
mod plan;
mod raw;
mod report;
mod select;

pub use backend::{DeviceInfo, LoadedBackend, OpImpl, PluginError, missing_ops};
pub use device::{Event, OpenDevice};
pub use find::SearchPath;
pub use load::{LoadError, load};
pub use report::{BackendReport, BackendState, OpReport};
pub use select::{Choice, Rejection, Runtime, SelectError, Selection};

/// The profile that the language model needs.
pub const TEXT_PROFILE: &str = "v41-text";
