//! Arguments of `deepinfer generate`.

use std::path::PathBuf;

use clap::Args;

use super::model::{EngineArgs, ModelArgs};
use super::sampling::SamplingArgs;
use crate::telemetry::TelemetryArgs;

/// Continue a prompt, or the prompts of a file
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deepinfer generate \"Once upon a time\"
  deepinfer generate \"Once upon a time\" --temperature 0.8 --seed 7 --max-tokens 40
  deepinfer generate --model /models/v41-flash --prompts in.jsonl --output out.jsonl
  deepinfer generate \"Once upon a time\" --output - --logprobs 5

Use `deepinfer generate --help` for the format of the lines.")]
#[command(after_long_help = "\
Examples:
  deepinfer generate \"Once upon a time\"
      The text appears as it is made, up to and including the stop token.
  deepinfer generate \"Once upon a time\" --output - --logprobs 5
      One line of JSON on standard output.
  deepinfer generate --model /models/v41-flash --prompts in.jsonl --output out.jsonl
      One line of JSON for each line of in.jsonl, in the same order. Many lines run at once.

Input lines:
  {\"id\": \"a\", \"prompt\": \"Once upon a time\"}
  {\"id\": \"b\", \"prompt_token_ids\": [0, 433, 17], \"max_tokens\": 8, \"temperature\": 0.8, \"seed\": 7}
  Text gets the begin token unless it begins with it, and special tokens spelt out in it count as such;
  token ids are taken as they are. Blank lines are skipped.

  Optional fields go before the options of the command; each is the option of the same name, and null is
  as good as none:
    whole numbers  max_tokens, min_tokens, n, top_k (0 or -1: all), seed (or seq_seed), logprobs,
                   prompt_logprobs, logits, priority (the smallest is served first of the lines that were
                   read; at most twice --max-num-seqs are held at a time)
    numbers        temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty
    token ids      stop_token_ids, golden_token_ids (the first output tokens, whatever the model
                   prefers), allowed_token_ids, banned_token_ids, as lists
    logit_bias     an object: {\"17\": -2.5}
    stop           a text or a list of texts
    true or false  ignore_eos, include_stop_str_in_output, skip_special_tokens
    cache_salt     a text: lines share cached beginnings of prompts with those of the same salt alone

Output lines:
  {\"id\", \"prompt_token_ids\", \"token_ids\", \"text\", \"finish_reason\", \"stop_reason\", \"logprobs\"?,
   \"logits\"?, \"error\"?, \"seed\", \"cached_tokens\", \"prompt_logprobs\"?}
  With n above 1: {\"id\", \"prompt_token_ids\", \"outputs\": [{\"index\", \"token_ids\", \"text\", ..}, ..],
   \"seed\", \"cached_tokens\", \"prompt_logprobs\"?}
  The token that stops an output is part of token_ids and text, a stop text only of token_ids.
  logprobs has for each token {\"token_id\", \"logprob\", \"top\": [[id, logprob], ..]}, prompt_logprobs the same
  for the prompt, null for its first token; logits has [[id, logit], ..]. All are the model's own,
  before any parameter changes them.
  finish_reason is stop, length or error (a fault while it ran; the field error says which);
  stop_reason is the token or text that stopped it, or null. cached_tokens counts the tokens of the
  prompt that did not run because an earlier one, which had run by then, began alike (in whole pages of 128); nothing else
  depends on other lines.
  A line that cannot be run gives {\"id\", \"error\": {\"code\", \"message\"}}, and the others go on: the
  exit code is still 0. An input line without a readable id is called by its number.")]
pub(crate) struct GenerateArgs {
    /// Text to continue
    ///
    /// Write `--` before a text that begins with a hyphen, after all options.
    pub(crate) prompt: Option<String>,

    /// Run the prompts of this file, one JSON object per line; - is standard input, whose lines run as they come
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) prompts: Option<PathBuf>,

    /// Write JSON lines to this file, replacing it; - is standard output
    ///
    /// The default is standard output. With PROMPT, this writes one line with the id "0" instead of the bare text.
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) output: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,

    #[command(flatten)]
    pub(crate) engine: EngineArgs,

    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,
}
