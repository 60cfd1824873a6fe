//! Huawei Ascend NPUs, with the Ascend 950 as the aim. Nothing of it has run on a device: see the README.
//!
//! - `acl`: CANN's runtime, or the fake one of the host twin, found when it is asked about; `acl/sys`: what bindgen makes of
//!   `include/di_acl.h`.
//! - `backend`: the runtime table; `device`, `memory`, `stream`, `graph`: its objects; `faults`: what kernels find wrong in
//!   values; `plain`: kernels that are no ops; `error`: what a result means to the caller.
//! - `image`: the kernels, embedded by `build.rs`; `replacement`: those that a developer puts in their place; `launch`: how one is
//!   queued.
//! - `vendor`: the vendor's own ops, where an installation has them.
//! - `ops`: one file per op, named after it, beside `kernels/OP.cpp`; the meaning of each op is `plugin-api/OPS.md`.

#![allow(unsafe_code)]

mod acl;
mod backend;
mod device;
mod error;
mod faults;
mod graph;
mod image;
mod launch;
mod memory;
mod ops;
mod plain;
mod replacement;
mod stream;
#[cfg(all(test, ascend_twin))]
mod tests;
mod vendor;

deepinfer_plugin_api::export_backend!(backend::Ascend);
