//! Processes that are started to contain what a plugin does: this program once more, as a worker.
//!
//! Both ends talk over a socket that is the worker's standard input, a JSON object a line. The worker copies it before it loads
//! anything, to a descriptor that plugins do not know: what they print on standard output, and whatever they close, concerns
//! their words alone. An end is only good with the worker's last message, which it sends when all backends have ended, since
//! any plugin can call `exit(0)`.
//!
//! The worker leads a process group, in which processes that a plugin starts are, too; the group is killed as soon as the
//! worker has ended, or has not in time. The worker kills it when the socket closes, so that nobody outlives this program.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use deepinfer_runtime::process::{kill_group, kill_self};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::terminal;

/// Longest message; all that a plugin can put into one is bounded.
const MOST_MESSAGE: u64 = 64 << 20;
/// Messages that wait to be taken.
const MOST_WAITING: usize = 8;
/// Longest line of a plugin; what is longer counts as several.
const MOST_WORDS: u64 = 1 << 12;
/// How often a process is asked whether it has ended: a process that the plugin has started may keep its pipes open.
const PATIENCE: Duration = Duration::from_millis(20);
/// Time for what a process has said before its end to arrive.
const DRAIN: Duration = Duration::from_millis(100);

/// A line of the socket.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Frame<M> {
    Message(M),
    /// The work is done and the backends have ended. Nothing follows.
    Over,
}

/// Does the work of a worker: `work` talks over the link, then the backends are shut down and the other end is told.
///
/// # Errors
/// Those of `work`; nobody has started this process as a worker, or nobody listens.
pub(crate) fn work(work: impl FnOnce(&mut Link) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut link = Link::take()?;
    let worked = work(&mut link);
    crate::end_backends();
    worked?;
    link.send(&Frame::<()>::Over)
}

/// The worker's end of the socket.
pub(crate) struct Link {
    incoming: Option<BufReader<File>>,
    outgoing: File,
}

impl Link {
    fn take() -> Result<Self, Failure> {
        let copy = || stdin().as_fd().try_clone_to_owned().map(File::from);
        let (incoming, outgoing) = copy().and_then(|incoming| Ok((incoming, copy()?))).map_err(Failure::fault)?;
        Ok(Self { incoming: Some(BufReader::new(incoming)), outgoing })
    }

    /// The line that the other end has sent first.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn first_line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        let read = self.incoming.as_mut().map_or(Ok(0), |incoming| incoming.read_line(&mut line));
        read.map(|_| line).map_err(Failure::fault)
    }

    /// From now on, this process ends when the other does. Nothing more is read.
    pub(crate) fn end_with_the_other(&mut self) {
        let Some(mut incoming) = self.incoming.take() else { return };
        // A thread that starts needs the lock of the dynamic linker, which a plugin that hangs while it is loaded holds.
        let has_started = Arc::new(Barrier::new(2));
        let starting = has_started.clone();
        std::thread::spawn(move || {
            starting.wait();
            // Nothing comes: this returns when the other end is closed.
            let _ = incoming.read(&mut [0]);
            kill_self();
        });
        has_started.wait();
    }

    /// Sends a message.
    ///
    /// # Errors
    /// Nobody listens.
    pub(crate) fn say<M: Serialize>(&self, message: &M) -> Result<(), Failure> {
        self.send(&Frame::Message(message))
    }

    fn send<M: Serialize>(&self, frame: &Frame<M>) -> Result<(), Failure> {
        let line = serde_json::to_string(frame).map_err(Failure::fault)? + "\n";
        let written = (&self.outgoing).write_all(line.as_bytes());
        written.map_err(|e| Failure::Fault(anyhow!("the program that started this one does not listen: {e}")))
    }
}

/// A worker, seen from the program that has started it. Dropping kills it.
pub(crate) struct Worker {
    process: Child,
    /// The worker ends when this is closed.
    socket: UnixStream,
    messages: Receiver<Vec<u8>>,
    /// Closed when all that the plugin has printed was passed on.
    words: Receiver<()>,
    status: Option<ExitStatus>,
    /// Whether the worker has said that it is over.
    is_over: bool,
}

/// Why there is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// None came in time.
    Late,
    /// The worker has ended, or will not say more.
    Ended,
}

