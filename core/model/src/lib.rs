//! DeepSeek-V4.1: configuration, checkpoint and forward pass, written only against `deepinfer-ops`.

#![deny(unsafe_code)]

pub mod config;
pub mod engram_constants;
mod numpy_rng;
