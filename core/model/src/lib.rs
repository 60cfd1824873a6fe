//! DeepSeek-V4.1: configuration, checkpoint and forward pass, written only against `deepinfer-ops`.

#![deny(unsafe_code)]

pub mod cache_format;
pub mod checkpoint;
pub mod config;
pub mod engram_constants;
pub mod engram_token_map;
pub mod inspect;
mod numpy_rng;
pub mod tokenizer;
