//! `deepinfer bench`: how fast it is.
//!
//! What is compared runs in turn, round by round, so that a machine that others use as well slows down both. A figure is the
//! median of the rounds, with the least and the most beside it.

mod args;
mod latency;
mod ops;
mod report;
mod sampler;
mod sched;
mod throughput;

use anyhow::anyhow;
use deepinfer_engine::{Engine, EngineConfig, GraphStats, Request, SamplingParams};
use deepinfer_model::Model;

pub(crate) use self::args::BenchCommand;
use crate::failure::Failure;
use crate::output::Output;
use crate::terminal;

/// Runs the command.
///
/// # Errors
/// The input is refused, or a fault ends the run.
pub(crate) fn run(command: &BenchCommand) -> Result<(), Failure> {
    let (report, json) = match command {
        BenchCommand::Ops(args) => return ops::run(args),
        BenchCommand::Throughput(args) => (throughput::run(args)?, args.measuring.json),
        BenchCommand::Latency(args) => (latency::run(args)?, args.measuring.json),
        BenchCommand::Sched(args) => (sched::run(args)?, args.measuring.json),
        BenchCommand::Sampler(args) => (sampler::run(args)?, args.measuring.json),
    };
    let text = match json {
        true => serde_json::to_string_pretty(&report).map_err(Failure::fault)? + "\n",
        false => terminal::printable(&report.to_string()),
    };
    warn_of_a_debug_build();
    Output::stdout()?.write(&text)
}

fn warn_of_a_debug_build() {
    if cfg!(debug_assertions) {
        terminal::warning(&"this is a debug build, whose figures mean little; build with --release");
    }
}

/// An engine with room for `concurrency` requests of `tokens` tokens. It caches nothing, so that every round does all of the
/// work.
fn engine(model: Model, concurrency: usize, tokens: usize) -> Result<Engine, Failure> {
    let config = EngineConfig {
        max_num_seqs: concurrency,
        max_model_len: Some(tokens),
        prefix_caching: false,
        checkpoints: Some(0),
        ..EngineConfig::from_environment().map_err(Failure::input)?
    };
    Engine::builder(model).config(config).build().map_err(Failure::input)
}

/// How the decode steps were queued, for the setting of a report.
fn decode_steps(engine: &Engine) -> String {
    match engine.graph_stats() {
        None => "; every step issued op by op".to_owned(),
        Some(GraphStats { launched, issued, recorded, ops, is_captured }) => format!(
            "; {launched} steps launched from {recorded} {} of {ops} ops, {issued} issued op by op",
            if is_captured { "graphs" } else { "recordings" }
        ),
    }
}

/// Request number `number` of every round: any tokens, and an output that nothing ends early.
fn request(number: usize, vocabulary: usize, input_len: usize, output_len: usize) -> Request {
    Request {
        id: number.to_string(),
        prompt_token_ids: (0..input_len).map(|at| ((100 + 131 * number + 17 * at) % vocabulary) as u32).collect(),
        params: SamplingParams {
            max_tokens: Some(output_len),
            temperature: 0.8,
            seed: Some(number as u64),
            ignore_eos: true,
            ..SamplingParams::default()
        },
    }
}

/// A prompt and an output that fit the model.
///
/// # Errors
/// They do not.
fn check_lengths(input_len: usize, output_len: usize, context: usize) -> Result<usize, Failure> {
    let tokens = input_len.saturating_add(output_len);
    if tokens > context {
        return Err(Failure::Input(anyhow!(
            "{input_len} tokens of a prompt and {output_len} of an output are {tokens}, but the model has a context of \
             {context}; use shorter ones"
        )));
    }
    Ok(tokens)
}
