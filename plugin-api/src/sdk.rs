//! What a backend written in Rust implements.
//!
//! A kernel is a safe function over checked [`tensor`] views, registered with [`kernel!`](crate::kernel); a [`Backend`] owns
//! devices and memory; [`export_backend!`](crate::export_backend) joins both into the exported symbol. No panic leaves the
//! library: it becomes an error, and the backend refuses further work because its state is unknown.

mod backend;
mod entry;
mod error;
mod host_memory;
mod kernel;
mod probe;
pub mod tensor;

pub use backend::{Backend, DeviceInfo};
pub use entry::{Export, entry};
pub use error::{Fault, FaultCode};
pub use host_memory::HostMemory;
pub use kernel::{Cx, Kernel, KernelEntry};
pub use probe::{Probe, ProbeOnly};
