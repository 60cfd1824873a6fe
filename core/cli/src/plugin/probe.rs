//! Asks a plugin what it is, in a process of its own and with a time limit.

use std::ffi::OsStr;
use std::time::{Duration, Instant};

use deepinfer_runtime::{BackendReport, BackendState, Candidate};

use super::worker::Answer;
use crate::failure::Failure;
use crate::process::{Silence, Worker};

/// Lines of one plugin that are shown; what it prints beyond is dropped.
const SHOWN_LINES: usize = 20;

/// Asks plugins what they are.
#[derive(Clone, Copy)]
pub(crate) struct Prober {
    /// Time for one plugin.
    pub(crate) limit: Duration,
    /// Whether a plugin's words, on whichever of its outputs, go to standard error, without control characters.
    pub(crate) shows_words: bool,
}

impl Prober {
    /// What a plugin is, or how it ended the process that asked.
    ///
    /// # Errors
    /// No process can be started.
    pub(crate) fn probe(&self, candidate: &Candidate, options: &str) -> Result<BackendReport, Failure> {
        self.report(candidate, &[&format!("--options={options}")])
    }

    /// The same with the layers of `DEEPINFER_LAYERS` over it.
    ///
    /// # Errors
    /// No process can be started.
    pub(crate) fn probe_under_layers(&self, candidate: &Candidate, options: &str) -> Result<BackendReport, Failure> {
        self.report(candidate, &["--layers", &format!("--options={options}")])
    }

    fn report(&self, candidate: &Candidate, args: &[&str]) -> Result<BackendReport, Failure> {
        let state = ask(candidate, args, *self).map_err(Failure::Fault)?;
        // What the worker writes is Unicode, which a path need not be.
        Ok(BackendReport { path: candidate.path().to_owned(), state })
    }
}

fn ask(candidate: &Candidate, args: &[&str], Prober { limit, shows_words }: Prober) -> anyhow::Result<BackendState> {
    let head = ["plugin-worker"].into_iter().chain(args.iter().copied()).chain(["--"]).map(OsStr::new);
    let args: Vec<&OsStr> = head.chain([candidate.file().as_os_str()]).collect();
    let until = Instant::now() + limit;
    let mut worker = Worker::start(&args, if shows_words { SHOWN_LINES } else { 0 }, true)?;
    let (answer, silence) = match worker.next::<Answer>(until) {
        Ok(Answer { plugin_report }) => (Some(plugin_report.state), None),
        Err(silence) => (None, Some(silence)),
    };
    let ended = match silence {
        Some(Silence::Late) => {
            worker.kill();
            None
        }
        Some(Silence::Ended) | None => worker.end(until),
    };
    let seconds = limit.as_secs_f64();
    Ok(match (answer, ended) {
        (Some(state), Some(Ok(()))) => state,
        (Some(_), Some(Err(how))) => BackendState::Fatal { how: format!("after it had told what it is, {how}") },
        (Some(_), None) => BackendState::Fatal { how: format!("the process did not end within {seconds} s") },
        (None, Some(Ok(()))) => {
            BackendState::Fatal { how: "while it was loaded, the process exited with code 0".to_owned() }
        }
        (None, Some(Err(how))) => BackendState::Fatal { how: format!("while it was loaded, {how}") },
        (None, None) => BackendState::Fatal { how: format!("it did not finish loading within {seconds} s") },
    })
}
