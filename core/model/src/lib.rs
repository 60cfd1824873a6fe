//! DeepSeek-V4.1: configuration, checkpoint and forward pass, written only against `deepinfer-ops`.

#![deny(unsafe_code)]

pub mod cache_format;
pub mod checkpoint;
pub mod config;
pub mod engram_constants;
pub mod engram_token_map;
mod files;
mod forward;
pub mod inspect;
pub mod memory_plan;
pub mod numerics;
mod numpy_rng;
pub mod rope;
mod saved_state;
mod state;
mod step;
mod step_graphs;
pub mod tokenizer;
mod weights;

pub use forward::{Model, Probe};
pub use numerics::Numerics;
pub use saved_state::StateStore;
pub use state::KvCache;
pub use step::{DeviceTokens, RequestRows, StepInput};
pub use step_graphs::{GraphLimits, GraphStats, StepGraphs};
pub use weights::{LoadError, TablePlace};
