//! Requests as they run: what their completions share, and each completion's own output.

use std::rc::Rc;
use std::sync::Arc;

use deepinfer_model::config::ModelConfig;
use deepinfer_model::tokenizer::Tokenizer;

use crate::adjust::{Adjustments, SeenTokens};
use crate::error::EngineError;
use crate::logprobs::{TokenLogprob, largest, logprob};
use crate::output::{Completion, FinishReason, RequestOutput, StepOutput, StopReason, TokenEvent};
use crate::request::Request;
use crate::sampler::SampleRow;
use crate::text::TextStream;

/// What the completions of a request share and nothing changes.
pub(crate) struct Shared {
    pub(crate) request: Request,
    pub(crate) seed: u64,
    /// Most output tokens.
    pub(crate) limit: usize,
    inv_temperature: f32,
    min_p_log: f32,
    adjustments: Adjustments,
}

impl Shared {
    pub(crate) fn new(request: Request, config: &ModelConfig, seed: u64, limit: usize) -> Rc<Self> {
        let params = &request.params;
        let (inv_temperature, min_p_log) = (params.inv_temperature(), params.min_p_log());
        let adjustments = Adjustments::new(params, config, &request.prompt_token_ids);
        Rc::new(Self { request, seed, limit, inv_temperature, min_p_log, adjustments })
    }

    /// Tokens of the prompt.
    pub(crate) fn prompt_len(&self) -> usize {
        self.request.prompt_token_ids.len()
    }
}

/// A request some of whose completions run.
pub(crate) struct Group {
    shared: Rc<Shared>,
    prompt_logprobs: Option<Vec<Option<TokenLogprob>>>,
    outputs: Vec<Completion>,
    cached_tokens: usize,
    preemptions: u32,
}

impl Group {
    pub(crate) fn new(shared: Rc<Shared>) -> Self {
        let prompt_logprobs = shared.request.params.prompt_logprobs.map(|_| vec![None; shared.prompt_len()]);
        Self { shared, prompt_logprobs, outputs: Vec::new(), cached_tokens: 0, preemptions: 0 }
    }

    /// Completions of the request, those that have ended included.
    pub(crate) fn completions(&self) -> usize {
        self.shared.request.params.n
    }

    /// Takes in the logits of the prompt's token at `position`, which tell about the next one.
    pub(crate) fn take_prompt_logits(&mut self, position: usize, logits: &[f32]) {
        let next = position + 1;
        let (Some(all), Some(top)) = (&mut self.prompt_logprobs, self.shared.request.params.prompt_logprobs) else {
            return;
        };
        all[next] = Some(logprob(logits, self.shared.request.prompt_token_ids[next], top));
    }

    /// Takes in what the scheduler counted for a completion.
    pub(crate) fn count(&mut self, is_first: bool, cached_tokens: usize, preemptions: u32) {
        if is_first {
            self.cached_tokens = cached_tokens;
        }
        self.preemptions += preemptions;
    }

    /// Takes in a completion. The output, when it was the last one.
    pub(crate) fn take(&mut self, completion: Completion) -> Option<RequestOutput> {
        self.outputs.push(completion);
        if self.outputs.len() < self.shared.request.params.n {
            return None;
        }
        let mut outputs = std::mem::take(&mut self.outputs);
        outputs.sort_by_key(|completion| completion.index);
        let request = &self.shared.request;
        Some(RequestOutput {
            id: request.id.clone(),
            prompt_token_ids: request.prompt_token_ids.clone(),
            prompt_logprobs: self.prompt_logprobs.take(),
            outputs,
            seed: Some(self.shared.seed),
            cached_tokens: self.cached_tokens,
            preemptions: self.preemptions,
        })
    }
}

/// Log-probabilities and largest logits of a token, each if asked for.
type Details = (Option<TokenLogprob>, Option<Vec<(u32, f32)>>);

/// A completion that runs.
pub(crate) struct Sequence {
    pub(crate) shared: Rc<Shared>,
    pub(crate) index: usize,
    /// Tokens of the output.
    tokens: Vec<u32>,
    /// What else is known of each of them; empty if nothing else was asked for, which saves most of the memory.
    details: Vec<Details>,
    seen: SeenTokens,
    text: Option<TextStream>,
    /// Set by the token that ends the output.
    finish_reason: Option<FinishReason>,
    stop_reason: Option<StopReason>,
}

impl Sequence {
    pub(crate) fn new(shared: &Rc<Shared>, index: usize, tokenizer: Option<&Arc<Tokenizer>>) -> Self {
        let params = &shared.request.params;
        Self {
            shared: shared.clone(),
            index,
            tokens: Vec::new(),
            details: Vec::new(),
            seen: SeenTokens::new(params, &shared.adjustments),
            text: tokenizer.map(|tokenizer| TextStream::new(tokenizer, params)),
            finish_reason: None,
            stop_reason: None,
        }
    }

