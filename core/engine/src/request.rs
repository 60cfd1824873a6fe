//! What is asked for.

use deepinfer_model::config::ModelConfig;

use crate::error::RequestError;

/// Output tokens when nobody says how many.
pub(crate) const DEFAULT_MAX_TOKENS: usize = 128;
/// Most alternatives that are reported per token.
pub(crate) const MAX_TOP: usize = 4096;

/// How tokens are chosen and when to stop.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Most output tokens; `None` is 128 or the rest of the context, whichever is less. A larger number than the context
    /// holds ends at the context.
    pub max_tokens: Option<usize>,
    /// 0 is greedy, and so is anything below 1e-6.
    pub temperature: f32,
    /// Seed of the draws; `None` draws one, which the completion reports.
    pub seed: Option<u64>,
    /// Tokens that end the output, besides the model's end token. The stop token is part of the output.
    pub stop_token_ids: Vec<u32>,
    /// The model's end token does not end the output.
    pub ignore_eos: bool,
    /// Teacher forcing: output i is `golden_token_ids[i]`, whatever was drawn. A stop token ends the output only once the
    /// last of them is out.
    pub golden_token_ids: Vec<u32>,
    /// Report the log-probability of each token and of this many best ones.
    pub logprobs: Option<usize>,
    /// Report this many largest logits of each step.
    pub logits: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            max_tokens: None,
            temperature: 0.0,
            seed: None,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            golden_token_ids: Vec::new(),
            logprobs: None,
            logits: None,
        }
    }
}

impl SamplingParams {
    /// Checks the numbers, which needs no model; [`Request::validate`] also checks the token ids.
    ///
    /// # Errors
    /// [`RequestError::InvalidParameter`].
    pub fn validate(&self) -> Result<(), RequestError> {
        let invalid = |name, value: String, wanted| RequestError::InvalidParameter { name, value, wanted };
        if !self.temperature.is_finite() || self.temperature < 0.0 {
            return Err(invalid("temperature", self.temperature.to_string(), "a finite number of at least 0"));
        }
        if self.max_tokens == Some(0) {
            return Err(invalid("max_tokens", "0".to_owned(), "at least 1"));
        }
        for (name, top) in [("logprobs", self.logprobs), ("logits", self.logits)] {
            if let Some(top) = top.filter(|top| *top > MAX_TOP) {
                return Err(invalid(name, top.to_string(), "at most 4096"));
            }
        }
        Ok(())
    }
}

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
        let (context, vocab_size) = (config.max_position_embeddings, config.vocab_size);
        if self.prompt_token_ids.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        let params = &self.params;
        for (what, ids) in [
            ("prompt_token_ids", &self.prompt_token_ids),
            ("golden_token_ids", &params.golden_token_ids),
            ("stop_token_ids", &params.stop_token_ids),
        ] {
            if let Some((index, &id)) = ids.iter().enumerate().find(|(_, id)| **id as usize >= vocab_size) {
                return Err(RequestError::TokenOutOfRange { what, index, id: i64::from(id), vocab_size });
            }
        }
        if self.prompt_token_ids.len() >= context {
            return Err(RequestError::PromptTooLong { tokens: self.prompt_token_ids.len(), context });
        }
        params.validate()
    }

    /// Most output tokens, within the context.
    pub(crate) fn output_limit(&self, config: &ModelConfig) -> usize {
        let room = config.max_position_embeddings - self.prompt_token_ids.len();
        self.params.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS).min(room)
    }

    /// Factor on the logits; 0 means greedy.
    pub(crate) fn inv_temperature(&self) -> f32 {
        // Below this the scaled logits could overflow; long before, the largest logit wins whatever the noise.
        const GREEDY_BELOW: f32 = 1e-6;
        if self.params.temperature < GREEDY_BELOW { 0.0 } else { 1.0 / self.params.temperature }
    }

    pub(crate) fn is_stop(&self, config: &ModelConfig, token: u32) -> bool {
        (token == config.eos_token_id && !self.params.ignore_eos) || self.params.stop_token_ids.contains(&token)
    }
}
