//! What is asked for.

use deepinfer_model::config::ModelConfig;

use crate::error::RequestError;
use crate::params::{SamplingParams, check_tokens};

/// A prompt and what to do with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The caller's name for it.
    pub id: String,
    /// Prompt.
    pub prompt_token_ids: Vec<u32>,
    /// Parameters.
    pub params: SamplingParams,
}

impl Request {
    /// Checks the request against a model.
    ///
    /// # Errors
    /// Names the value, and what would be accepted.
    pub fn validate(&self, config: &ModelConfig) -> Result<(), RequestError> {
        let context = config.max_position_embeddings;
        if self.prompt_token_ids.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        check_tokens("prompt_token_ids", &self.prompt_token_ids, config.vocab_size)?;
        if self.prompt_token_ids.len() >= context {
            return Err(RequestError::PromptTooLong { tokens: self.prompt_token_ids.len(), context });
        }
        self.params.validate_for(config)
    }
}
