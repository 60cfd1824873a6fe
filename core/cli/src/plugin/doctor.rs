//! `deepinfer plugin doctor`: how it comes that a backend is selected, candidate by candidate.

use std::fmt::Write;
use std::time::Duration;

use deepinfer_runtime::{BackendReport, Runtime, Step, Verdict};
use serde::Serialize;

use super::inspect::one_line;
use super::probe::Prober;
use super::survey::Survey;
use crate::args::PluginDoctorArgs;
use crate::failure::Failure;
use crate::model;
use crate::output::Output;
use crate::terminal::printable;

#[derive(Serialize)]
struct Report {
    /// Directories that were searched, in order.
    searched: Vec<String>,
    /// Every candidate, in the order of the search.
    candidates: Vec<Step>,
    /// What is selected, with its layers; `null` if nothing.
    selected: Option<String>,
    /// Why nothing is selected.
    problem: Option<String>,
    /// What is odd about a plugin, and keeps it from nothing.
    warnings: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// The selection or the layers cannot be understood, or the report cannot be written.
pub(crate) fn run(args: &PluginDoctorArgs) -> Result<(), Failure> {
    let runtime = Runtime::from_environment().map_err(Failure::input)?;
    let selection = model::choose_accelerator(args.accelerator.as_deref()).map_err(Failure::input)?;
    let prober = Prober { limit: Duration::from_secs(args.timeout), shows_words: true };
    let mut survey = Survey::new(&runtime, &selection, prober);
    let (candidates, outcome) = survey.decide()?;
    let (selected, problem) = match outcome {
        Ok(selected) => (Some(selected), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let searched = runtime.search().directories().iter().map(|path| path.display().to_string()).collect();
    let report = Report { searched, candidates, selected, problem, warnings: warnings(&survey) };
    let text = if args.json {
        serde_json::to_string_pretty(&report).map_err(Failure::fault)? + "\n"
    } else {
        printable(&text_of(&report))
    };
    Output::stdout()?.write(&text)
}

fn text_of(report: &Report) -> String {
    let mut text = "searched\n".to_owned();
    // Writing to a string cannot fail.
    for folder in &report.searched {
        let _ = writeln!(text, "  {}", one_line(folder));
    }
    text += &steps(&report.candidates);
    for warning in &report.warnings {
        let _ = writeln!(text, "warning: {}", one_line(warning));
    }
    let _ = match (&report.selected, &report.problem) {
        (Some(selected), _) => writeln!(text, "selected: {}", one_line(selected)),
        (None, problem) => writeln!(text, "selected: nothing: {}", problem.as_deref().unwrap_or_default()),
    };
    text
}

/// Fields of manifests that mean nothing, and versions that are not those of the libraries.
fn warnings(survey: &Survey<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, candidate) in survey.candidates().iter().enumerate() {
        let Some(manifest) = candidate.manifest() else { continue };
        let path = manifest.path.display();
        for field in &manifest.unknown_fields {
            warnings.push(format!("{path}: the field {field} is not known, and means nothing"));
        }
        let said = &manifest.version;
        let tried = survey.tried(index).and_then(BackendReport::details).map(|details| &details.version);
        if let Some(version) = tried.filter(|version| *version != said) {
            warnings
                .push(format!("{path}: the version is {said}, but the library says {version}; install both together"));
        }
    }
    warnings
}

/// What was decided about every candidate, in words.
pub(crate) fn steps(candidates: &[Step]) -> String {
    let mut text = String::new();
    for (number, step) in candidates.iter().enumerate() {
        let path = step.path.display().to_string();
        let name = step.name.as_ref().map_or_else(String::new, |name| format!(", {name}"));
        let priority = if step.priority == 0 { String::new() } else { format!(", priority {}", step.priority) };
        let (verdict, reason) = match &step.verdict {
            Verdict::Selected { reason } => ("selected", reason.as_str()),
            Verdict::NotNeeded { reason } => ("not needed", reason.as_str()),
            Verdict::PassedOver { reason, is_at_fault: true } => ("refused", reason.as_str()),
            Verdict::PassedOver { reason, is_at_fault: false } => ("passed over", reason.as_str()),
            Verdict::NotAsked => ("not asked", "the decision was made without it"),
        };
        // The reasons name the file, for messages that stand alone.
        let reason = reason.strip_prefix(&format!("{path}: ")).unwrap_or(reason);
        let head = one_line(&format!("{path}{name}{priority}"));
        let _ = writeln!(text, "{}. {head}\n   {verdict}: {}", number + 1, one_line(reason));
    }
    text
}
