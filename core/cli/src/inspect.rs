//! `deepinfer inspect`: what a model is made of, and whether its files fit its configuration.

use std::fmt::Write;

use anyhow::anyhow;
use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::config::ModelConfig;
use deepinfer_model::inspect::{ModelSummary, PlanInput, render};
use serde::Serialize;

use crate::args::InspectArgs;
use crate::failure::Failure;
use crate::model::ModelSource;
use crate::output::Output;
use crate::terminal;

/// Tokens of all requests of a memory plan: 2^20 requests with the longest released context, and few enough that no sum
/// of bytes overflows.
const MOST_PLANNED_TOKENS: usize = 1 << 40;

/// What is printed as JSON.
#[derive(Serialize)]
struct Report {
    /// Where the model came from.
    origin: String,
    #[serde(flatten)]
    summary: ModelSummary,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<Check>,
}

/// The outcome of a check.
#[derive(Serialize)]
struct Check {
    /// Tensors that are as expected.
    tensors: usize,
    /// Bytes of those.
    bytes: u64,
    /// What is wrong, a sentence each.
    errors: Vec<String>,
    /// What is unusual and does no harm.
    warnings: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// The model cannot be read, a tensor is not as the configuration implies, or the report cannot be written.
pub(crate) fn run(args: &InspectArgs) -> Result<(), Failure> {
    let report = report(args)?;
    let text = if args.json {
        serde_json::to_string_pretty(&report).map_err(Failure::fault)? + "\n"
    } else {
        terminal::printable(&text_of(&report))
    };
    let mut output = Output::stdout()?;
    let written = output.write(&text);
    let Some(check) = report.check else { return written };
    // Wrong tensors are named even when nobody reads the report to its end.
    for warning in &check.warnings {
        terminal::warning(warning);
    }
    for error in &check.errors {
        terminal::error(error);
    }
    // Last, where it is seen: the report is long, and warnings may follow it.
    let concluded = if args.json { written } else { written.and_then(|()| output.write(&verdict(&check))) };
    match check.errors.len() {
        0 => concluded,
        wrong => Err(Failure::Input(anyhow!("{}: {wrong} tensors are not as config.json implies", report.origin))),
    }
}

fn report(args: &InspectArgs) -> Result<Report, Failure> {
    match args.path.as_deref().filter(|path| path.is_file()) {
        Some(path) if args.check => Err(Failure::Input(anyhow!(
            "--check compares tensors with the configuration, but {} is a file; give the directory of a model",
            path.display()
        ))),
        Some(path) => {
            let config = ModelConfig::from_file(path).map_err(Failure::input)?;
            let summary = ModelSummary::of_config(&config, plan(args, &config)?);
            Ok(Report { origin: path.display().to_string(), summary, check: None })
        }
        None => {
            let checkpoint = ModelSource::choose(args.path.as_deref()).open().map_err(Failure::input)?;
            let summary = ModelSummary::of_checkpoint(&checkpoint, plan(args, checkpoint.config())?);
            let check = args.check.then(|| Check::of(&checkpoint));
            Ok(Report { origin: checkpoint.origin(), summary, check })
        }
    }
}

fn plan(args: &InspectArgs, config: &ModelConfig) -> Result<PlanInput, Failure> {
    let full = PlanInput::for_full_context(config);
    let context_tokens = args.context.unwrap_or(full.context_tokens);
    if context_tokens > full.context_tokens {
        return Err(Failure::Input(anyhow!(
            "--context is {context_tokens}, but the model's longest context is {} tokens",
            full.context_tokens
        )));
    }
    let requests = args.requests;
    if context_tokens.checked_mul(requests).is_none_or(|tokens| tokens > MOST_PLANNED_TOKENS) {
        return Err(Failure::Input(anyhow!(
            "{requests} requests of {context_tokens} tokens are more than the {MOST_PLANNED_TOKENS} tokens that a memory \
             plan covers; lower --requests or --context"
        )));
    }
    Ok(PlanInput { context_tokens, requests, ..full })
}

impl Check {
    fn of(checkpoint: &Checkpoint) -> Self {
        let report = checkpoint.check(checkpoint.config());
        Self {
            tensors: report.tensors,
            bytes: report.bytes,
            errors: report.errors.iter().map(ToString::to_string).collect(),
            warnings: report.warnings.iter().map(ToString::to_string).collect(),
        }
    }
}

fn text_of(report: &Report) -> String {
    let mut text = format!("{}\n\n{}", report.origin, render(&report.summary));
    if let Some(Check { tensors, bytes, .. }) = &report.check {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\nCheck\n  {tensors} tensors ({bytes} bytes) are as expected");
    }
    text
}

fn verdict(check: &Check) -> String {
    let (errors, warnings) = (check.errors.len(), check.warnings.len());
    format!("{errors} errors, {warnings} warnings; names, shapes and formats, no values\n")
}
