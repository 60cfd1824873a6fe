//! Requests in, tokens out.
//!
//! [`Request`] says what is wanted and is checked before anything runs; [`Engine`] runs one request after the other on a
//! [`Model`](deepinfer_model::Model): the prompt in chunks, then token by token. [`jsonl`] is the file format of batches.
//!
//! This crate computes nothing on numbers of the model beyond log-probabilities; it knows no plugin and prints nothing.

#![forbid(unsafe_code)]

mod engine;
mod error;
pub mod jsonl;
mod logprobs;
mod request;

pub use engine::{Completion, Engine, FinishReason, StepOutput};
pub use error::{EngineError, RequestError};
pub use logprobs::TokenLogprob;
pub use request::{Request, SamplingParams};
