//! What a backend written in Rust implements.
//!
//! A kernel is a safe function over checked [`tensor`] views, registered with [`kernel!`](crate::kernel); a [`Backend`] owns
//! devices and memory, with optional parts in [`Extras`]; [`export_backend!`](crate::export_backend) joins both into the
//! exported symbol. No panic leaves the library: it becomes an error, and the backend refuses further work because its
//! state is unknown.
//!
//! - An implementation that does not take every call, or prepares itself per shape, has a function that answers with
//!   [`Support`] or a [`Plan`]; it sees shapes, never content.
//! - A backend in host memory gets streams and events from [`HostQueue`] and [`HostEvent`].
//! - An op outside the catalogue is declared with [`vendor_op!`](crate::vendor_op).
//! - A layer, which is written against the raw tables, finds here [`Containment`] for its panics, [`Fault::into_raw`] and
//!   [`ForeignError`] for error objects, [`connect`] for the core's log, and [`OwnedArgs`] to run a call later.

mod backend;
mod cache_pages;
mod contain;
mod entry;
mod error;
mod extras;
mod graph;
mod host;
mod host_memory;
mod kernel;
mod owned_args;
mod plan;
mod probe;
mod queue;
mod runtime_table;
pub mod tensor;
mod vendor;

pub use backend::{Backend, DeviceInfo, SpaceInfo};
pub use cache_pages::cache_format;
pub use contain::{Containment, panic_text};
pub use entry::{Export, entry};
pub use error::{Fault, FaultCode, ForeignError};
pub use extras::{Copy2d, Extras, LinkInfo, Rows2d};
pub use graph::GraphBackend;
pub use host::{LogLevel, connect, log};
pub use host_memory::HostMemory;
pub use kernel::{Cx, Functions, Kernel, KernelEntry, PlanFn, SupportsFn};
pub use owned_args::OwnedArgs;
pub use plan::{Plan, PlanCx, Planned, Scratch, Support, Workspace};
pub use probe::{Probe, ProbeOnly};
pub use queue::{Delays, HostEvent, HostQueue};
pub use vendor::FIRST_VENDOR_ID;
#[doc(hidden)]
pub use vendor::{DeclaredOp, no_extents};