impl Worker {
    /// Starts this program as a worker. What it prints on standard output goes to standard error as lines without control
    /// characters, at most `most_lines` of them; that of standard error does the same if `with_errors` is set, and is left
    /// alone otherwise.
    ///
    /// # Errors
    /// No process can be started.
    pub(crate) fn start(args: &[&std::ffi::OsStr], most_lines: usize, with_errors: bool) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("the path of this program is unknown")?;
        let (socket, theirs) = UnixStream::pair().context("no socket can be made for a worker")?;
        let reader = socket.try_clone().context("no socket can be made for a worker")?;
        let mut command = Command::new(program);
        command.args(args).process_group(0).stdin(OwnedFd::from(theirs)).stdout(Stdio::piped());
        command.stderr(if with_errors { Stdio::piped() } else { Stdio::inherit() });
        let mut process = command.spawn().context("no process can be started to load a plugin")?;
        let (all_passed_on, words) = sync_channel(0);
        let shown = Arc::new(AtomicUsize::new(0));
        if let Some(out) = process.stdout.take() {
            pass_on(out, most_lines, shown.clone(), all_passed_on.clone());
        }
        if let Some(errors) = process.stderr.take() {
            pass_on(errors, most_lines, shown, all_passed_on);
        }
        Ok(Self { process, socket, messages: messages_of(reader), words, status: None, is_over: false })
    }

    /// Sends a line. A worker that is gone already is found out when it does not answer.
    pub(crate) fn send(&mut self, line: &str) {
        let _ = (&self.socket).write_all(format!("{line}\n").as_bytes());
    }

    /// The next message.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn next<M: DeserializeOwned>(&mut self, until: Instant) -> Result<M, Silence> {
        let mut is_last_chance = false;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = match self.messages.recv_timeout(if is_last_chance { DRAIN } else { left.min(PATIENCE) }) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => return Err(Silence::Ended),
                Err(RecvTimeoutError::Timeout) if is_last_chance => return Err(Silence::Ended),
                Err(RecvTimeoutError::Timeout) if self.has_ended().is_some() => {
                    is_last_chance = true;
                    continue;
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Err(Silence::Late),
                Err(RecvTimeoutError::Timeout) => continue,
            };
            match serde_json::from_slice(&line) {
                Ok(Frame::Message(message)) => return Ok(message),
                Ok(Frame::Over) => self.is_over = true,
                Err(_) if left.is_zero() => return Err(Silence::Late),
                Err(_) => {}
            }
        }
    }

    /// Waits for the end of the worker, and kills it when that takes too long; `None` then. What it says meanwhile is dropped.
    ///
    /// # Errors
    /// How it ended, in words, if that was not the end of its work.
    pub(crate) fn end(&mut self, until: Instant) -> Option<Result<(), String>> {
        while self.next::<serde::de::IgnoredAny>(until).is_ok() && Instant::now() < until {}
        let ended = loop {
            match self.has_ended() {
                Some(ended) => break ended,
                None if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
                None => {
                    self.kill();
                    return None;
                }
            }
        };
        self.wait_for_words();
        Some(match ended {
            Ok(status) if status.success() && self.is_over => Ok(()),
            Ok(status) => Err(how_it_ended(status)),
            Err(e) => Err(format!("the process cannot be waited for: {e}")),
        })
    }

    /// Kills the worker and what it has started.
    pub(crate) fn kill(&mut self) {
        if self.status.is_none() {
            kill_group(self.process.id());
            // It may be gone already; waiting only takes its place out of the process table.
            let _ = self.process.kill();
            self.status = self.process.wait().ok();
        }
        self.wait_for_words();
    }

    /// How the process has ended, if it has. What it has started does not outlive it.
    fn has_ended(&mut self) -> Option<std::io::Result<ExitStatus>> {
        if let Some(status) = self.status {
            return Some(Ok(status));
        }
        let ended = self.process.try_wait().transpose()?;
        if let Ok(status) = ended {
            self.status = Some(status);
            kill_group(self.process.id());
        }
        Some(ended)
    }

    /// A process that has left the group may still hold the pipes; what is there is enough.
    fn wait_for_words(&self) {
        let _ = self.words.recv_timeout(DRAIN);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads messages beside the waiting, so that waiting can end.
fn messages_of(socket: UnixStream) -> Receiver<Vec<u8>> {
    let (sender, receiver) = sync_channel(MOST_WAITING);
    std::thread::spawn(move || {
        let mut lines = BufReader::new(socket);
        loop {
            let mut line = Vec::new();
            let read = lines.by_ref().take(MOST_MESSAGE).read_until(b'\n', &mut line);
            if read.is_err() || !line.ends_with(b"\n") || sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Shows lines of a plugin as they come, until `shown` is `most`, and reads the others.
fn pass_on(pipe: impl Read + Send + 'static, most: usize, shown: Arc<AtomicUsize>, open: SyncSender<()>) {
    std::thread::spawn(move || {
        let mut lines = BufReader::new(pipe);
        let mut line = Vec::new();
        while lines.by_ref().take(MOST_WORDS).read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            if !line.trim_ascii().is_empty() && shown.fetch_add(1, Ordering::Relaxed) < most {
                terminal::say(&String::from_utf8_lossy(&line).trim_end());
            }
            line.clear();
        }
        drop(open);
    });
}

/// How a process ended, in words.
fn how_it_ended(status: ExitStatus) -> String {
    let Some(signal) = status.signal() else {
        return format!("the process exited with code {}", status.code().unwrap_or(-1));
    };
    // Those that a program brings upon itself; their numbers are the same on every Linux.
    let name = match signal {
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        _ => "",
    };
    format!("killed by signal {signal}{name}")
}
