//! Requests in, tokens out.
//!
//! [`Request`] says what is wanted and is checked before anything runs; [`Engine`] runs one request after the other on a
//! [`Model`](deepinfer_model::Model): the prompt in chunks, then token by token. [`batching`] runs many at a time.
//! [`jsonl`] is the file format of batches.
//!
//! This crate computes nothing on numbers of the model beyond log-probabilities; it knows no plugin and prints nothing.

#![forbid(unsafe_code)]

mod adjust;
mod builder;
mod engine;
mod error;
mod generate;
pub mod jsonl;
mod logprobs;
mod output;
mod params;
mod request;
mod sampler;
mod seed;
mod sequence;
mod staging;
mod step_loop;
mod text;
mod thread;

pub use engine::{Completion, Engine};
pub use error::{EngineError, RequestError};
pub use logprobs::TokenLogprob;
pub use output::{FinishReason, StepOutput};
pub use params::SamplingParams;
pub use request::Request;

/// Continuous batching: requests that run at the same time.
pub mod batching {
    pub use deepinfer_scheduler::{Policy, RequestId, Stats, StepPlan};

    pub use crate::builder::{BuildError, EngineBuilder, EngineConfig};
    pub use crate::generate::Input;
    pub use crate::output::{Completion, RequestOutput, StopReason, TokenEvent};
    pub use crate::step_loop::{Engine, Event, StepHook};
    pub use crate::thread::{EngineHandle, EngineThread, RequestStream, RequestTimes, StreamEvent};
}
