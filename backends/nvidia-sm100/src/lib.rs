//! NVIDIA GPUs, with the Blackwell data-centre generation (`sm_100`) as the aim and Hopper (`sm_90a`) as what is run.
//!
//! - `driver`: what the driver says about its devices; `backend`: the runtime table; `device`, `memory`, `stream`, `graph`:
//!   its objects; `error`: what a status means to the caller.
//! - `image`: the machine code of `kernels/`, embedded by `build.rs`; `launch`: how a kernel is queued;
//!   `tensor_map`: what the copy engine is told of a matrix.
//! - `ops`: one file per op, named after it, beside `kernels/OP.cu`; the meaning of each op is `plugin-api/OPS.md`. What `linear`
//!   does with F32 weights and with many rows are files of their own (`linear_f32`, `linear_many`); `few_rows` is what `linear` and
//!   `grouped_linear` share. `index_quads`: grids over tables of indices.
//!
//! The driver is looked for when it is asked about, so that the plugin builds and loads on machines without CUDA.

#![allow(unsafe_code)]

mod backend;
mod device;
mod driver;
mod error;
mod graph;
mod image;
mod index_quads;
mod launch;
mod memory;
mod ops;
mod stream;
mod tensor_map;

deepinfer_plugin_api::export_backend!(backend::Nvidia, profile = "v41-text");
