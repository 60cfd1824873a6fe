//! Finding, loading and driving accelerator plugins.
//!
//! [`Runtime`] turns a [`Selection`] (`auto`, a name, or a path) into an [`OpenDevice`], which runs ops and owns memory as
//! [`deepinfer_ops::Device`]. The way there: [`SearchPath`] lists [`Candidate`]s, each a library or a [`Manifest`] with its
//! library; [`Runtime::decide`] chooses one; [`load`] opens it and shakes hands with it; [`Layers`] go over it;
//! [`LoadedBackend`] is the result. [`BackendReport`] tells the same story for people, and [`Topology`] what the machine has.
//!
//! This is the only crate of the core that calls foreign code. What a plugin returns is checked when it is loaded; what
//! the core passes is checked before each call. A library is never unloaded: threads and thread-local destructors of a
//! plugin would outlive its code.

#![deny(unsafe_code)]

mod backend;
mod command_list;
pub mod conformance;
mod decide;
mod device;
mod elf;
mod find;
mod host;
mod implementations;
mod in_flight;
mod layers;
mod lifecycle;
mod load;
mod manifest;
mod memory;
mod near;
mod offer;
mod one_line;
mod plan;
pub mod process;
mod prototype;
mod raw;
mod regular;
mod report;
mod select;
mod stream;
mod topology;

pub use backend::{DeviceInfo, LoadedBackend, OpImpl, PluginError, missing_ops};
pub use command_list::CommandList;
pub use decide::{Chosen, Decision, Step, Tried, Verdict};
pub use deepinfer_plugin_api::CatalogueId;
pub use device::OpenDevice;
pub use find::{Candidate, Origin, SearchPath};
pub use implementations::{OpenError, OpenOptions, Pin};
pub use layers::{LayerError, LayerInfo, Layers};
pub use load::{LoadError, load};
pub use manifest::{Manifest, ManifestAbi, ManifestError, PciId, PluginKind};
pub use offer::{LinkInfo, SpaceInfo, VendorArg, VendorOp};
pub use one_line::one_line;
pub use regular::open_regular;
pub use report::{BackendDetails, BackendReport, BackendState, DeviceReport, OpReport, ProfileReport, memory_in_words};
pub use select::{Choice, Rejection, Runtime, SelectError, Selection, shutdown_all};
pub use stream::{Event, HostBytes};
pub use topology::{Cpu, Driver, Memory, NumaNode, PciDevice, PciLink, Topology};

/// The profile that the language model needs.
pub const TEXT_PROFILE: &str = "v41-text";
