//! Reading a checkpoint: safetensors files, memory-mapped, checked against the configuration before any data is read.
//!
//! [`Checkpoint::open`] maps the files and reads their headers, [`Checkpoint::verify`] compares names, shapes and element
//! types with the list of [`tensor_specs`], and [`Checkpoint::get`] hands out the bytes of a tensor as they are stored.
//! [`Checkpoint::tokenizer`] and [`Checkpoint::engram_hashing`] read what stands beside the weights.
//! Tensors stay in their stored formats: nothing here converts, copies or allocates tensor data.

mod check;
mod dtype;
mod error;
mod header;
mod layout;
mod mapping;
mod reader;
mod side_files;
mod values;

pub use check::{CheckReport, CheckpointWarning, Verified};
pub use dtype::StoredDtype;
pub use error::CheckpointError;
pub use layout::{Group, Storage, TensorSpec, tensor_specs};
pub use reader::{Checkpoint, StoredTensor};
pub use side_files::{EngramHashing, SideFileError};
