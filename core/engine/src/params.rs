//! How tokens are chosen and when to stop.

use std::collections::{BTreeMap, BTreeSet};

use deepinfer_model::config::ModelConfig;

use crate::error::RequestError;

/// Output tokens when nobody says how many.
const DEFAULT_MAX_TOKENS: usize = 128;
/// Most alternatives that are reported per token.
const MAX_TOP: usize = 4096;
/// Most completions of a request: all of them are kept from the start.
const MAX_N: usize = 1024;
/// Below this the scaled logits could overflow; long before, the largest logit wins whatever the noise.
const GREEDY_BELOW: f32 = 1e-5;
/// Most columns over which `top_p` sums probabilities exactly.
const TOP_P_VOCABULARY: usize = 1 << 17;

/// How tokens are chosen and when to stop.
///
/// Logits change in this order: `logit_bias`, bans (`banned_token_ids`, and stop tokens before `min_tokens`), penalties,
/// `allowed_token_ids`; then `temperature`, `min_p`, `top_k`, `top_p`, and the draw. Log-probabilities and logits are
/// reported as they were before all of it.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Most output tokens; `None` is 128 or the rest of the context, whichever is less. A larger number than the context
    /// holds ends at the context.
    pub max_tokens: Option<usize>,
    /// No stop token is drawn, and no stop string looked for, before there are this many output tokens.
    pub min_tokens: usize,
    /// Completions, at most 1,024. They share the prompt, and each has noise of its own.
    pub n: usize,
    /// 0 is greedy, and so is anything below 1e-5: the largest logit, of equal ones that of the lowest id.
    pub temperature: f32,
    /// Draw from this many most likely tokens; 0 is all.
    pub top_k: usize,
    /// Draw from the fewest most likely tokens whose probabilities sum to at least this, above 0; 1 is all.
    pub top_p: f32,
    /// Leave out tokens whose probability is less than this part of the largest one, 0 to 1.
    pub min_p: f32,
    /// Logits of tokens of prompt and output are divided by this if they are positive, and multiplied otherwise; above 0, 1
    /// is off.
    pub repetition_penalty: f32,
    /// Taken from a token's logit for each time that it is in the output; -2 to 2.
    pub frequency_penalty: f32,
    /// Taken from a token's logit if it is in the output; -2 to 2.
    pub presence_penalty: f32,
    /// Added to logits, by token. Minus infinity bans.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Draw nothing else.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Draw none of these.
    pub banned_token_ids: Vec<u32>,
    /// Seed of the draws; `None` draws one, which the output reports.
    pub seed: Option<u64>,
    /// Tokens that end the output, besides the model's end token. The stop token is part of the output.
    pub stop_token_ids: Vec<u32>,
    /// Texts that end the output, and the text with it; the token that completes one is part of the output's tokens. Needs a
    /// tokenizer.
    pub stop: Vec<String>,
    /// The text keeps the stop string that ends it.
    pub include_stop_str_in_output: bool,
    /// The model's end token does not end the output.
    pub ignore_eos: bool,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Teacher forcing: output i is `golden_token_ids[i]`, whatever was drawn. Nothing but the limit ends the output before
    /// the last of them is out.
    pub golden_token_ids: Vec<u32>,
    /// Report the log-probability of each token and of this many best ones.
    pub logprobs: Option<usize>,
    /// The same for the tokens of the prompt.
    pub prompt_logprobs: Option<usize>,
    /// Report this many largest logits of each step.
    pub logits: Option<usize>,
    /// The smallest is served first, where the engine serves by priority.
    pub priority: i32,
    /// Cached beginnings of prompts are shared among requests of the same salt alone.
    pub cache_salt: String,
}

impl Default for SamplingParams {
    /// Greedy, everything else off.
    fn default() -> Self {
        Self {
            max_tokens: None,
            min_tokens: 0,
            n: 1,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            allowed_token_ids: None,
            banned_token_ids: Vec::new(),
            seed: None,
            stop_token_ids: Vec::new(),
            stop: Vec::new(),
            include_stop_str_in_output: false,
            ignore_eos: false,
            skip_special_tokens: false,
            golden_token_ids: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
            logits: None,
            priority: 0,
            cache_salt: String::new(),
        }
    }
}

