//! How tokens are chosen, as arguments.

use std::collections::BTreeMap;

use clap::Args;
use deepinfer_engine::SamplingParams;

use crate::numbers::{number, temperature, whole};

/// Most alternatives per token that can be reported.
const MOST_ALTERNATIVES: u64 = 4096;

/// How tokens are chosen and when outputs end.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling (lines of a file may have values of their own)")]
pub(crate) struct SamplingArgs {
    /// Most tokens to make per prompt [default: 128, or the rest of the context]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>(1..=u64::MAX))]
    max_tokens: Option<usize>,

    /// Do not stop before there are N tokens, except at the limit
    #[arg(long, value_name = "N", default_value = "0", allow_negative_numbers = true, value_parser = whole::<usize>(0..=u64::MAX))]
    min_tokens: usize,

    /// Completions of each prompt; more than one for JSON lines
    #[arg(short, long = "n", value_name = "N", default_value = "1", allow_negative_numbers = true, value_parser = whole::<usize>(1..=1024))]
    n: usize,

    /// Temperature of the draws; 0 always takes the most likely token
    #[arg(long, value_name = "T", default_value = "0", allow_negative_numbers = true, value_parser = temperature)]
    temperature: f32,

    /// Draw from the K most likely tokens; 0 is all
    #[arg(long, value_name = "K", default_value = "0", allow_negative_numbers = true, value_parser = whole::<usize>(0..=u64::MAX))]
    top_k: usize,

    /// Draw from the fewest most likely tokens whose probabilities sum to at least P, above 0 and at most 1
    #[arg(long, value_name = "P", default_value = "1", allow_negative_numbers = true, value_parser = number::<f32>)]
    top_p: f32,

    /// Leave out tokens less likely than this part of the most likely one, 0 to 1
    #[arg(long, value_name = "PART", default_value = "0", allow_negative_numbers = true, value_parser = number::<f32>)]
    min_p: f32,

    /// Divides positive logits of tokens in prompt and output, and multiplies the others; 1 is off
    #[arg(long, value_name = "R", default_value = "1", allow_negative_numbers = true, value_parser = number::<f32>)]
    repetition_penalty: f32,

    /// Taken from a token's logit for each time that it is in the output, -2 to 2
    #[arg(long, value_name = "F", default_value = "0", allow_negative_numbers = true, value_parser = number::<f32>)]
    frequency_penalty: f32,

    /// Taken from a token's logit if it is in the output, -2 to 2
    #[arg(long, value_name = "P", default_value = "0", allow_negative_numbers = true, value_parser = number::<f32>)]
    presence_penalty: f32,

    /// Added to the logits of tokens, as in 17=-2.5,433=1; -inf bans
    #[arg(long, value_name = "ID=BIAS,..", value_delimiter = ',', allow_hyphen_values = true, value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,

    /// Draw nothing but these tokens
    #[arg(long, value_name = "ID,..", value_delimiter = ',', value_parser = whole::<u32>(0..=u32::MAX as u64))]
    allowed_token_ids: Option<Vec<u32>>,

    /// Draw none of these tokens
    #[arg(long, value_name = "ID,..", value_delimiter = ',', value_parser = whole::<u32>(0..=u32::MAX as u64))]
    banned_token_ids: Vec<u32>,

    /// Seed of the draws [default: drawn, and reported]
    ///
    /// The same seed, prompt and parameters give the same tokens, whatever else runs beside.
    /// In a file, every line gets it that has no seed of its own: equal prompts then get equal outputs.
    #[arg(long, visible_alias = "seq-seed", value_name = "S", allow_negative_numbers = true, value_parser = whole::<u64>(0..=u64::MAX))]
    seed: Option<u64>,

    /// End the output at this text, which is left out; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,

    /// End the output at these tokens, too
    #[arg(long, value_name = "ID,..", value_delimiter = ',', value_parser = whole::<u32>(0..=u32::MAX as u64))]
    stop_token_ids: Vec<u32>,

