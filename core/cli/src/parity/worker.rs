//! The process in which cases run. A plugin that aborts, hangs or exits takes this process with it, and nothing else.
//!
//! It gets its [`Job`] over a [`Link`] and answers in [`Message`]s. It ends when its supervisor does, even if it hangs.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::anyhow;
use deepinfer_ops::Device;
use deepinfer_oracle::{Bundle, Disagreement, Found};
use deepinfer_parity::{
    CallError, Facts, Fault, Identity, Outcome, identity_of, op_of, ops, run_call, run_case_with_evidence,
};
use deepinfer_plugin_api::abi::DI_E_INVALID;
use deepinfer_runtime::conformance::{Core, shake_hands_as};
use deepinfer_runtime::{Layers, LoadedBackend, OpenDevice, OpenError, Runtime, SearchPath, SelectError, Selection};
use serde::{Deserialize, Serialize};

use super::task::Task;
use super::whole::count_threads;
use super::{breaches, bundles};
use crate::failure::Failure;
use crate::process::Link;

/// Name of the work that is no case: making the call of a bundle.
pub(crate) const REPLAY: &str = "replay";

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
    /// Ops that have failed so often that no failure of theirs costs a process any more.
    pub(crate) worn: Vec<String>,
    /// Folder for the bundles of cases that fail.
    pub(crate) bundles: Option<PathBuf>,
    /// Layers over the backend, instead of those of the environment.
    pub(crate) layers: Option<String>,
    /// Whether to try whether the device opens.
    pub(crate) opens: bool,
    /// A call to make instead of cases.
    pub(crate) replay: Option<Replay>,
    /// A handshake instead of everything else.
    pub(crate) handshake: Option<Handshake>,
}

/// A handshake of another core.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Handshake {
    /// Name of the core ([`Core::name`]).
    pub(crate) core: String,
    /// Library.
    pub(crate) path: PathBuf,
    /// Options of the backend.
    pub(crate) options: String,
}

/// A call from a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Replay {
    /// The bundle.
    pub(crate) call: PathBuf,
    /// File for a bundle of what the backend gives; none is written if it gives nothing.
    pub(crate) results: PathBuf,
    /// Name of a case to run afterwards, of the seed of the job.
    pub(crate) check: Option<String>,
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
        /// Names of its ops outside of the catalogue.
        own_ops: Vec<String>,
    },
    /// The backend, or its device, cannot be used as the settings are; the worker ends.
    Refused {
        /// Why.
        reason: String,
    },
    /// The device was tried: it opens, or it fails to for a reason that is a matter of cases.
    Tried,
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
    pub(crate) device: u32,
    /// The device that the cases of ops use, one after the other.
    shared: RefCell<Option<OpenDevice>>,
    deadly: Vec<String>,
    /// Folder for the bundles of cases that fail.
    bundles: Option<PathBuf>,
}

impl Target {
    /// Opens the device once more.
    ///
    /// # Errors
    /// The plugin's reason.
    pub(crate) fn open(&self) -> Result<OpenDevice, String> {
        self.backend.open(self.device).map_err(|error| format!("the device does not open: {error}"))
    }

    /// Why the device does not open, if what the user asks for cannot be: what a plugin calls invalid, or an implementation that
    /// is pinned and not there. Whatever else is wrong is the failure of cases.
    fn refusal(&self) -> Option<OpenError> {
        let error = self.backend.open(self.device).err()?;
        let is_of_the_user = match &error {
            OpenError::Plugin(error) => error.code == DI_E_INVALID && !error.is_lasting(),
            _ => true,
        };
        is_of_the_user.then_some(error)
    }

