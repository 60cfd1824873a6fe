//! What changes the logits of a completion before the draw: biases, the tokens seen so far, and the mask of those allowed.

use std::rc::Rc;

use deepinfer_model::config::ModelConfig;

use crate::params::SamplingParams;

/// What all completions of a request have in common.
pub(crate) struct Adjustments {
    /// Biases while there are fewer than `min_tokens` output tokens, by ascending token.
    early: Rc<[(u32, f32)]>,
    /// Biases after that.
    late: Rc<[(u32, f32)]>,
    min_tokens: usize,
    /// Tokens of the prompt, ascending, each once; empty if no penalty asks for them.
    prompt_tokens: Vec<u32>,
    /// Bits of the allowed tokens, 32 to a word, counted from the lowest.
    mask: Option<Rc<[u32]>>,
}

impl Adjustments {
    pub(crate) fn new(params: &SamplingParams, config: &ModelConfig, prompt: &[u32]) -> Self {
        let late: Rc<[(u32, f32)]> = params.bias_list(config, params.min_tokens).into();
        let early = match params.min_tokens {
            0 => late.clone(),
            _ => params.bias_list(config, 0).into(),
        };
        let mut prompt_tokens = if params.has_penalties() { prompt.to_vec() } else { Vec::new() };
        prompt_tokens.sort_unstable();
        prompt_tokens.dedup();
        let mask = params.allowed_token_ids.as_ref().map(|allowed| {
            let mut words = vec![0_u32; config.vocab_size.div_ceil(32)];
            allowed.iter().for_each(|&id| words[id as usize / 32] |= 1 << (id % 32));
            words.into()
        });
        Self { early, late, min_tokens: params.min_tokens, prompt_tokens, mask }
    }

    /// Biases of the token after `output_len` output tokens.
    pub(crate) fn biases(&self, output_len: usize) -> &[(u32, f32)] {
        if output_len < self.min_tokens { &self.early } else { &self.late }
    }

    /// Bits of the allowed tokens; `None` allows all.
    pub(crate) fn mask(&self) -> Option<&Rc<[u32]>> {
        self.mask.as_ref()
    }
}

/// Tokens of prompt and output, ascending, with how often each is in the output. Kept only for requests with penalties.
pub(crate) struct SeenTokens(Option<Vec<(u32, u32)>>);

impl SeenTokens {
    /// Those of a prompt without an output.
    pub(crate) fn new(params: &SamplingParams, adjustments: &Adjustments) -> Self {
        let tokens = || adjustments.prompt_tokens.iter().map(|&token| (token, 0)).collect();
        Self(params.has_penalties().then(tokens))
    }

    /// Takes in a token of the output.
    pub(crate) fn push(&mut self, token: u32) {
        let Some(seen) = &mut self.0 else { return };
        match seen.binary_search_by_key(&token, |(token, _)| *token) {
            Ok(at) => seen[at].1 += 1,
            Err(at) => seen.insert(at, (token, 1)),
        }
    }

    /// Tokens and counts; `None` if no penalty asks for them.
    pub(crate) fn list(&self) -> Option<&[(u32, u32)]> {
        self.0.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ModelConfig {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/deepseek-v41-mini");
        deepinfer_model::checkpoint::Checkpoint::open(file.as_ref()).unwrap().config().clone()
    }

    #[test]
    fn bans_win_over_biases_and_stop_tokens_are_banned_until_min_tokens() {
        let params = SamplingParams {
            logit_bias: [(9, 2.0), (4, -1.0), (7, f32::NEG_INFINITY)].into(),
            banned_token_ids: vec![9, 3],
            stop_token_ids: vec![4],
            min_tokens: 2,
            ..SamplingParams::default()
        };
        let adjustments = Adjustments::new(&params, &config(), &[5, 5]);
        let ban = f32::NEG_INFINITY;
        // 1 is the model's end token.
        let early = [(1, ban), (3, ban), (4, ban), (7, ban), (9, ban)];
        assert_eq!((adjustments.biases(0), adjustments.biases(1)), (&early[..], &early[..]));
        assert_eq!(adjustments.biases(2), [(3, ban), (4, -1.0), (7, ban), (9, ban)]);
        assert!(adjustments.prompt_tokens.is_empty() && adjustments.mask().is_none());
    }

    #[test]
    fn seen_tokens_ascend_and_count_the_output_alone() {
        let params = SamplingParams { presence_penalty: 1.0, ..SamplingParams::default() };
        let adjustments = Adjustments::new(&params, &config(), &[8, 2, 8, 5]);
        let mut seen = SeenTokens::new(&params, &adjustments);
        assert_eq!(seen.list(), Some(&[(2, 0), (5, 0), (8, 0)][..]));
        for token in [6, 8, 6, 0] {
            seen.push(token);
        }
        assert_eq!(seen.list(), Some(&[(0, 1), (2, 0), (5, 0), (6, 2), (8, 1)][..]));
        let none = SamplingParams::default();
        let mut seen = SeenTokens::new(&none, &Adjustments::new(&none, &config(), &[8]));
        seen.push(1);
        assert_eq!(seen.list(), None);
    }

    #[test]
    fn masks_have_a_bit_for_each_allowed_token() {
        let params = SamplingParams { allowed_token_ids: Some(vec![0, 33, 4095, 33]), ..SamplingParams::default() };
        let adjustments = Adjustments::new(&params, &config(), &[8]);
        let mask = adjustments.mask().unwrap();
        assert_eq!((mask.len(), mask[0], mask[1], mask[127]), (128, 1, 2, 1 << 31));
        assert_eq!(mask.iter().map(|word| word.count_ones()).sum::<u32>(), 3);
    }
}