    /// Keep the stop text that ends an output
    #[arg(long)]
    include_stop_str_in_output: bool,

    /// Go on after the model's end token
    #[arg(long)]
    ignore_eos: bool,

    /// Leave special tokens out of the text
    #[arg(long)]
    skip_special_tokens: bool,

    /// The first output tokens, whatever the model prefers
    #[arg(long, value_name = "ID,..", value_delimiter = ',', value_parser = whole::<u32>(0..=u32::MAX as u64))]
    golden_token_ids: Vec<u32>,

    /// Report the log-probability of each token and of the K most likely ones; for JSON lines
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = whole::<usize>(0..=MOST_ALTERNATIVES))]
    logprobs: Option<usize>,

    /// The same for the tokens of the prompt; for JSON lines
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = whole::<usize>(0..=MOST_ALTERNATIVES))]
    prompt_logprobs: Option<usize>,

    /// Report the K largest logits at each token; for JSON lines
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = whole::<usize>(0..=MOST_ALTERNATIVES))]
    logits: Option<usize>,

    /// The line with the smallest is served first; for files
    #[arg(long, value_name = "P", default_value = "0", allow_negative_numbers = true)]
    priority: i32,

    /// Share cached beginnings of prompts with lines of the same salt alone; for files
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    cache_salt: String,
}

impl SamplingArgs {
    /// The parameters; whether their values go together is for [`SamplingParams::validate`].
    pub(crate) fn params(&self) -> SamplingParams {
        SamplingParams {
            max_tokens: self.max_tokens,
            min_tokens: self.min_tokens,
            n: self.n,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            logit_bias: self.logit_bias.iter().copied().collect::<BTreeMap<_, _>>(),
            allowed_token_ids: self.allowed_token_ids.clone(),
            banned_token_ids: self.banned_token_ids.clone(),
            seed: self.seed,
            stop_token_ids: self.stop_token_ids.clone(),
            stop: self.stop.clone(),
            include_stop_str_in_output: self.include_stop_str_in_output,
            ignore_eos: self.ignore_eos,
            skip_special_tokens: self.skip_special_tokens,
            golden_token_ids: self.golden_token_ids.clone(),
            logprobs: self.logprobs,
            prompt_logprobs: self.prompt_logprobs,
            logits: self.logits,
            priority: self.priority,
            cache_salt: self.cache_salt.clone(),
        }
    }

    /// The option that only a line of JSON can answer, if there is one.
    pub(crate) fn for_lines_only(&self) -> Option<&'static str> {
        let options = [
            ("--n above 1", self.n > 1),
            ("--logprobs", self.logprobs.is_some()),
            ("--prompt-logprobs", self.prompt_logprobs.is_some()),
            ("--logits", self.logits.is_some()),
        ];
        options.iter().find(|(_, is_given)| *is_given).map(|(option, _)| *option)
    }
}

/// Reads `ID=BIAS`.
fn bias(text: &str) -> Result<(u32, f32), String> {
    let pair = text.split_once('=').and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
    pair.ok_or_else(|| "it must be a token id and a number, as in 17=-2.5".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_of_alternatives_is_the_engines() {
        let of = |logits: u64| SamplingParams { logits: Some(logits as usize), ..SamplingParams::default() }.validate();
        assert!(of(MOST_ALTERNATIVES).is_ok() && of(MOST_ALTERNATIVES + 1).is_err());
    }

    #[test]
    fn biases() {
        assert_eq!((bias("17=-2.5"), bias("0=-inf")), (Ok((17, -2.5)), Ok((0, f32::NEG_INFINITY))));
        for text in ["17", "=1", "17=", "-1=2", "17:2", "a=1"] {
            assert_eq!(bias(text).unwrap_err(), "it must be a token id and a number, as in 17=-2.5", "{text:?}");
        }
    }
}
