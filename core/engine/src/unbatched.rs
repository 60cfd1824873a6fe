//! Runs one request after the other: the prompt in chunks, then token by token.

use deepinfer_model::{KvCache, Model, RequestRows};
use deepinfer_ops::args::FusedSample;
use deepinfer_ops::traits::SampleOps;
use deepinfer_ops::{Format, OpError, Tensor};

use crate::error::EngineError;
use crate::logprobs::{largest, logprob};
use crate::output::{FinishReason, StepOutput};
use crate::request::Request;
use crate::seed::draw_seed;

/// A finished request.
#[derive(Clone, Debug)]
pub struct Completion {
    /// Output tokens, the stop token included.
    pub steps: Vec<StepOutput>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Seed of the draws.
    pub seed: u64,
    /// What went wrong, when `finish_reason` is [`FinishReason::Error`].
    pub error: Option<(String, String)>,
}

/// A model with caches for one request at a time.
pub struct Engine {
    model: Model,
    cache: KvCache,
    chunk_tokens: usize,
    sampler: Sampler,
}

impl Engine {
    /// Takes a model; prompts run in chunks of at most `chunk_tokens` tokens.
    ///
    /// # Errors
    /// The device has no memory for the caches.
    ///
    /// # Panics
    /// If `chunk_tokens` is 0.
    pub fn new(model: Model, chunk_tokens: usize) -> Result<Self, OpError> {
        assert!(chunk_tokens > 0, "a chunk has at least one token");
        let cache = KvCache::new(model.device(), model.config(), model.numerics(), 1, 1)?;
        let sampler = Sampler::new(&model)?;
        Ok(Self { model, cache, chunk_tokens, sampler })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Runs a request. `on_step` sees every output token as it is made and may return `false` to end the output there,
    /// as if its limit had been reached.
    ///
    /// A fault of the device after the first token ends the output with [`FinishReason::Error`].
    ///
    /// # Errors
    /// The request is invalid, or failed before its first token.
    pub fn generate(
        &mut self,
        request: &Request,
        on_step: &mut dyn FnMut(&StepOutput) -> bool,
    ) -> Result<Completion, EngineError> {
        request.validate(self.model.config())?;
        let context = self.model.config().max_position_embeddings;
        let limit = request.params.output_limit(request.prompt_token_ids.len(), context);
        let seed = match request.params.seed {
            Some(seed) => seed,
            None => draw_seed()?,
        };
        // The last output token is never run.
        let pages = self.reserve(request.prompt_token_ids.len() + limit - 1)?;
        self.cache.reset_slot(self.model.device().as_ref(), 0)?;

        let mut completion = Completion { steps: Vec::new(), finish_reason: FinishReason::Length, seed, error: None };
        let mut logits = self.prefill(&request.prompt_token_ids, &pages)?;
        loop {
            let position = request.prompt_token_ids.len() + completion.steps.len();
            let step = match self.choose(request, &logits, seed, position, completion.steps.len()) {
                Ok(step) => step,
                Err(error) => return finish_with_error(completion, error),
            };
            let token = step.token_id;
            let go_on = on_step(&step);
            completion.steps.push(step);
            let forced_next = completion.steps.len() < request.params.golden_token_ids.len();
            if !forced_next && request.params.is_stop(self.model.config(), token) {
                completion.finish_reason = FinishReason::Stop;
                return Ok(completion);
            }
            if !go_on || completion.steps.len() == limit {
                return Ok(completion);
            }
            logits = match self.run(&[token], position, &pages, &[0]) {
                Ok(logits) => logits,
                Err(error) => return finish_with_error(completion, error.into()),
            };
        }
    }

    /// Runs a prompt and returns the logits after its last token.
    fn prefill(&self, tokens: &[u32], pages: &[u32]) -> Result<Tensor, OpError> {
        let mut start = 0;
        for chunk in tokens.chunks(self.chunk_tokens) {
            let end = start + chunk.len();
            if end == tokens.len() {
                return self.run(chunk, start, pages, &[chunk.len() - 1]);
            }
            self.run(chunk, start, pages, &[])?;
            start = end;
        }
        unreachable!("a validated prompt has tokens")
    }

    fn run(&self, tokens: &[u32], start: usize, pages: &[u32], logit_rows: &[usize]) -> Result<Tensor, OpError> {
        let rows = RequestRows { tokens, start, slot: 0, pages, image_mask: &[] };
        self.model.step(&self.cache, &[rows], logit_rows, None)
    }

    fn choose(
        &self,
        request: &Request,
        logits: &Tensor,
        seed: u64,
        position: usize,
        index: usize,
    ) -> Result<StepOutput, EngineError> {
        let params = &request.params;
        let device = self.model.device().as_ref();
        let drawn = self.sampler.draw(device, logits, request.params.inv_temperature(), seed, position)?;
        let token_id = match params.golden_token_ids.get(index) {
            Some(&forced) => forced,
            None => drawn_token(drawn, position, self.model.config().vocab_size)?,
        };
        if params.logprobs.is_none() && params.logits.is_none() {
            return Ok(StepOutput { token_id, logprob: None, logits: None });
        }
        let mut bytes = vec![0; logits.bytes()];
        device.download(logits, &mut bytes)?;
        let row: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        Ok(StepOutput {
            token_id,
            logprob: params.logprobs.map(|k| logprob(&row, token_id, k)),
            logits: params.logits.map(|k| largest(&row, k)),
        })
    }

    /// Caches for a sequence of `tokens`; existing ones are used if they are large enough.
    fn reserve(&mut self, tokens: usize) -> Result<Vec<u32>, OpError> {
        let needed = KvCache::pages_for(tokens);
        if needed > self.cache.pages() {
            self.cache = KvCache::new(self.model.device(), self.model.config(), self.model.numerics(), needed, 1)?;
        }
        Ok((0..needed as u32).collect())
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

fn finish_with_error(mut completion: Completion, error: EngineError) -> Result<Completion, EngineError> {
    if completion.steps.is_empty() {
        return Err(error);
    }
    completion.finish_reason = FinishReason::Error;
    completion.error = Some((error.code().to_owned(), error.to_string()));
    Ok(completion)
}

/// The small buffers that a draw needs, kept from step to step.
struct Sampler {
    inv_temperature: Tensor,
    seed: Tensor,
    position: Tensor,
    token: Tensor,
}

impl Sampler {
    fn new(model: &Model) -> Result<Self, OpError> {
        // One allocation, each value on a line of its own.
        let memory = model.device().allocate(4 * 64)?;
        let at = |line: usize, format| Tensor::plain(&memory, line * 64, format, &[1]);
        Ok(Self {
            inv_temperature: at(0, Format::F32),
            seed: at(1, Format::I64),
            position: at(2, Format::I32),
            token: at(3, Format::I32),
        })
    }

    /// The drawn token, or -1 when the logits hold NaN or +infinity.
    fn draw(
        &self,
        device: &dyn deepinfer_ops::Device,
        logits: &Tensor,
        inv_temperature: f32,
        seed: u64,
        position: usize,
    ) -> Result<i32, OpError> {
        device.upload(&self.inv_temperature, &inv_temperature.to_le_bytes())?;
        device.upload(&self.seed, &seed.to_le_bytes())?;
        device.upload(&self.position, &(position as i32).to_le_bytes())?;
        device.fused_sample(&FusedSample {
            logits,
            inv_temperature: &self.inv_temperature,
            seed: &self.seed,
            position: &self.position,
            token: &self.token,
            child: None,
            min_p_log: None,
            top_k: None,
            top_p: None,
        })?;
        let mut bytes = [0; 4];
        device.download(&self.token, &mut bytes)?;
        Ok(i32::from_le_bytes(bytes))
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