impl SamplingParams {
    /// Checks what needs no model; [`Request::validate`](crate::Request::validate) also checks the token ids.
    ///
    /// # Errors
    /// [`RequestError::InvalidParameter`].
    pub fn validate(&self) -> Result<(), RequestError> {
        let check = |name, valid: bool, value: String, wanted| {
            if valid { Ok(()) } else { Err(RequestError::InvalidParameter { name, value, wanted }) }
        };
        let float = |name, value: f32, valid: bool, wanted| check(name, valid, value.to_string(), wanted);
        let whole = |name, value: usize, valid: bool, wanted| check(name, valid, value.to_string(), wanted);
        let temperature = self.temperature;
        float(
            "temperature",
            temperature,
            temperature.is_finite() && temperature >= 0.0,
            "a finite number of at least 0",
        )?;
        float("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1")?;
        float("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "at least 0 and at most 1")?;
        let repetition = self.repetition_penalty;
        let invertible = repetition > 0.0 && repetition.is_finite() && repetition.recip().is_finite();
        float("repetition_penalty", repetition, invertible, "above 0 and finite, and so must be its inverse")?;
        let penalties = [("frequency_penalty", self.frequency_penalty), ("presence_penalty", self.presence_penalty)];
        for (name, value) in penalties {
            float(name, value, (-2.0..=2.0).contains(&value), "at least -2 and at most 2")?;
        }
        for (token, &bias) in &self.logit_bias {
            let valid = bias < f32::INFINITY;
            check("logit_bias", valid, format!("{bias} for token {token}"), "a number below infinity for every token")?;
        }
        whole("top_k", self.top_k, self.top_k <= i32::MAX as usize, "at most 2147483647, or 0 for all tokens")?;
        whole("n", self.n, (1..=MAX_N).contains(&self.n), "at least 1 and at most 1024")?;
        whole("max_tokens", self.max_tokens.unwrap_or(1), self.max_tokens != Some(0), "at least 1")?;
        let max_tokens = self.max_tokens.unwrap_or(usize::MAX);
        whole("min_tokens", self.min_tokens, self.min_tokens <= max_tokens, "at most max_tokens")?;
        for (name, top) in
            [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs), ("logits", self.logits)]
        {
            whole(name, top.unwrap_or(0), top.is_none_or(|top| top <= MAX_TOP), "at most 4096")?;
        }
        check("stop", !self.stop.iter().any(String::is_empty), "an empty text".to_owned(), "texts that are not empty")
    }

    /// As [`SamplingParams::validate`], and whether the token ids exist and leave something to draw.
    pub(crate) fn validate_for(&self, config: &ModelConfig) -> Result<(), RequestError> {
        let vocab_size = config.vocab_size;
        let bias: Vec<u32> = self.logit_bias.keys().copied().collect();
        let lists = [
            ("golden_token_ids", self.golden_token_ids.as_slice()),
            ("stop_token_ids", &self.stop_token_ids),
            ("logit_bias", &bias),
            ("banned_token_ids", &self.banned_token_ids),
            ("allowed_token_ids", self.allowed_token_ids.as_deref().unwrap_or_default()),
        ];
        for (what, ids) in lists {
            check_tokens(what, ids, vocab_size)?;
        }
        self.validate()?;
        if self.top_p < 1.0 && vocab_size > TOP_P_VOCABULARY {
            return Err(RequestError::InvalidParameter {
                name: "top_p",
                value: self.top_p.to_string(),
                wanted: "1, because the vocabulary has more than 131072 tokens",
            });
        }
        let banned: BTreeSet<u32> =
            self.biases(config, 0).filter(|(_, b)| *b == f32::NEG_INFINITY).map(|b| b.0).collect();
        let (what, something_left) = match &self.allowed_token_ids {
            Some(allowed) => ("allowed_token_ids", allowed.iter().any(|id| !banned.contains(id))),
            None => ("banned_token_ids", banned.len() < vocab_size),
        };
        if something_left {
            return Ok(());
        }
        Err(RequestError::InvalidParameter {
            name: what,
            value: "such that nothing can be drawn".to_owned(),
            wanted: "such that a token is left besides those that are banned, minus infinity in logit_bias, or stop \
                     tokens before min_tokens",
        })
    }

