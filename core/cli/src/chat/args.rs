//! Arguments of `deepinfer chat`, and of its command `/params`.

use clap::{Args, ValueEnum};
use deepinfer_codec::{Effort, Recommended};
use deepinfer_engine::SamplingParams;

use crate::args::ModelArgs;
use crate::numbers::{number, temperature, whole};
use crate::telemetry::TelemetryArgs;

/// Talk with the model
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deepinfer chat
  deepinfer chat --model /models/v41-flash --thinking --system \"Answer in French.\"
  printf 'Hello!\\nTell me a story.\\n' | deepinfer chat --seed 7

In a terminal, lines can be edited; Ctrl-C stops an answer, and leaves at the prompt, as Ctrl-D does.
Otherwise each line of standard input is a message, and the answers go to standard output.
Lines that begin with / are commands: /help lists them.")]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// What the model is told before the first message
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) system: Option<String>,

    /// Most tokens of the conversation, the next answer included [default: the whole context of the model]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>(2..=u64::MAX))]
    pub(crate) max_model_len: Option<usize>,

    #[command(flatten)]
    pub(crate) answers: AnswerArgs,

    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,
}

/// How answers are given. What is not given is as DeepSeek recommends.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Answers (the command /params changes them)")]
pub(crate) struct AnswerArgs {
    /// Let the model think before it answers, and how thoroughly [default: off; without a value: high]
    #[arg(long, value_name = "EFFORT", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "high")]
    thinking: Option<Thinking>,

    /// Most tokens of an answer, thinking included [default: 8192; 65536 with thinking, 131072 at most effort]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>(1..=u64::MAX))]
    max_tokens: Option<usize>,

    /// Temperature of the draws; 0 always takes the most likely token [default: 1]
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = temperature)]
    temperature: Option<f32>,

    /// Draw from the K most likely tokens; 0 is all [default: 0]
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = whole::<usize>(0..=u64::MAX))]
    top_k: Option<usize>,

    /// Draw from the fewest most likely tokens whose probabilities sum to at least P [default: 1]
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = number::<f32>)]
    top_p: Option<f32>,

    /// Leave out tokens less likely than this part of the most likely one [default: 0]
    #[arg(long, value_name = "PART", allow_negative_numbers = true, value_parser = number::<f32>)]
    min_p: Option<f32>,

    /// Divides positive logits of tokens in prompt and answer, and multiplies the others [default: 1]
    #[arg(long, value_name = "R", allow_negative_numbers = true, value_parser = number::<f32>)]
    repetition_penalty: Option<f32>,

    /// Taken from a token's logit for each time that it is in the answer, -2 to 2 [default: 0]
    #[arg(long, value_name = "F", allow_negative_numbers = true, value_parser = number::<f32>)]
    frequency_penalty: Option<f32>,

    /// Taken from a token's logit if it is in the answer, -2 to 2 [default: 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = number::<f32>)]
    presence_penalty: Option<f32>,

    /// Seed of the draws of every answer [default: drawn for each, and reported]
    #[arg(long, visible_alias = "seq-seed", value_name = "S", allow_negative_numbers = true, value_parser = whole::<u64>(0..=u64::MAX))]
    seed: Option<u64>,

    /// End an answer, not its thinking, at this text, which is left out; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Thinking {
    Off,
    Low,
    High,
    Max,
}

impl AnswerArgs {
    /// Whether the model thinks first, and how hard.
    pub(crate) fn thinking(&self) -> Option<Effort> {
        match self.thinking.unwrap_or(Thinking::Off) {
            Thinking::Off => None,
            Thinking::Low => Some(Effort::Low),
            Thinking::High => Some(Effort::High),
            Thinking::Max => Some(Effort::Max),
        }
    }

    /// Parameters of a request. Stop texts are not among them: the codec finds them, in answers alone.
    pub(crate) fn params(&self) -> SamplingParams {
        let recommended = Recommended::of(self.thinking());
        let off = SamplingParams::default();
        SamplingParams {
            max_tokens: Some(self.max_tokens.unwrap_or(recommended.max_tokens)),
            temperature: self.temperature.unwrap_or(recommended.temperature),
            top_p: self.top_p.unwrap_or(recommended.top_p),
            top_k: self.top_k.unwrap_or(off.top_k),
            min_p: self.min_p.unwrap_or(off.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(off.repetition_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(off.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(off.presence_penalty),
            seed: self.seed,
            ..off
        }
    }

    /// All values, as options.
    pub(crate) fn in_words(&self) -> String {
        let params = self.params();
        let thinking = self.thinking.unwrap_or(Thinking::Off).to_possible_value();
        let mut words = format!(
            "--thinking={} --max-tokens {} --temperature {} --top-k {} --top-p {} --min-p {} --repetition-penalty {} \
             --frequency-penalty {} --presence-penalty {}",
            thinking.expect("no value is hidden").get_name(),
            params.max_tokens.expect("it is set above"),
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        );
        if let Some(seed) = self.seed {
            words += &format!(" --seed {seed}");
        }
        for stop in &self.stop {
            words += &format!(" --stop {stop:?}");
        }
        words
    }
}
