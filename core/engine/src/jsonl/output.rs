//! Output lines.

use serde::Serialize;

use crate::error::EngineError;
use crate::logprobs::TokenLogprob;
use crate::output::{Completion, FinishReason, RequestOutput, StopReason};

/// An output line.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum OutputLine {
    /// The request ran.
    Completed(Box<CompletedLine>),
    /// It was refused.
    Refused {
        /// Id of the input line.
        id: String,
        /// Why.
        error: ErrorObject,
    },
}

/// The output of a request.
#[derive(Debug, Serialize)]
pub struct CompletedLine {
    /// Id of the input line.
    pub id: String,
    /// Prompt.
    pub prompt_token_ids: Vec<u32>,
    /// What came after it.
    #[serde(flatten)]
    pub outputs: Outputs,
    /// Seed of the draws.
    pub seed: u64,
    /// Tokens of the prompt that the prefix cache had.
    pub cached_tokens: usize,
    /// Per token of the prompt, if asked for; null for the first one, which nothing precedes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<Vec<Option<TokenLogprob>>>,
}

/// What came after a prompt.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Outputs {
    /// One completion, whose fields are those of the line.
    One(CompletionObject),
    /// Several, in a list.
    Several {
        /// In the order of their numbers.
        outputs: Vec<CompletionObject>,
    },
}

/// A completion.
#[derive(Debug, Serialize)]
pub struct CompletionObject {
    /// Its number, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// Tokens, the one that ends it included.
    pub token_ids: Vec<u32>,
    /// Text of them; null without a tokenizer.
    pub text: Option<String>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Stop token or stop string that ended it; null if neither did.
    pub stop_reason: Option<StopReason>,
    /// Per token, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// Largest logits per token, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logits: Option<Vec<Vec<(u32, f32)>>>,
    /// What went wrong, when it ended by an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorObject>,
}

/// An error for programs and people.
#[derive(Debug, Serialize)]
pub struct ErrorObject {
    /// Short stable name.
    pub code: String,
    /// A sentence.
    pub message: String,
}

impl OutputLine {
    /// The line of a request that was refused.
    pub fn refused(id: &str, error: &EngineError) -> Self {
        Self::Refused { id: id.to_owned(), error: error.into() }
    }
}

impl From<RequestOutput> for OutputLine {
    /// The line of a request that ran, or the refusal of one that did not.
    fn from(output: RequestOutput) -> Self {
        let RequestOutput { id, prompt_token_ids, prompt_logprobs, mut outputs, seed, cached_tokens, .. } = output;
        if let (None, Some(error)) = (seed, outputs.first().and_then(|completion| completion.error.as_ref())) {
            return Self::refused(&id, error);
        }
        let outputs = if outputs.len() == 1 {
            Outputs::One(CompletionObject { index: None, ..outputs.remove(0).into() })
        } else {
            Outputs::Several { outputs: outputs.into_iter().map(CompletionObject::from).collect() }
        };
        let seed = seed.unwrap_or_default();
        Self::Completed(Box::new(CompletedLine { id, prompt_token_ids, outputs, seed, cached_tokens, prompt_logprobs }))
    }
}

impl From<Completion> for CompletionObject {
    fn from(completion: Completion) -> Self {
        let Completion { index, steps, text, finish_reason, stop_reason, error } = completion;
        let token_ids = steps.iter().map(|step| step.token_id).collect();
        let (logprobs, logits): (Vec<_>, Vec<_>) = steps.into_iter().map(|step| (step.logprob, step.logits)).unzip();
        Self {
            index: Some(index),
            token_ids,
            text,
            finish_reason,
            stop_reason,
            logprobs: all_of(logprobs),
            logits: all_of(logits),
            error: error.as_ref().map(ErrorObject::from),
        }
    }
}

impl From<&EngineError> for ErrorObject {
    fn from(error: &EngineError) -> Self {
        Self { code: error.code().to_owned(), message: error.to_string() }
    }
}

/// The values, if there are any: all tokens have one, or none has.
fn all_of<T>(values: Vec<Option<T>>) -> Option<Vec<T>> {
    let all: Option<Vec<T>> = values.into_iter().collect();
    all.filter(|values| !values.is_empty())
}