    /// Most output tokens after a prompt, if `context` is the most tokens of both.
    pub(crate) fn output_limit(&self, prompt_tokens: usize, context: usize) -> usize {
        self.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS).min(context - prompt_tokens)
    }

    /// Factor on the logits; 0 means greedy.
    pub(crate) fn inv_temperature(&self) -> f32 {
        if self.temperature < GREEDY_BELOW { 0.0 } else { 1.0 / self.temperature }
    }

    /// Natural logarithm of `min_p`; minus infinity is off.
    pub(crate) fn min_p_log(&self) -> f32 {
        f64::from(self.min_p).ln() as f32
    }

    /// Whether a token ends the output.
    pub(crate) fn is_stop(&self, config: &ModelConfig, token: u32) -> bool {
        (token == config.eos_token_id && !self.ignore_eos) || self.stop_token_ids.contains(&token)
    }

    /// Whether logits depend on the tokens so far.
    pub(crate) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// What is added to logits after `output_len` output tokens; a token may come several times, a ban then wins.
    fn biases<'a>(&'a self, config: &'a ModelConfig, output_len: usize) -> impl Iterator<Item = (u32, f32)> + 'a {
        let bans_stops = output_len < self.min_tokens;
        let end = (!self.ignore_eos).then_some(config.eos_token_id);
        let stops = end.into_iter().chain(self.stop_token_ids.iter().copied()).filter(move |_| bans_stops);
        let banned = self.banned_token_ids.iter().copied().chain(stops).map(|token| (token, f32::NEG_INFINITY));
        self.logit_bias.iter().map(|(&token, &bias)| (token, bias)).chain(banned)
    }

    /// What is added to logits after `output_len` output tokens, by ascending token.
    pub(crate) fn bias_list(&self, config: &ModelConfig, output_len: usize) -> Vec<(u32, f32)> {
        let mut list = BTreeMap::new();
        for (token, bias) in self.biases(config, output_len) {
            list.entry(token).and_modify(|sum: &mut f32| *sum = sum.min(bias)).or_insert(bias);
        }
        list.into_iter().collect()
    }
}

/// Checks that ids are in the vocabulary; `what` names the list.
pub(crate) fn check_tokens(what: &'static str, ids: &[u32], vocab_size: usize) -> Result<(), RequestError> {
    match ids.iter().enumerate().find(|(_, id)| **id as usize >= vocab_size) {
        None => Ok(()),
        Some((index, &id)) => Err(RequestError::TokenOutOfRange { what, index, id: i64::from(id), vocab_size }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(params: &SamplingParams) -> String {
        params.validate().expect_err("it is refused").to_string()
    }

    #[test]
    fn refusals_name_the_parameter_the_value_and_what_it_may_be() {
        let default = SamplingParams::default;
        assert_eq!(default().validate(), Ok(()));
        let cases = [
            (SamplingParams { top_p: 0.0, ..default() }, "top_p is 0, but must be above 0 and at most 1"),
            (SamplingParams { top_p: f32::NAN, ..default() }, "top_p is NaN"),
            (SamplingParams { min_p: 1.5, ..default() }, "min_p is 1.5, but must be at least 0 and at most 1"),
            (SamplingParams { temperature: f32::INFINITY, ..default() }, "temperature is inf"),
            (SamplingParams { repetition_penalty: 0.0, ..default() }, "repetition_penalty is 0, but must be above 0"),
            (SamplingParams { repetition_penalty: 1e-40, ..default() }, "and so must be its inverse"),
            (SamplingParams { frequency_penalty: 2.5, ..default() }, "frequency_penalty is 2.5"),
            (SamplingParams { presence_penalty: f32::NAN, ..default() }, "presence_penalty is NaN"),
            (SamplingParams { n: 0, ..default() }, "n is 0, but must be at least 1"),
            (SamplingParams { n: 1025, ..default() }, "n is 1025, but must be at least 1 and at most 1024"),
            (SamplingParams { top_k: 1 << 31, ..default() }, "top_k is 2147483648"),
            (
                SamplingParams { max_tokens: Some(3), min_tokens: 4, ..default() },
                "min_tokens is 4, but must be at most",
            ),
            (SamplingParams { prompt_logprobs: Some(5000), ..default() }, "prompt_logprobs is 5000"),
            (SamplingParams { stop: vec![String::new()], ..default() }, "stop is an empty text"),
            (
                SamplingParams { logit_bias: [(7, f32::INFINITY)].into(), ..default() },
                "logit_bias is inf for token 7, but must be a number below infinity",
            ),
        ];
        for (params, sentence) in &cases {
            let message = refused(params);
            assert!(message.contains(sentence), "{message:?} lacks {sentence:?}");
        }
    }

    #[test]
    fn min_p_becomes_a_logarithm_and_zero_is_off() {
        let of = |min_p| SamplingParams { min_p, ..SamplingParams::default() }.min_p_log();
        assert_eq!(of(0.0), f32::NEG_INFINITY);
        assert_eq!(of(1.0), 0.0);
        assert_eq!(of(0.5), -std::f32::consts::LN_2);
    }

    #[test]
    fn tiny_temperatures_are_greedy() {
        let of = |temperature| SamplingParams { temperature, ..SamplingParams::default() }.inv_temperature();
        assert_eq!((of(0.0), of(9.9e-6), of(0.5)), (0.0, 0.0, 2.0));
        assert!(of(1e-5) > 9e4);
    }
}
