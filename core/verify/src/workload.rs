//! The requests of a seed: prompts whose lengths lie around every edge of the caches, and parameters of every kind.

use std::fmt;

use deepinfer_engine::{Request, SamplingParams};
use deepinfer_model::config::ModelConfig;

use crate::noise::{Domain, Noise};

/// Tokens of a page.
const PAGE: usize = 128;
/// Longest prompt, whatever the model could take.
const LONGEST_PROMPT: usize = 4096;
/// Most output tokens of a request.
const MOST_OUTPUT: usize = 12;
/// Different beginnings that requests share.
const SHARED_BEGINNINGS: u64 = 3;

/// How a request's tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sampling {
    /// The largest logit.
    Greedy,
    /// A temperature alone.
    Temperature,
    /// The most likely tokens, by number.
    TopK,
    /// The most likely tokens, by probability.
    TopP,
    /// Penalties on tokens that occurred.
    Penalties,
    /// Biases and banned tokens.
    Biased,
    /// A list of allowed tokens.
    Allowed,
    /// A least number of tokens, and many stop tokens.
    Stops,
    /// Output tokens that are given.
    Forced,
}

impl Sampling {
    /// Every kind.
    pub const ALL: [Sampling; 9] = [
        Self::Greedy,
        Self::Temperature,
        Self::TopK,
        Self::TopP,
        Self::Penalties,
        Self::Biased,
        Self::Allowed,
        Self::Stops,
        Self::Forced,
    ];
}

impl fmt::Display for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Greedy => "greedy",
            Self::Temperature => "temperature",
            Self::TopK => "top_k",
            Self::TopP => "top_p, min_p",
            Self::Penalties => "penalties",
            Self::Biased => "biases, bans",
            Self::Allowed => "allowed ids",
            Self::Stops => "stop ids, min_tokens",
            Self::Forced => "forced tokens",
        })
    }
}

/// An endless list of requests for a model; each follows from the seed and its number.
#[derive(Clone, Debug)]
pub struct Workload {
    seed: u64,
    vocab_size: usize,
    lengths: Vec<usize>,
}

