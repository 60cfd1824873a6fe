//! Where findings go, and what was done.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use deepinfer_plugin_api::sdk::{Fault, LogLevel, log};
use serde::Serialize;

use crate::finding::Finding;
use crate::options::{OnFinding, Options};

/// Takes findings.
pub(crate) struct Reporter {
    on_finding: OnFinding,
    /// How `deepinfer replay` reaches the backend.
    backend: String,
    file: Option<Mutex<File>>,
    tally: Mutex<Tally>,
}

/// What was done so far.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) checked: u64,
    pub(crate) shadowed: u64,
    /// Sampled calls that could not be shadowed, by op and reason.
    not_shadowed: BTreeMap<(&'static str, &'static str), u64>,
    findings: u64,
}

/// A line of the report.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    finding: &'a Finding,
    backend: &'a str,
    sentence: String,
}

impl Reporter {
    /// Creates the report, or continues it: parity runs its cases in many processes.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(crate) fn new(options: &Options, backend: String) -> Result<Self, Fault> {
        let create = |path: &std::path::PathBuf| {
            File::options()
                .create(true)
                .append(true)
                .open(path)
                .map(Mutex::new)
                .map_err(|e| Fault::invalid(format!("the report {} cannot be created: {e}", path.display())))
        };
        let file = options.report.as_ref().map(create).transpose()?;
        Ok(Self { on_finding: options.on_finding, backend, file, tally: Mutex::default() })
    }

    /// File or name of the backend.
    pub(crate) fn backend(&self) -> &str {
        &self.backend
    }

    /// Changes what was done.
    pub(crate) fn tally<T>(&self, change: impl FnOnce(&mut Tally) -> T) -> T {
        change(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A finding in a call that can fail: its error, if findings are errors.
    pub(crate) fn report(&self, finding: &Finding) -> Result<(), Fault> {
        let fault = self.note(finding);
        match self.on_finding {
            OnFinding::Error => Err(fault),
            OnFinding::Log => {
                log(LogLevel::Error, &fault.message);
                Ok(())
            }
        }
    }

    /// A finding in a call that must fail, whatever was asked for.
    pub(crate) fn refuse(&self, finding: &Finding) -> Fault {
        self.note(finding)
    }

    /// A finding in a call that cannot fail.
    pub(crate) fn mention(&self, finding: &Finding) {
        log(LogLevel::Error, &self.note(finding).message);
    }

    fn note(&self, finding: &Finding) -> Fault {
        self.tally(|tally| tally.findings += 1);
        let fault = finding.fault(&self.backend);
        if let Some(file) = &self.file {
            let line = Line { finding, backend: &self.backend, sentence: fault.message.clone() };
            let text = serde_json::to_string(&line).expect("texts and numbers");
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(e) = writeln!(file, "{text}").and_then(|()| file.flush()) {
                log(LogLevel::Error, format!("a finding could not be written to the report: {e}"));
            }
        }
        fault
    }
}

impl Tally {
    /// A sampled call of an op could not be shadowed.
    pub(crate) fn not_shadowed(&mut self, op: &'static str, reason: &'static str) {
        *self.not_shadowed.entry((op, reason)).or_default() += 1;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { checked, shadowed, not_shadowed, findings } = self;
        write!(f, "{checked} calls checked, {shadowed} shadowed")?;
        if !not_shadowed.is_empty() {
            let parts: Vec<String> =
                not_shadowed.iter().map(|((op, reason), count)| format!("{op} {count} ({reason})")).collect();
            write!(f, ", not shadowed: {}", parts.join(", "))?;
        }
        write!(f, ", {findings} findings")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Culprit, Rule};

    #[test]
    fn an_empty_report_is_a_clean_run_and_findings_are_lines() {
        let path = std::env::temp_dir().join(format!("validate-report-{}", std::process::id()));
        let options = Options { report: Some(path.clone()), ..Options::default() };
        let reporter = Reporter::new(&options, "./x.so".to_owned()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        let finding = Finding::new(Rule::Leak, Culprit::Core, "device_close", "device #1 still has stream #1");
        let fault = reporter.report(&finding).unwrap_err();
        reporter.mention(&finding);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(
            (&lines[0]["rule"], &lines[0]["by"], &lines[0]["backend"]),
            (&"leak".into(), &"core".into(), &"./x.so".into())
        );
        assert_eq!(lines[0]["sentence"], fault.message);
        reporter.tally(|tally| {
            tally.checked += 7;
            tally.not_shadowed("npu_scale", "no oracle");
        });
        let text = reporter.tally(|tally| tally.to_string());
        assert_eq!(text, "7 calls checked, 0 shadowed, not shadowed: npu_scale 1 (no oracle), 2 findings");
    }
}
