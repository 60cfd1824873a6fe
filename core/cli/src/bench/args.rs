//! Arguments of `deepinfer bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::args::ModelArgs;
use crate::numbers::whole;

/// Most rounds, requests and rows.
const MOST: u64 = 1 << 16;
/// Most columns of `sampler`: more are no vocabulary.
const MOST_COLUMNS: u64 = 1 << 24;

/// Measure speed: what is measured in turn can be compared, on one machine and in one run
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    Throughput(ThroughputArgs),
    Latency(LatencyArgs),
    Sched(SchedArgs),
    Sampler(SamplerArgs),
    Ops(OpsArgs),
}

/// What all of them have in common.
#[derive(Debug, Args)]
pub(crate) struct Measuring {
    /// Rounds: what is compared runs once in each, in turn
    #[arg(long, value_name = "N", default_value = "5", allow_negative_numbers = true, value_parser = whole::<usize>(1..=MOST))]
    pub(crate) rounds: usize,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Output tokens per second: requests together, and the same requests one at a time
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deepinfer bench throughput
  deepinfer bench throughput --concurrency 4,16,64 --requests 64 --output-len 128

The same requests run in every way; a difference of a single token is an error. Times contain prompts and outputs.")]
pub(crate) struct ThroughputArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Requests
    #[arg(long, value_name = "N", default_value = "32", allow_negative_numbers = true, value_parser = whole::<usize>(1..=MOST))]
    pub(crate) requests: usize,

    /// Tokens of each prompt
    #[arg(long, value_name = "N", default_value = "16", allow_negative_numbers = true, value_parser = whole::<usize>(1..=u64::MAX))]
    pub(crate) input_len: usize,

    /// Tokens of each output
    #[arg(long, value_name = "N", default_value = "64", allow_negative_numbers = true, value_parser = whole::<usize>(1..=u64::MAX))]
    pub(crate) output_len: usize,

    /// How many run at a time, several numbers apart by commas; one at a time is always measured
    #[arg(long, value_name = "N,..", default_value = "32", value_delimiter = ',', value_parser = whole::<usize>(1..=MOST))]
    pub(crate) concurrency: Vec<usize>,

    #[command(flatten)]
    pub(crate) measuring: Measuring,
}

/// Time to the first token and time of each further one, of one request alone
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  deepinfer bench latency --input-len 16,1024 --output-len 64")]
pub(crate) struct LatencyArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Tokens of the prompt, several numbers apart by commas
    #[arg(long, value_name = "N,..", default_value = "16,128,512", value_delimiter = ',', value_parser = whole::<usize>(1..=u64::MAX))]
    pub(crate) input_len: Vec<usize>,

    /// Tokens of the output
    #[arg(long, value_name = "N", default_value = "32", allow_negative_numbers = true, value_parser = whole::<usize>(2..=u64::MAX))]
    pub(crate) output_len: usize,

    #[command(flatten)]
    pub(crate) measuring: Measuring,
}

/// What a step costs the host: turns of the engine with requests that decode, on a device that computes nothing
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deepinfer bench sched
  deepinfer bench sched --config config.json --sequences 256

The arguments of every op are made and checked, and the device does nothing with them. A configuration is enough: no
weights are read. The phases of a turn are measured in turns of their own. Rounds are batches of --steps turns, of
which the median counts.")]
pub(crate) struct SchedArgs {
    /// Configuration of the model [default: that of the small model in the program]
    #[arg(long, value_name = "config.json")]
    pub(crate) config: Option<PathBuf>,

    /// Make the calls to this plugin, whose ops do nothing, so that the cost of the boundary is in the figures
    ///
    /// The weights that it gets are not those of a model. A plugin that computes is the wrong one here.
    #[arg(long, value_name = "PATH")]
    pub(crate) null_plugin: Option<String>,

    /// Requests that decode, several numbers apart by commas
    #[arg(long, value_name = "N,..", default_value = "1,32,128,256", value_delimiter = ',', value_parser = whole::<usize>(1..=MOST))]
    pub(crate) sequences: Vec<usize>,

    /// Tokens of each prompt
    #[arg(long, value_name = "N", default_value = "16", allow_negative_numbers = true, value_parser = whole::<usize>(1..=u64::MAX))]
    pub(crate) input_len: usize,

    /// Turns of a round
    #[arg(long, value_name = "N", default_value = "200", allow_negative_numbers = true, value_parser = whole::<usize>(1..=MOST))]
    pub(crate) steps: usize,

    #[command(flatten)]
    pub(crate) measuring: Measuring,
}

/// Time of a draw and of what comes before it, a row, and of one pass over the logits
#[derive(Debug, Args)]
pub(crate) struct SamplerArgs {
    /// Accelerator: auto, the name of a backend, or the path of a plugin, as in `generate`
    #[arg(long, value_name = "NAME|PATH")]
    pub(crate) accelerator: Option<String>,

    /// Rows
    #[arg(long, value_name = "N", default_value = "16", allow_negative_numbers = true, value_parser = whole::<usize>(1..=MOST))]
    pub(crate) rows: usize,

    /// Logits of a row
    #[arg(long, value_name = "N", default_value = "129280", allow_negative_numbers = true, value_parser = whole::<usize>(1..=MOST_COLUMNS))]
    pub(crate) vocabulary: usize,

    #[command(flatten)]
    pub(crate) measuring: Measuring,
}

/// Single calls of every op at the sizes of the released model, against a copy on the device
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deepinfer bench ops --backend nvidia --json ops.json --svg ops.svg
  deepinfer bench ops --backend ./libdeepinfer_x.so --ops linear,topk_select --case '*m1'

A figure is the median of --repeats samples; a sample is a batch of calls that was recorded once, as a graph where the
backend has graphs. Arguments are random numbers, and lie in several places, so that none is found in a cache. Results are
not looked at: deepinfer parity does that. Rates count what a call must read and write at least.")]
pub(crate) struct OpsArgs {
    /// Backend: auto, a name, or the path of a plugin, as in `generate`
    #[arg(long, value_name = "NAME|PATH")]
    pub(crate) backend: Option<String>,

    /// Ops; * and ? stand for other characters, several patterns apart by commas [default: all]
    #[arg(long, value_name = "GLOB,..", value_delimiter = ',')]
    pub(crate) ops: Vec<String>,

    /// Cases, by the names that --list gives [default: all]
    #[arg(long, value_name = "GLOB,..", value_delimiter = ',')]
    pub(crate) case: Vec<String>,

    /// Write all figures as JSON; - is standard output, in place of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Draw a roofline
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Samples of a case
    #[arg(long, value_name = "N", default_value = "25", allow_negative_numbers = true, value_parser = whole::<usize>(1..=MOST))]
    pub(crate) repeats: usize,

    /// MiB to move between two uses of a buffer, at least twice the largest cache; 0 uses one buffer
    #[arg(long, value_name = "MIB", default_value = "160", allow_negative_numbers = true, value_parser = whole::<usize>(0..=MOST))]
    pub(crate) rotate: usize,

    /// Divide the extents, for a trial on a small device
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true, value_parser = whole::<usize>(1..=MOST))]
    pub(crate) scale: usize,

    /// Name the cases and measure none
    #[arg(long)]
    pub(crate) list: bool,
}
