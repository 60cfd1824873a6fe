//! `deepinfer backends`: the plugins that were found, and what each can do.

use std::fmt::Write;
use std::time::Duration;

use deepinfer_runtime::{BackendReport, Runtime};
use serde::Serialize;

use crate::args::BackendsArgs;
use crate::failure::Failure;
use crate::model;
use crate::output::Output;
use crate::plugin::probe::Prober;
use crate::plugin::survey::Survey;
use crate::terminal::printable;

#[derive(Serialize)]
struct Report {
    /// Directories that were searched, in order.
    searched: Vec<String>,
    /// Every candidate, in the order in which they were found.
    backends: Vec<BackendReport>,
    /// What `DEEPINFER_ACCELERATOR` or `--accelerator` selects, or why nothing.
    selected: String,
}

/// Runs the command.
///
/// # Errors
/// The selection cannot be understood, or the report cannot be written.
pub(crate) fn run(args: &BackendsArgs) -> Result<(), Failure> {
    let runtime = Runtime::from_environment().map_err(Failure::input)?;
    let selection = model::choose_accelerator(args.accelerator.as_deref()).map_err(Failure::input)?;
    let prober = Prober { limit: Duration::from_secs(args.timeout), shows_words: true };
    let mut survey = Survey::new(&runtime, &selection, prober);
    let (_, outcome) = survey.decide()?;
    let selected = outcome.unwrap_or_else(|reason| format!("nothing: {reason}"));
    // JSON is Unicode, which paths need not be.
    let searched = runtime.search().directories().iter().map(|path| path.display().to_string()).collect();
    let report = Report { searched, backends: survey.report()?, selected };
    let text = if args.json {
        serde_json::to_string_pretty(&report).map_err(Failure::fault)? + "\n"
    } else {
        printable(&text_of(&report))
    };
    Output::stdout()?.write(&text)
}

fn text_of(report: &Report) -> String {
    if report.backends.is_empty() {
        let mut text = "no plugin (*.deepinfer.json, lib*deepinfer_*.so) was found in\n".to_owned();
        for directory in &report.searched {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {directory}");
        }
        return text;
    }
    let backends = report.backends.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    format!("{backends}\nselected: {}\n", report.selected)
}
