//! DeepSeek-V4.1: configuration, checkpoint and forward pass, written only against `deepinfer-ops`.

#![deny(unsafe_code)]

pub mod checkpoint;
pub mod config;
pub mod engram_constants;
pub mod engram_token_map;
mod numpy_rng;
pub mod tokenizer;
