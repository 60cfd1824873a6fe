//! `deepinfer backends`: the plugins that were found, and what each can do.

use std::fmt::Write;
use std::path::PathBuf;

use deepinfer_runtime::{BackendReport, Runtime, SearchPath};
use serde::Serialize;

use crate::args::BackendsArgs;
use crate::failure::Failure;
use crate::output::Output;

#[derive(Serialize)]
struct Report {
    /// Directories that were searched, in order.
    searched: Vec<PathBuf>,
    /// Every candidate, in the order in which they were found.
    backends: Vec<BackendReport>,
}

/// Runs the command.
///
/// # Errors
/// The report cannot be written.
pub(crate) fn run(args: &BackendsArgs) -> Result<(), Failure> {
    let runtime = Runtime::new(SearchPath::from_environment());
    let report = Report { searched: runtime.search().directories().to_vec(), backends: runtime.report() };
    let text = if args.json {
        serde_json::to_string_pretty(&report).map_err(Failure::fault)? + "\n"
    } else {
        text_of(&report)
    };
    Output::stdout().write(&text)
}

fn text_of(report: &Report) -> String {
    if report.backends.is_empty() {
        let mut text = "no plugin (lib*deepinfer_*.so) was found in\n".to_owned();
        for directory in &report.searched {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {}", directory.display());
        }
        return text;
    }
    report.backends.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
