//! What must be drawn from a row, computed on the host in plain code: a draw that is wrong in the same way everywhere is no
//! difference between two runs.
//!
//! The order is that of the engine's [`SamplingParams`](deepinfer_engine::SamplingParams); the draw is that of the sampling
//! page of `deepinfer_numerics`.

use deepinfer_engine::Request;
use deepinfer_numerics::sampling::Draw;

use crate::run::{Digest, HostToken};

/// Draws the tokens of one completion.
pub(crate) struct HostDraw<'a> {
    pub(crate) request: &'a Request,
    pub(crate) completion: usize,
    /// The model's end token.
    pub(crate) end: u32,
}

impl HostDraw<'_> {
    /// The token after `output`, from raw logits. The request has a seed.
    pub(crate) fn token(&self, output: &[u32], logits: &[f32]) -> HostToken {
        let params = &self.request.params;
        let draw = Draw {
            inv_temperature: if params.temperature < 1e-5 { 0.0 } else { 1.0 / params.temperature },
            seed: params.seed.unwrap_or_default(),
            position: (self.request.prompt_token_ids.len() + output.len()) as u32,
            child: self.completion as u32,
            min_p_log: f64::from(params.min_p).ln() as f32,
            top_k: params.top_k as u32,
            top_p: params.top_p,
        };
        let mut bytes = Vec::new();
        let mut logits = self.adjusted(output, logits);
        let adjusted = Digest::of_floats(&logits, &mut bytes);
        self.mask(&mut logits);
        let masked = Digest::of_floats(&logits, &mut bytes);
        let mut order = vec![0; logits.len()];
        HostToken { token: draw.token(&logits, &mut order), adjusted, masked }
    }

    /// Logits with biases, bans and penalties.
    fn adjusted(&self, output: &[u32], logits: &[f32]) -> Vec<f32> {
        let params = &self.request.params;
        let mut logits = logits.to_vec();
        for (&token, bias) in &params.logit_bias {
            logits[token as usize] += bias;
        }
        let early = output.len() < params.min_tokens;
        let end = (!params.ignore_eos).then_some(self.end);
        let stops = params.stop_token_ids.iter().copied().chain(end).filter(|_| early);
        for token in params.banned_token_ids.iter().copied().chain(stops) {
            logits[token as usize] = f32::NEG_INFINITY;
        }
        if params.repetition_penalty != 1.0 || params.frequency_penalty != 0.0 || params.presence_penalty != 0.0 {
            self.penalize(output, &mut logits);
        }
        logits
    }

    /// Leaves the allowed tokens, if there is a list of them.
    fn mask(&self, logits: &mut [f32]) {
        let Some(allowed) = &self.request.params.allowed_token_ids else { return };
        let mut is_allowed = vec![false; logits.len()];
        allowed.iter().for_each(|&token| is_allowed[token as usize] = true);
        let others = logits.iter_mut().zip(is_allowed).filter(|(_, is_allowed)| !is_allowed);
        others.for_each(|(logit, _)| *logit = f32::NEG_INFINITY);
    }

    fn penalize(&self, output: &[u32], logits: &mut [f32]) {
        let params = &self.request.params;
        let mut counts = vec![None; logits.len()];
        self.request.prompt_token_ids.iter().for_each(|&token| counts[token as usize] = Some(0_u32));
        output.iter().for_each(|&token| *counts[token as usize].get_or_insert(0) += 1);
        for (logit, count) in logits.iter_mut().zip(counts) {
            let Some(count) = count else { continue };
            let repetition = params.repetition_penalty;
            *logit *= if *logit > 0.0 { 1.0 / repetition } else { repetition };
            if count > 0 {
                *logit -= params.frequency_penalty * count as f32 + params.presence_penalty;
            }
        }
    }
}
