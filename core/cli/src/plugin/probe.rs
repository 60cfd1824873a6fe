//! Asks a plugin what it is, in a process of its own and with a time limit.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use deepinfer_runtime::{BackendReport, BackendState, Candidate};

use super::worker::Answer;
use crate::failure::Failure;
use crate::process::how_it_ended;
use crate::terminal;

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
        self.report(candidate, &["--options", options])
    }

    /// The same with the layers of `DEEPINFER_LAYERS` over it.
    ///
    /// # Errors
    /// No process can be started.
    pub(crate) fn probe_under_layers(&self, candidate: &Candidate, options: &str) -> Result<BackendReport, Failure> {
        self.report(candidate, &["--layers", "--options", options])
    }

    fn report(&self, candidate: &Candidate, args: &[&str]) -> Result<BackendReport, Failure> {
        let state = ask(candidate, args, *self).map_err(Failure::Fault)?;
        // What the worker writes is Unicode, which a path need not be.
        Ok(BackendReport { path: candidate.path().to_owned(), state })
    }
}

fn ask(candidate: &Candidate, args: &[&str], Prober { limit, shows_words }: Prober) -> anyhow::Result<BackendState> {
    let program = std::env::current_exe().context("the path of this program is unknown")?;
    let mut command = Command::new(program);
    command.arg("plugin-worker").args(args).arg("--").arg(candidate.file());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let process = command.spawn().context("no process can be started to load a plugin")?;
    let mut worker = Worker { process, until: Instant::now() + limit };
    let (Some(out), Some(errors)) = (worker.process.stdout.take(), worker.process.stderr.take()) else {
        anyhow::bail!("the process that loads a plugin has no pipes");
    };
    let (out, errors) = (lines_of(out), lines_of(errors));
    let mut answer = None;
    let mut shown = 0;
    let mut said = |line: String| {
        if shows_words && shown < SHOWN_LINES && !line.trim().is_empty() {
            terminal::say(&line.trim_end());
            shown += 1;
        }
    };
    let ended = loop {
        match out.recv_timeout(worker.left()) {
            Ok(line) => match serde_json::from_str::<Answer>(&line) {
                Ok(Answer { plugin_report }) => answer = Some(plugin_report.state),
                Err(_) => said(line),
            },
            Err(RecvTimeoutError::Timeout) => break None,
            Err(RecvTimeoutError::Disconnected) => break worker.end(),
        }
    };
    // A process of the plugin may still hold the other pipe; what is there is enough.
    while let Ok(line) = errors.recv_timeout(worker.left().min(Duration::from_millis(100))) {
        said(line);
    }
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

/// Reads lines beside the waiting, so that waiting can end.
fn lines_of(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while pipe.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    receiver
}

/// The process, and when it must be over.
struct Worker {
    process: Child,
    until: Instant,
}

impl Worker {
    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// How the process ended; `None` if it does not in time.
    fn end(&mut self) -> Option<Result<(), String>> {
        loop {
            match self.process.try_wait() {
                Ok(Some(status)) if status.success() => return Some(Ok(())),
                Ok(Some(status)) => return Some(Err(how_it_ended(status))),
                Ok(None) if self.left().is_zero() => return None,
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(e) => return Some(Err(format!("the process cannot be waited for: {e}"))),
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may be gone already; waiting only takes its place out of the process table.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