    /// Whether raw logits are wanted on the host.
    pub(crate) fn wants_logits(&self) -> bool {
        let params = &self.shared.request.params;
        params.logprobs.is_some() || params.logits.is_some()
    }

    /// The token that output `index` is forced to be.
    pub(crate) fn forced(&self, index: usize) -> Option<u32> {
        self.shared.request.params.golden_token_ids.get(index).copied()
    }

    /// What the next token is drawn with.
    pub(crate) fn sample_row(&self) -> SampleRow<'_> {
        let (params, output_len) = (&self.shared.request.params, self.tokens.len());
        let seen = self.seen.list();
        let penalty = |value, off| if seen.is_some() { value } else { off };
        SampleRow {
            inv_temperature: self.shared.inv_temperature,
            seed: self.shared.seed,
            position: self.shared.prompt_len() + output_len,
            child: self.index,
            min_p_log: self.shared.min_p_log,
            top_k: params.top_k,
            top_p: params.top_p,
            repetition: penalty(params.repetition_penalty, 1.0),
            frequency: penalty(params.frequency_penalty, 0.0),
            presence: penalty(params.presence_penalty, 0.0),
            biases: self.shared.adjustments.biases(output_len),
            seen: seen.unwrap_or_default(),
            mask: self.shared.adjustments.mask(),
        }
    }

    /// Takes in what was drawn for the next token, with its raw logits if they were wanted. The token is in the vocabulary
    /// unless it is forced.
    ///
    /// # Errors
    /// Nothing could be drawn, and the token is not forced.
    pub(crate) fn push(
        &mut self,
        drawn: i32,
        logits: Option<&[f32]>,
        config: &ModelConfig,
    ) -> Result<TokenEvent, EngineError> {
        let index = self.tokens.len();
        let params = &self.shared.request.params;
        let token = match self.forced(index) {
            Some(forced) => forced,
            None => drawn_token(drawn, self.shared.prompt_len() + index, config.vocab_size)?,
        };
        let step = StepOutput {
            token_id: token,
            logprob: params.logprobs.and_then(|k| Some(logprob(logits?, token, k))),
            logits: params.logits.and_then(|k| Some(largest(logits?, k))),
        };
        let may_stop = index >= params.min_tokens && index + 1 >= params.golden_token_ids.len();
        let stop_text = self.text.as_mut().and_then(|text| text.push(token, may_stop));
        self.stop_reason = match stop_text {
            Some(text) => Some(StopReason::Text(text)),
            None if may_stop && params.is_stop(config, token) => Some(StopReason::Token(token)),
            None => None,
        };
        let is_last = index + 1 == self.shared.limit;
        self.finish_reason = match &self.stop_reason {
            Some(_) => Some(FinishReason::Stop),
            None => is_last.then_some(FinishReason::Length),
        };
        self.tokens.push(token);
        if self.wants_logits() {
            self.details.push((step.logprob.clone(), step.logits.clone()));
        }
        self.seen.push(token);
        if let (Some(text), true) = (&mut self.text, self.finish_reason.is_some()) {
            text.end();
        }
        let text = self.text.as_mut().map(|text| text.take_new().to_owned()).unwrap_or_default();
        Ok(TokenEvent { index: self.index, step, text, finish_reason: self.finish_reason })
    }

    /// Whether the last token stopped the output.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop_reason.is_some()
    }

    /// Ends the output, for `reason` unless its last token gave one.
    pub(crate) fn finish(mut self, reason: FinishReason, error: Option<EngineError>) -> Completion {
        if let Some(text) = &mut self.text {
            text.end();
        }
        let finish_reason = match &error {
            Some(_) => FinishReason::Error,
            None => self.finish_reason.unwrap_or(reason),
        };
        let mut details = self.details.into_iter();
        let step = |token_id| {
            let (logprob, logits) = details.next().unwrap_or_default();
            StepOutput { token_id, logprob, logits }
        };
        Completion {
            index: self.index,
            steps: self.tokens.into_iter().map(step).collect(),
            text: self.text.map(|text| text.text().to_owned()),
            finish_reason,
            stop_reason: self.stop_reason,
            error,
        }
    }
}

/// A draw as a token: -1 stands for logits that nothing can be drawn from, anything else outside the vocabulary for a
/// backend that is wrong.
fn drawn_token(drawn: i32, position: usize, vocab_size: usize) -> Result<u32, EngineError> {
    match u32::try_from(drawn) {
        Ok(token) if (token as usize) < vocab_size => Ok(token),
        _ if drawn == -1 => Err(EngineError::BadLogits { position }),
        _ => Err(EngineError::BadToken { token: drawn, position, vocab_size }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_outside_the_vocabulary_are_faults() {
        assert_eq!(drawn_token(9, 0, 10).unwrap(), 9);
        assert!(matches!(drawn_token(-1, 3, 10), Err(EngineError::BadLogits { position: 3 })));
        for token in [10, i32::MAX, -2] {
            assert!(matches!(drawn_token(token, 3, 10), Err(EngineError::BadToken { .. })), "{token}");
        }
    }
}
