//! What comes out.

use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::logprobs::TokenLogprob;

/// Why an output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// A stop token or a stop string was produced.
    Stop,
    /// The limit of the request or of the context was reached.
    Length,
    /// The caller ended it.
    Abort,
    /// The request was refused, or failed after it began; the tokens so far are valid.
    Error,
}

/// What a stopped output ended with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StopReason {
    /// The model's end token, or one of `stop_token_ids`.
    Token(u32),
    /// One of the stop strings.
    Text(String),
}

/// What one output token brings.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutput {
    /// The token.
    pub token_id: u32,
    /// Log-probabilities, if asked for.
    pub logprob: Option<TokenLogprob>,
    /// Largest logits, if asked for.
    pub logits: Option<Vec<(u32, f32)>>,
}

/// One completion of a request.
#[derive(Clone, Debug)]
pub struct Completion {
    /// Its number among the request's completions.
    pub index: usize,
    /// Output tokens, the one that ends the output included.
    pub steps: Vec<StepOutput>,
    /// Text of them, without a stop string unless it was to be kept; `None` without a tokenizer.
    pub text: Option<String>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// What it stopped with, when `finish_reason` is [`FinishReason::Stop`].
    pub stop_reason: Option<StopReason>,
    /// What went wrong, when `finish_reason` is [`FinishReason::Error`].
    pub error: Option<EngineError>,
}

impl Completion {
    /// The output tokens.
    pub fn token_ids(&self) -> Vec<u32> {
        self.steps.iter().map(|step| step.token_id).collect()
    }

    /// Sum of the log-probabilities of the tokens, in F64; `None` if they were not asked for.
    pub fn cumulative_logprob(&self) -> Option<f64> {
        self.steps.iter().map(|step| step.logprob.as_ref().map(|l| f64::from(l.logprob))).sum()
    }
}

/// A request that has ended.
#[derive(Clone, Debug)]
pub struct RequestOutput {
    /// The caller's name for it.
    pub id: String,
    /// Prompt.
    pub prompt_token_ids: Vec<u32>,
    /// Log-probability of each token of the prompt, if asked for; nothing precedes the first one, which has none, and an
    /// output that ended early has no more than it came to.
    pub prompt_logprobs: Option<Vec<Option<TokenLogprob>>>,
    /// Completions, in order of their numbers.
    pub outputs: Vec<Completion>,
    /// Seed of the draws; completions differ by their number alone. `None` if the request was refused.
    pub seed: Option<u64>,
    /// Tokens of the prompt that completion 0 did not run because the prefix cache had them.
    pub cached_tokens: usize,
    /// How often completions were preempted, in sum.
    pub preemptions: u32,
}

impl RequestOutput {
    /// The output of a request that was refused.
    pub fn refused(id: String, prompt_token_ids: Vec<u32>, error: impl Into<EngineError>) -> Self {
        let completion = Completion {
            index: 0,
            steps: Vec::new(),
            text: None,
            finish_reason: FinishReason::Error,
            stop_reason: None,
            error: Some(error.into()),
        };
        Self {
            id,
            prompt_token_ids,
            prompt_logprobs: None,
            outputs: vec![completion],
            seed: None,
            cached_tokens: 0,
            preemptions: 0,
        }
    }
}

/// News of a completion: a token.
#[derive(Clone, Debug)]
pub struct TokenEvent {
    /// Which completion.
    pub index: usize,
    /// The token.
    pub step: StepOutput,
    /// Text that became certain by it; empty without a tokenizer.
    pub text: String,
    /// Set with the last token, whose text is the rest of the output's.
    pub finish_reason: Option<FinishReason>,
}