impl Workload {
    /// The requests of `seed` for a model of this configuration.
    pub fn new(seed: u64, config: &ModelConfig) -> Self {
        let longest = LONGEST_PROMPT.min(config.max_position_embeddings.saturating_sub(MOST_OUTPUT)).max(1);
        let window = config.sliding_window;
        // Where a row begins to see more compressed entries than are selected, and more than there are candidates for.
        let ratio = config.compress_ratios.iter().copied().filter(|&ratio| ratio > 0).min().unwrap_or(1);
        let selected = config.index_topk * ratio;
        let candidates = config.candidate_topk_blocks * config.candidate_block_size * ratio;
        let edges = [
            [1, 2, 3, 7, 16],
            [window - 1, window, window + 1, window + 7, 2 * window + 5],
            [PAGE - 1, PAGE, PAGE + 1, PAGE + 70, 3 * PAGE],
            [2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1, 3 * PAGE + 66, 5 * PAGE],
            [selected, selected + 40, 2 * selected + 30, candidates + 40, 4 * PAGE + 1],
        ];
        let lengths = edges.into_iter().flatten().map(|length| length.clamp(1, longest)).collect();
        Self { seed, vocab_size: config.vocab_size, lengths }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// How request `number` chooses its tokens.
    pub fn sampling(&self, number: usize) -> Sampling {
        Sampling::ALL[number % Sampling::ALL.len()]
    }

    /// Completions of request `number`.
    pub fn completions(&self, number: usize) -> usize {
        // Five and the nine kinds of sampling have no common factor, so that each kind comes with each number.
        [1, 2, 1, 3, 1][number % 5]
    }

    /// Request `number`, whose name is its number.
    pub fn request(&self, number: usize) -> Request {
        let mut noise = Noise::new(self.seed, Domain::Request, number as u64);
        let (one, other) = (noise.pick(&self.lengths), noise.pick(&self.lengths));
        // Half of them are the shorter of two: most edges lie low, and more cells fit into as many rows.
        let length = if noise.below(2) == 0 { one } else { one.min(other) };
        let mut prompt = self.shared_beginning(&mut noise, length);
        let style = noise.below(3);
        let few: Vec<u32> = (0..2 + noise.below(30)).map(|_| noise.below(self.vocab_size) as u32).collect();
        while prompt.len() < length {
            prompt.push(match style {
                // A text that repeats itself, in which scores tie.
                0 => few[prompt.len() % few.len()],
                1 => noise.pick(&few),
                _ => noise.below(self.vocab_size) as u32,
            });
        }
        let params = self.params(number, &mut noise);
        Request { id: number.to_string(), prompt_token_ids: prompt, params }
    }

    /// What others begin with, too; nothing for some.
    fn shared_beginning(&self, noise: &mut Noise, length: usize) -> Vec<u32> {
        let shared = noise.pick(&[0, PAGE / 2, PAGE, PAGE + 2, 2 * PAGE, 3 * PAGE]).min(length);
        let mut beginning = Noise::new(self.seed, Domain::SharedBeginning, noise.word() as u64 % SHARED_BEGINNINGS);
        (0..shared).map(|_| beginning.below(self.vocab_size) as u32).collect()
    }

    fn params(&self, number: usize, noise: &mut Noise) -> SamplingParams {
        let token = |noise: &mut Noise| noise.below(self.vocab_size) as u32;
        let unit = |noise: &mut Noise| noise.below(1000) as f32 / 1000.0;
        let sampling = self.sampling(number);
        let temperature = if sampling == Sampling::Greedy { 0.0 } else { 0.5 + unit(noise) };
        let drawn = SamplingParams {
            max_tokens: Some(1 + noise.below(MOST_OUTPUT)),
            temperature,
            n: self.completions(number),
            seed: Some(u64::from(noise.word()) << 32 | u64::from(noise.word())),
            ignore_eos: true,
            ..SamplingParams::default()
        };
        match sampling {
            Sampling::Greedy | Sampling::Temperature => drawn,
            Sampling::TopK => SamplingParams { top_k: 1 + noise.below(60), ..drawn },
            Sampling::TopP => SamplingParams { top_p: 0.2 + 0.75 * unit(noise), min_p: 0.02 * unit(noise), ..drawn },
            Sampling::Penalties => SamplingParams {
                repetition_penalty: 0.7 + unit(noise),
                frequency_penalty: unit(noise),
                presence_penalty: unit(noise) - 0.5,
                ..drawn
            },
            Sampling::Biased => SamplingParams {
                logit_bias: (0..20).map(|_| (token(noise), 6.0 * unit(noise))).collect(),
                banned_token_ids: (0..20).map(|_| token(noise)).collect(),
                ..drawn
            },
            Sampling::Allowed => {
                SamplingParams { allowed_token_ids: Some((0..50).map(|_| token(noise)).collect()), ..drawn }
            }
            Sampling::Stops => SamplingParams {
                min_tokens: 2.min(drawn.max_tokens.unwrap_or(1)),
                stop_token_ids: (0..self.vocab_size as u32).step_by(3).collect(),
                ignore_eos: false,
                ..drawn
            },
            Sampling::Forced => SamplingParams { golden_token_ids: (0..4).map(|_| token(noise)).collect(), ..drawn },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn miniature() -> ModelConfig {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/deepseek-v41-mini/config.json");
        ModelConfig::from_file(&file).unwrap()
    }

    #[test]
    fn requests_are_valid_and_follow_from_their_numbers() {
        let config = miniature();
        let workload = Workload::new(9, &config);
        let mut kinds = BTreeSet::new();
        for number in 0..90 {
            let request = workload.request(number);
            request.validate(&config).unwrap();
            assert_eq!(request, Workload::new(9, &config).request(number));
            assert_ne!(request.prompt_token_ids, Workload::new(10, &config).request(number).prompt_token_ids);
            kinds.insert((workload.sampling(number), request.params.n));
        }
        assert_eq!(kinds.len(), 27, "every kind of sampling comes with one, two and three completions");
    }

    #[test]
    fn prompts_begin_alike_and_reach_over_every_edge() {
        let workload = Workload::new(1, &miniature());
        let prompts: Vec<Vec<u32>> = (0..100).map(|number| workload.request(number).prompt_token_ids).collect();
        let pages: Vec<&[u32]> = prompts.iter().filter_map(|prompt| prompt.get(..PAGE)).collect();
        let different: BTreeSet<&&[u32]> = pages.iter().collect();
        assert!(different.len() < pages.len() / 2, "{} of {} first pages are different", different.len(), pages.len());
        for length in [1, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE] {
            assert!(prompts.iter().any(|prompt| prompt.len() == length), "no prompt of {length} tokens");
        }
    }
}
