//! One request at a time, without an engine: the model's steps, and everything after the logits in plain code.

use deepinfer_engine::{Request, SamplingParams};
use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::{KvCache, Model, Numerics, RequestRows};
use deepinfer_numerics::sampling::Draw;
use deepinfer_tests::{Tensors, device, miniature};

pub(crate) fn model() -> Model {
    let checkpoint = Checkpoint::open(&miniature()).expect("the miniature");
    Model::load(device(), &checkpoint, Numerics::DEPLOY, &mut |_, _| {}).expect("the miniature loads").0
}

/// A log-probability and those of the best tokens, as bits.
pub(crate) type LogprobBits = (u32, Vec<(u32, u32)>);

/// What a completion must be.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Expected {
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<LogprobBits>,
    /// One for each token of the prompt but the first, if asked for.
    pub(crate) prompt_logprobs: Vec<LogprobBits>,
    pub(crate) stopped: bool,
}

/// Runs requests alone.
pub(crate) struct Reference {
    model: Model,
}

impl Reference {
    pub(crate) fn new() -> Self {
        Self { model: model() }
    }

    /// Completion `child` of a valid request that has a seed, up to `limit` tokens. Stop strings are not looked for.
    pub(crate) fn run(&self, request: &Request, child: usize) -> Expected {
        let (params, prompt) = (&request.params, &request.prompt_token_ids);
        let config = self.model.config();
        let limit = params.max_tokens.expect("a limit").min(config.max_position_embeddings - prompt.len());
        let pages: Vec<u32> = (0..KvCache::pages_for(prompt.len() + limit) as u32).collect();
        let cache = KvCache::new(self.model.device(), config, self.model.numerics(), pages.len(), 1).expect("caches");
        let step = |tokens: &[u32], start: usize, wanted: &[usize]| -> Vec<Vec<f32>> {
            let rows = RequestRows { tokens, start, slot: 0, pages: &pages, image_mask: &[] };
            let logits = self.model.step(&cache, &[rows], wanted, None).expect("the step runs");
            let values = Tensors(self.model.device().clone()).floats(&logits);
            values.chunks(config.vocab_size).map(<[f32]>::to_vec).collect()
        };

        let mut expected = Expected::default();
        let wanted: Vec<usize> = match params.prompt_logprobs {
            Some(_) => (0..prompt.len()).collect(),
            None => vec![prompt.len() - 1],
        };
        let mut rows = step(prompt, 0, &wanted);
        let mut logits = rows.pop().expect("the last row");
        if let Some(top) = params.prompt_logprobs {
            expected.prompt_logprobs = rows.iter().zip(&prompt[1..]).map(|(row, &id)| logprob(row, id, top)).collect();
        }
        loop {
            let index = expected.tokens.len();
            let drawn = self.draw(request, &expected.tokens, &logits, child);
            let token = params.golden_token_ids.get(index).copied().unwrap_or(drawn);
            if let Some(top) = params.logprobs {
                expected.logprobs.push(logprob(&logits, token, top));
            }
            expected.tokens.push(token);
            let may_stop = index >= params.min_tokens && index + 1 >= params.golden_token_ids.len();
            let is_stop = stops(params, config.eos_token_id).contains(&token);
            if may_stop && is_stop {
                expected.stopped = true;
                return expected;
            }
            if expected.tokens.len() == limit {
                return expected;
            }
            logits = step(&[token], prompt.len() + index, &[0]).pop().expect("one row");
        }
    }

    fn draw(&self, request: &Request, output: &[u32], logits: &[f32], child: usize) -> u32 {
        let params = &request.params;
        let mut logits = logits.to_vec();
        for (&token, bias) in &params.logit_bias {
            logits[token as usize] += bias;
        }
        let mut ban = params.banned_token_ids.clone();
        if output.len() < params.min_tokens {
            ban.extend(stops(params, self.model.config().eos_token_id));
        }
        ban.iter().for_each(|&token| logits[token as usize] = f32::NEG_INFINITY);
        for (token, logit) in (0_u32..).zip(&mut logits) {
            let count = output.iter().filter(|&&id| id == token).count();
            if count == 0 && !request.prompt_token_ids.contains(&token) {
                continue;
            }
            let repetition = params.repetition_penalty;
            *logit *= if *logit > 0.0 { 1.0 / repetition } else { repetition };
            if count > 0 {
                *logit -= params.frequency_penalty * count as f32 + params.presence_penalty;
            }
        }
        if let Some(allowed) = &params.allowed_token_ids {
            let others = (0_u32..).zip(&mut logits).filter(|(token, _)| !allowed.contains(token));
            others.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        }
        let draw = Draw {
            inv_temperature: if params.temperature < 1e-5 { 0.0 } else { 1.0 / params.temperature },
            seed: params.seed.expect("a seed"),
            position: (request.prompt_token_ids.len() + output.len()) as u32,
            child: child as u32,
            min_p_log: if params.min_p == 0.0 { f32::NEG_INFINITY } else { f64::from(params.min_p).ln() as f32 },
            top_k: params.top_k as u32,
            top_p: params.top_p,
        };
        let mut order = vec![0; logits.len()];
        draw.token(&logits, &mut order).expect("a token can be drawn")
    }
}

fn stops(params: &SamplingParams, end: u32) -> Vec<u32> {
    let end = (!params.ignore_eos).then_some(end);
    end.into_iter().chain(params.stop_token_ids.iter().copied()).collect()
}

/// Natural logarithms of probabilities, from raw logits.
fn logprob(logits: &[f32], token: u32, top: usize) -> LogprobBits {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    let of = |id: u32| ((f64::from(logits[id as usize]) - (f64::from(max) + sum.ln())) as f32).to_bits();
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    (of(token), ids.iter().take(top).map(|&id| (id, of(id))).collect())
}