    /// Ops that the backend implements in the catalogue's version.
    pub(crate) fn ops(&self) -> impl Iterator<Item = &'static str> {
        let has = |name: &str| {
            let identity = identity_of(name);
            self.backend.ops().iter().any(|op| Some((op.op_id(), op.version())) == identity)
        };
        ops().filter(move |name| has(name))
    }

    /// Ops of the backend that the catalogue does not have, each once.
    fn own_ops(&self) -> Vec<String> {
        let own = self.backend.ops().iter().filter(|op| op_of(op.op_id()).is_none());
        let mut names: Vec<String> = own.map(|op| op.name().to_owned()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Whether a case of this op has ended a worker.
    pub(crate) fn is_deadly(&self, op: &str) -> bool {
        self.deadly.iter().any(|deadly| deadly == op)
    }

    /// Closes the device that the cases of ops have used.
    pub(crate) fn close_shared(&self) {
        *self.shared.borrow_mut() = None;
    }

    /// Runs a task; what a layer reports meanwhile is its failure, unless rules are broken on purpose.
    fn run_watched(&self, task: &Task) -> Outcome {
        let layers: Vec<String> = self.backend.layers().iter().map(|layer| layer.name.clone()).collect();
        breaches::take(&layers);
        let mut outcome = self.run(task);
        let breach = breaches::take(&layers).into_iter().next();
        if let Some((layer, breach)) = breach.filter(|_| !task.breaks_rules()) {
            outcome = breaches::join(outcome, &layer, breach);
        }
        // What a layer has said within a sentence of the case.
        if let Outcome::Failed(failure @ deepinfer_parity::Failure { fault: None, worst: None, .. }) = &mut outcome
            && let Some(fault) = layers.iter().find_map(|layer| breaches::kind(layer, &failure.problem))
        {
            failure.fault = Some(fault);
        }
        outcome
    }

    fn run(&self, task: &Task) -> Outcome {
        let case = match task {
            Task::Whole(case) => return (case.run)(self),
            Task::Op(case) => case,
            Task::UnknownOption | Task::Handshake(_) => return Outcome::failed("the backend is loaded already"),
        };
        let mut shared = self.shared.borrow_mut();
        let device = match shared.take().map_or_else(|| self.open(), Ok) {
            Ok(device) => shared.insert(device),
            Err(problem) => {
                let failure = deepinfer_parity::Failure::new(problem.as_str());
                return Outcome::Failed(failure.of(Fault::SetUp).because_of(problem));
            }
        };
        let (outcome, evidence) = run_case_with_evidence(device, case);
        if let (Some(folder), Outcome::Failed(failure), Some(evidence)) = (&self.bundles, &outcome, evidence) {
            bundles::keep(folder, case, failure, evidence, self.title());
        }
        outcome
    }

    /// Makes the call of a bundle and holds it to the oracle.
    fn replay(&self, replay: &Replay) -> Outcome {
        let bundle = match bundles::read(&replay.call) {
            Ok(bundle) => bundle,
            Err(error) => return Outcome::failed(format!("{error:#}")),
        };
        let found = self.open().and_then(|device| match run_call(&device, &bundle.call) {
            Err(CallError::Unsupported(reason)) => Ok(Err(reason)),
            other => other.map(Ok).map_err(|error| error.to_string()),
        });
        let outputs = match found {
            Ok(Ok(outputs)) => outputs,
            Ok(Err(reason)) => return Outcome::Unsupported { reason },
            Err(problem) => return Outcome::failed(problem),
        };
        let outcome = match bundle.call.judge(&outputs) {
            Ok(share) => Outcome::Passed { share: Some(share) },
            Err(Disagreement::Beyond(worst)) => {
                let failure = deepinfer_parity::Failure::new("the result is not that of the oracle");
                Outcome::Failed(deepinfer_parity::Failure { worst: Some(worst), ..failure })
            }
            Err(other) => Outcome::failed(other.to_string()),
        };
        let found = Some(Found { backend: self.title(), outputs });
        match bundles::write(&replay.results, &Bundle { found, ..bundle }) {
            Ok(()) => outcome,
            Err(error) => Outcome::failed(format!("{error:#}")),
        }
    }

    /// Name and version of the backend.
    fn title(&self) -> String {
        format!("{} {}", self.backend.name(), self.backend.version())
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

/// Does the job that comes over the link.
///
/// # Errors
/// There is no job, or nobody listens.
pub(crate) fn run(link: &mut Link) -> Result<(), Failure> {
    let line = link.first_line()?;
    let no_job = |e| Failure::Input(anyhow!("parity-worker is started by `deepinfer parity`, not by hand: {e}"));
    let job: Job = serde_json::from_str(&line).map_err(no_job)?;
    link.end_with_the_other();
    count_threads();
    if let Some(handshake) = &job.handshake {
        let begun = Instant::now();
        let outcome = shake_hands(handshake);
        return link.say(&Message::End { outcome, seconds: begun.elapsed().as_secs_f64() });
    }
    let layers = job.layers.as_deref().map_or_else(Layers::from_env, Layers::parse).map(breaches::that_go_on);
    let selected = layers.map_err(Into::into).and_then(|layers| {
        let runtime = Runtime::new(SearchPath::from_environment()).with_layers(layers);
        Selection::parse(&job.backend).and_then(|selection| runtime.select(&selection))
    });
    let (backend, device) = match selected {
        Ok(selected) => selected,
        Err(e) => return link.say(&Message::Refused { reason: e.to_string() }),
    };
    let target = Target { backend, device, shared: RefCell::new(None), deadly: job.deadly, bundles: job.bundles };
    breaches::watch(backend.layers().iter().map(|layer| layer.name.clone()).collect());
    let ops = target.ops().map(str::to_owned).collect();
    link.say(&Message::Loaded { identity: target.identity(), ops, own_ops: target.own_ops() })?;
    if job.opens {
        return link.say(&target.refusal().map_or(Message::Tried, |reason| {
            let (name, path) = (backend.title(), backend.path().to_owned());
            Message::Refused { reason: SelectError::Open { name, path, device, reason: Box::new(reason) }.to_string() }
        }));
    }
    let task_of =
        |name: &str| Task::parse(name, job.seed).ok_or_else(|| Failure::Fault(anyhow!("there is no case {name}")));
    if let Some(replay) = job.replay {
        timed(link, REPLAY, None, || target.replay(&replay))?;
        let Some(name) = replay.check else { return Ok(()) };
        let task = task_of(&name)?;
        return timed(link, &name, None, || target.run_watched(&task)).map(drop);
    }
    for name in job.cases {
        let task = task_of(&name)?;
        let facts = match task {
            Task::Op(case) => Some(case.facts()),
            Task::Whole(_) | Task::UnknownOption | Task::Handshake(_) => None,
        };
        let failed = timed(link, &name, facts, || target.run_watched(&task))?;
        if failed && !job.worn.iter().any(|op| op == task.subject()) {
            // It is ended now: what it began besides would be cut off, a bundle that is being written too.
            return Ok(());
        }
        if !target.is_well() {
            return link.say(&Message::Lost);
        }
    }
    Ok(())
}

/// Loads a library as another core would.
fn shake_hands(Handshake { core, path, options }: &Handshake) -> Outcome {
    let Some(core) = Core::ALL.into_iter().find(|known| known.name() == core) else {
        return Outcome::failed(format!("there is no core {core}"));
    };
    match shake_hands_as(core, path, options) {
        Ok(()) => Outcome::Passed { share: None },
        Err(problem) => Outcome::failed(problem),
    }
}

/// Tells of the beginning and the end of a piece of work. Gives whether it failed.
fn timed(link: &Link, name: &str, facts: Option<Facts>, work: impl FnOnce() -> Outcome) -> Result<bool, Failure> {
    link.say(&Message::Begin { case: name.to_owned(), facts })?;
    let begun = Instant::now();
    let outcome = work();
    let failed = matches!(outcome, Outcome::Failed(_));
    link.say(&Message::End { outcome, seconds: begun.elapsed().as_secs_f64() })?;
    Ok(failed)
}
