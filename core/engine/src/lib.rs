//! Requests in, tokens out.
//!
//! [`Request`] says what is wanted and is checked before anything runs; [`Engine`] runs many of them at a time on a
//! [`Model`](deepinfer_model::Model), and [`EngineThread`] lets other threads ask it. [`jsonl`] is the file format of batches.
//!
//! This crate computes nothing on numbers of the model beyond log-probabilities; it knows no plugin and prints nothing.

#![forbid(unsafe_code)]

mod adjust;
mod builder;
mod config;
mod engine;
mod error;
mod generate;
pub mod jsonl;
mod logprobs;
mod memory;
mod observer;
mod output;
mod params;
mod request;
mod sampler;
mod seed;
mod sequence;
mod staging;
mod switch;
pub mod telemetry;
mod text;
mod thread;

pub use builder::{BuildError, EngineBuilder};
pub use config::EngineConfig;
pub use deepinfer_model::GraphStats;
pub use deepinfer_scheduler::{Policy, RequestId, Stats, StepPlan};
pub use engine::{Engine, Event, StepHook};
pub use error::{EngineError, RequestError};
pub use generate::Input;
pub use logprobs::TokenLogprob;
pub use memory::EnginePlan;
pub use observer::{LogitsObserver, ObservedRow};
pub use output::{Completion, FinishReason, RequestOutput, StepOutput, StopReason, TokenEvent};
pub use params::SamplingParams;
pub use request::Request;
pub use switch::{SwitchError, switch};
pub use thread::{EngineHandle, EngineThread, RequestStream, RequestTimes, StreamEvent};
