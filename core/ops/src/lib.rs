//! Operators as traits: the safe face of the op catalogue.
//!
//! [`Device`] is what the rest of the core needs of an accelerator: memory, copies, and [`Dispatch`], which runs any op.
//! The op traits of [`traits`] are implemented once, for everything that dispatches; their arguments are the generated
//! structs of [`args`], checked against the catalogue before a plugin sees them.
//!
//! This crate knows no plugin and no vendor, and holds no unsafe code: tensors are descriptions of memory that a
//! [`Device`] owns.

#![forbid(unsafe_code)]

mod arena;
mod between;
mod call;
mod counting;
mod device;
mod error;
mod generated;
mod recorded;
mod scope;
mod tensor;
pub mod traits;

/// Arguments of every op, generated from the catalogue.
pub mod args {
    pub use crate::generated::*;
}

pub use arena::{Arena, Mark};
pub use between::Between;
pub use call::{OpCall, Place};
pub use counting::CountingDevice;
pub use deepinfer_plugin_api::{ArgError, CacheFormat, Format, OpInfo};
pub use device::{Device, Dispatch, Download};
pub use error::{OpError, Promise};
pub use recorded::Recorded;
pub use scope::{Part, Scope};
pub use tensor::{Allocation, Tensor};
pub use traits::Ops;
