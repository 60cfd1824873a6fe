//! The process in which cases run. A plugin that aborts, hangs or exits takes this process with it, and nothing else.
//!
//! It reads its [`Job`] from standard input and writes a [`Message`] per line to standard output. It ends when standard
//! input does, so that no worker outlives its supervisor, not even one that hangs.

use std::cell::RefCell;
use std::io::{BufRead, Read, Write, stdin, stdout};
use std::time::Instant;

use anyhow::anyhow;
use deepinfer_ops::Device;
use deepinfer_parity::{Facts, Identity, Outcome, identity_of, ops, run_case};
use deepinfer_runtime::{LoadedBackend, OpenDevice, Runtime, SearchPath, Selection};
use serde::{Deserialize, Serialize};

use super::task::Task;
use crate::failure::Failure;

/// What a worker is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Selection of the backend.
    pub(crate) backend: String,
    /// Seed of the cases.
    pub(crate) seed: u64,
    /// Names of the cases.
    pub(crate) cases: Vec<String>,
    /// Ops of which a case has ended a worker before: cases of the whole backend leave them out.
    pub(crate) deadly: Vec<String>,
}

/// What a worker says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "parity", rename_all = "snake_case")]
pub(crate) enum Message {
    /// The backend is loaded and has the device.
    Loaded {
        /// What it is.
        identity: Identity,
        /// Ops that it implements in the catalogue's version.
        ops: Vec<String>,
    },
    /// The backend cannot be used; the worker ends.
    Refused {
        /// Why.
        reason: String,
    },
    /// A case begins.
    Begin {
        /// Its name.
        case: String,
        /// What it is made of.
        facts: Option<Facts>,
    },
    /// The case that began is over.
    End {
        /// What came of it.
        outcome: Outcome,
        /// How long it took.
        seconds: f64,
    },
    /// The device is lost; the worker ends, and another one may do the rest.
    Lost,
}

/// The backend under test.
pub(crate) struct Target {
    pub(crate) backend: &'static LoadedBackend,
    device: u32,
    /// The device that the cases of ops use, one after the other.
    shared: RefCell<Option<OpenDevice>>,
    deadly: Vec<String>,
}

impl Target {
    /// Opens the device once more.
    ///
    /// # Errors
    /// The plugin's reason.
    pub(crate) fn open(&self) -> Result<OpenDevice, String> {
        self.backend.open(self.device).map_err(|error| format!("the device does not open: {error}"))
    }

    /// Ops that the backend implements in the catalogue's version.
    pub(crate) fn ops(&self) -> impl Iterator<Item = &'static str> {
        let has = |name: &str| {
            let identity = identity_of(name);
            self.backend.ops().iter().any(|op| Some((op.op_id(), op.version())) == identity)
        };
        ops().filter(move |name| has(name))
    }

    /// Whether a case of this op has ended a worker.
    pub(crate) fn is_deadly(&self, op: &str) -> bool {
        self.deadly.iter().any(|deadly| deadly == op)
    }

    /// Closes the device that the cases of ops have used.
    pub(crate) fn close_shared(&self) {
        *self.shared.borrow_mut() = None;
    }

    fn run(&self, task: &Task) -> Outcome {
        let case = match task {
            Task::Whole(case) => return (case.run)(self),
            Task::Op(case) => case,
            Task::UnknownOption => return Outcome::failed("the backend is loaded already"),
        };
        let mut shared = self.shared.borrow_mut();
        let device = match shared.take().map_or_else(|| self.open(), Ok) {
            Ok(device) => shared.insert(device),
            Err(problem) => return Outcome::failed(problem),
        };
        run_case(device, case)
    }

    /// Whether the shared device still answers.
    fn is_well(&self) -> bool {
        self.shared.borrow().as_ref().is_none_or(|device| device.memory().is_ok())
    }

    fn identity(&self) -> Identity {
        let (major, minor) = self.backend.abi();
        let device = self.backend.device_info(self.device).map(|info| format!("{} ({})", info.name, info.arch));
        Identity {
            deepinfer: env!("CARGO_PKG_VERSION").to_owned(),
            abi: deepinfer_parity::abi_version(),
            backend: self.backend.name().to_owned(),
            version: self.backend.version().to_owned(),
            build: self.backend.build().to_owned(),
            backend_abi: format!("{major}.{minor}"),
            path: self.backend.path().display().to_string(),
            device: device.unwrap_or_else(|error| error.to_string()),
        }
    }
}

/// Does the job that standard input gives.
///
/// # Errors
/// There is no job, or nobody listens.
pub(crate) fn run() -> Result<(), Failure> {
    let mut line = String::new();
    stdin().lock().read_line(&mut line).map_err(Failure::fault)?;
    let no_job = |e| Failure::Input(anyhow!("parity-worker is started by `deepinfer parity`, not by hand: {e}"));
    let job: Job = serde_json::from_str(&line).map_err(no_job)?;
    std::thread::spawn(|| {
        // Nothing more comes: this returns when the supervisor is gone.
        let _ = stdin().lock().read(&mut [0]);
        std::process::exit(1);
    });
    let runtime = Runtime::new(SearchPath::from_environment());
    let selected = Selection::parse(&job.backend).and_then(|selection| runtime.select(&selection));
    let (backend, device) = match selected {
        Ok(selected) => selected,
        Err(e) => return say(&Message::Refused { reason: e.to_string() }),
    };
    let target = Target { backend, device, shared: RefCell::new(None), deadly: job.deadly };
    say(&Message::Loaded { identity: target.identity(), ops: target.ops().map(str::to_owned).collect() })?;
    for name in job.cases {
        let task = Task::parse(&name, job.seed).ok_or_else(|| Failure::Fault(anyhow!("there is no case {name}")))?;
        let facts = match task {
            Task::Op(case) => Some(case.facts()),
            Task::Whole(_) | Task::UnknownOption => None,
        };
        say(&Message::Begin { case: name, facts })?;
        let begun = Instant::now();
        let outcome = target.run(&task);
        say(&Message::End { outcome, seconds: begun.elapsed().as_secs_f64() })?;
        if !target.is_well() {
            return say(&Message::Lost);
        }
    }
    Ok(())
}

/// Sends a message. The line feed in front ends whatever the plugin has printed.
fn say(message: &Message) -> Result<(), Failure> {
    let line = format!("\n{}\n", serde_json::to_string(message).map_err(Failure::fault)?);
    let mut out = stdout().lock();
    let written = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| Failure::Fault(anyhow!("the supervisor does not listen: {e}")))
}
