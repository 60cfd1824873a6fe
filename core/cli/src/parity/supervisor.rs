//! Runs cases in workers, and finds the case that a worker died of.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use deepinfer_parity::{Check, Facts, Failure, Fault, Identity, Outcome, essence};
use deepinfer_runtime::conformance::Core;

use super::task::{CLOSE, Task};
use super::worker::{Handshake, Job, Message, REPLAY, Replay};
use crate::process::{self, Silence};

/// Least time for a backend to load and to find its devices, whatever the time per case: drivers are slow to start.
const START: Duration = Duration::from_secs(60);
/// Lines of a process that are shown; what the plugin prints beyond is dropped.
const SHOWN_LINES: usize = 200;
/// An option that no backend has.
const UNKNOWN_OPTION: &str = "parity-unknown-option=1";
/// After so many cases that do not answer, the rest of an op is not tried: each costs the whole time limit.
const MOST_HANGS: usize = 3;
/// After so many cases that end the process, the rest of an op is not tried.
const MOST_DEATHS: usize = 20;
/// After so many cases in a row that lose the device with the same error, the rest of an op is not tried: each costs a process
/// and the start of a driver, and tells nothing new.
const MOST_LOSSES: usize = 3;

/// After so many failures of an op, the next one does not get a new process: an op that is all wrong needs none.
const MOST_RESTARTS: usize = 20;

/// What came of a task.
pub(crate) struct Done {
    pub(crate) task: Task,
    pub(crate) facts: Option<Facts>,
    pub(crate) outcome: Outcome,
    pub(crate) seconds: f64,
}

/// Why a backend is not ready.
pub(crate) enum NotReady {
    /// It, or the loader, says why.
    Refused(String),
    /// Its process died or did not answer.
    Broken(String),
}

/// What a backend says of itself when it is loaded: what it is, and the ops that it has.
pub(crate) type Ready = Result<(Identity, Ops), NotReady>;

/// Ops of a backend.
pub(crate) struct Ops {
    /// Those of the catalogue.
    pub(crate) known: Vec<String>,
    /// Its own.
    pub(crate) own: Vec<String>,
}

/// What came of a replay.
pub(crate) struct Replayed {
    pub(crate) identity: Identity,
    /// Of the call.
    pub(crate) outcome: Outcome,
    /// Of the check that was asked for, if the call has not ended the process.
    pub(crate) check: Option<Outcome>,
}

/// Starts workers for one backend.
pub(crate) struct Supervisor {
    /// Selection of the backend.
    pub(crate) backend: String,
    pub(crate) seed: u64,
    /// Time for one case.
    pub(crate) timeout: Duration,
    /// Layers over the backend, instead of those of the environment.
    pub(crate) layers: Option<String>,
    /// Folder for the bundles of cases that fail.
    pub(crate) bundles: Option<PathBuf>,
}

impl Supervisor {
    /// Loads the backend in a process of its own, and tries whether the settings let its device open: what is wrong with them
    /// would be wrong in every case.
    ///
    /// # Errors
    /// No process can be started.
    pub(crate) fn probe(&self) -> anyhow::Result<Ready> {
        let mut worker = self.start(&Job { opens: true, ..self.job(&self.backend) })?;
        let ready = worker.wait_until_loaded(self.timeout.max(START));
        let Ok(ready) = ready else { return Ok(ready) };
        match worker.next(self.timeout.max(START)) {
            Ok(Message::Refused { reason }) => Ok(Err(NotReady::Refused(reason))),
            Ok(_) if worker.end(self.timeout).is_ok() => Ok(Ok(ready)),
            // What ends or holds up the process when the device opens or closes is the failure of cases; what does without is not.
            _ => self.probe_as(&self.backend),
        }
    }

    /// Loads a backend in a process of its own.
    fn probe_as(&self, backend: &str) -> anyhow::Result<Ready> {
        let mut worker = self.start(&self.job(backend))?;
        let ready = worker.wait_until_loaded(self.timeout.max(START));
        let ended = worker.end(self.timeout);
        Ok(match (ready, ended) {
            (Ok(_), Err(how)) => Err(NotReady::Broken(format!("after it was loaded, {how}"))),
            (ready, _) => ready,
        })
    }

    /// Runs tasks one after the other; `report` gets each as soon as it is over. `identity` is that of the backend.
    ///
    /// # Errors
    /// No process can be started.
    pub(crate) fn run(
        &self,
        identity: &Identity,
        tasks: Vec<Task>,
        report: &mut dyn FnMut(Done),
    ) -> anyhow::Result<()> {
        let mut waiting = VecDeque::from(tasks);
        let mut tally = Tally::default();
        while let Some(&task) = waiting.front() {
            if let Some(problem) = tally.gives_up(&task) {
                waiting.pop_front();
                report(Done { task, facts: None, outcome: Outcome::NotTried { reason: problem }, seconds: 0.0 });
            } else if !task.is_for_a_worker() {
                waiting.pop_front();
                let begun = Instant::now();
                let outcome = match task {
                    Task::Handshake(core) => self.shake_hands(core, identity)?,
                    _ => self.unknown_option()?,
                };
                report(Done { task, facts: None, outcome, seconds: begun.elapsed().as_secs_f64() });
            } else {
                self.run_in_one_worker(&mut waiting, &mut tally, report)?;
            }
        }
        Ok(())
    }

    /// Runs tasks until all are done, or the worker is not to be trusted any more, or the next task is not for a worker.
    fn run_in_one_worker(
        &self,
        waiting: &mut VecDeque<Task>,
        tally: &mut Tally,
        report: &mut dyn FnMut(Done),
    ) -> anyhow::Result<()> {
        let is_fresh = waiting.front().is_some_and(Task::wants_a_fresh_worker);
        let for_worker = |task: &&Task| task.is_for_a_worker() && task.wants_a_fresh_worker() == is_fresh;
        let names = waiting.iter().take_while(for_worker).map(ToString::to_string).collect();
        let mut worker =
            self.start(&Job { cases: names, deadly: tally.deadly(), worn: tally.worn(), ..self.job(&self.backend) })?;
        let mut ready = worker.wait_until_loaded(self.timeout.max(START)).map(drop);
        // What a case does to memory may show when the next one is about to begin: until then it is not over.
        let mut last: Option<Done> = None;
        while let Some(&task) = waiting.front().filter(for_worker) {
            let begun = match std::mem::replace(&mut ready, Ok(())) {
                Ok(()) => worker.begin(&task.to_string(), self.timeout),
                // A backend that loads only sometimes fails the case that needs it.
                Err(NotReady::Refused(why) | NotReady::Broken(why)) => {
                    Err(Quiet { why: format!("the backend does not load again: {why}"), is_hang: false })
                }
            };
            let facts = match (begun, last.take()) {
                (Ok(Begin::Task(facts)), before) => {
                    before.into_iter().for_each(&mut *report);
                    facts
                }
                (Ok(Begin::Lost), before) => {
                    before.into_iter().for_each(report);
                    return Ok(());
                }
                (Err(Quiet { why, is_hang }), Some(mut before)) => {
                    tally.count(&before.task, is_hang);
                    if !matches!(before.outcome, Outcome::Failed(_)) {
                        before.outcome = lost("after the case, ", &why, is_hang);
                    }
                    report(before);
                    return Ok(());
                }
                (Err(Quiet { why, is_hang }), None) => {
                    waiting.pop_front();
                    tally.count(&task, is_hang);
                    let outcome = lost("before the case, ", &why, is_hang);
                    report(Done { task, facts: None, outcome, seconds: 0.0 });
                    return Ok(());
                }
            };
            waiting.pop_front();
            let start = Instant::now();
            match worker.finish(&task.to_string(), self.timeout) {
                Ok((outcome, seconds)) => {
                    tally.see(&task, &outcome);
                    let failed = matches!(outcome, Outcome::Failed(_));
                    last = Some(Done { task, facts, outcome, seconds });
                    // What a failure has left behind must not be the next case's.
                    if failed && tally.wants_a_new_worker_after(&task) {
                        break;
                    }
                }
                Err(Quiet { why, is_hang }) => {
                    tally.count(&task, is_hang);
                    let (outcome, seconds) = (lost("", &why, is_hang), start.elapsed().as_secs_f64());
                    report(Done { task, facts, outcome, seconds });
                    return Ok(());
                }
            }
        }
        if let Some(last) = last.as_mut().filter(|last| !matches!(last.outcome, Outcome::Failed(_))) {
            // What the last case does to memory may show only now.
            if let Err(how) = worker.end(self.timeout) {
                last.outcome = lost("after the case, ", &how, false);
            }
        }
        last.into_iter().for_each(report);
        Ok(())
    }

    /// The backend refuses an option that it does not know: one that is misspelt must not be passed over.
    fn unknown_option(&self) -> anyhow::Result<Outcome> {
        let separator = if self.backend.contains('?') { '&' } else { '?' };
        let ready = self.probe_as(&format!("{}{separator}{UNKNOWN_OPTION}", self.backend))?;
        Ok(match ready {
            Ok(_) => Outcome::Failed(
                Failure::new(format!("{UNKNOWN_OPTION} was accepted; refuse an option that the backend does not know"))
                    .of(Fault::UnknownValue),
            ),
            Err(NotReady::Refused(_)) => Outcome::Passed { share: None },
            Err(NotReady::Broken(how)) => lost("given an option that it does not know, ", &how, false),
        })
    }

    /// The backend meets another core, in a process in which it is not loaded otherwise.
    fn shake_hands(&self, core: Core, identity: &Identity) -> anyhow::Result<Outcome> {
        let options = self.backend.split_once('?').map_or("", |(_, options)| options).to_owned();
        let handshake = Handshake { core: core.name().to_owned(), path: identity.path.clone().into(), options };
        let mut worker = self.start(&Job { handshake: Some(handshake), ..self.job(&self.backend) })?;
        Ok(match worker.next(self.timeout.max(START)) {
            Ok(Message::End { outcome, .. }) => match worker.end(self.timeout) {
                Ok(()) => outcome,
                Err(how) => lost("after the handshake, ", &how, false),
            },
            Ok(other) => Outcome::failed(format!("the worker says {other:?}")),
            Err(Quiet { why, is_hang }) => lost(&format!("shaking hands with {}, ", core.name()), &why, is_hang),
        })
    }

    /// Makes the call of a bundle in a process of its own.
    ///
    /// # Errors
    /// No process can be started.
    pub(crate) fn replay(&self, replay: Replay) -> anyhow::Result<Result<Replayed, NotReady>> {
        let check = replay.check.clone();
        let mut worker = self.start(&Job { replay: Some(replay), ..self.job(&self.backend) })?;
        let (identity, _) = match worker.wait_until_loaded(self.timeout.max(START)) {
            Ok(ready) => ready,
            Err(not_ready) => return Ok(Err(not_ready)),
        };
        let outcome = worker.begin(REPLAY, self.timeout).and_then(|_| worker.finish(REPLAY, self.timeout));
        let (mut outcome, check) = match outcome {
            Ok((outcome, _)) => {
                let checked = |name: &String| {
                    let ended = worker.begin(name, self.timeout).and_then(|_| worker.finish(name, self.timeout));
                    ended.map_or_else(|Quiet { why, is_hang }| lost("", &why, is_hang), |(outcome, _)| outcome)
                };
                (outcome, check.as_ref().map(checked))
            }
            Err(Quiet { why, is_hang }) => (lost("", &why, is_hang), None),
        };
        let failed = |outcome: &Outcome| matches!(outcome, Outcome::Failed(_));
        if !failed(&outcome)
            && !check.as_ref().is_some_and(failed)
            && let Err(how) = worker.end(self.timeout)
        {
            outcome = Outcome::failed(format!("after the call, {how}"));
        }
        Ok(Ok(Replayed { identity, outcome, check }))
    }

    /// A job without work.
    fn job(&self, backend: &str) -> Job {
        let (backend, layers, bundles) = (backend.to_owned(), self.layers.clone(), self.bundles.clone());
        let (cases, deadly, worn, opens, replay, handshake) = Default::default();
        Job { backend, layers, seed: self.seed, cases, deadly, worn, bundles, opens, replay, handshake }
    }

    fn start(&self, job: &Job) -> anyhow::Result<Worker> {
        let mut worker = process::Worker::start(&[OsStr::new("parity-worker")], SHOWN_LINES, false)?;
        worker.send(&serde_json::to_string(job)?);
        Ok(Worker(worker))
    }
}

/// A process that runs cases.
struct Worker(process::Worker);

/// What a worker does next.
enum Begin {
    /// It begins the task, which is made of this.
    Task(Option<Facts>),
    /// It ends, because its device is lost.
    Lost,
}

/// Why there is no message.
struct Quiet {
    why: String,
    is_hang: bool,
}

impl Worker {
    fn next(&mut self, timeout: Duration) -> Result<Message, Quiet> {
        match self.0.next(Instant::now() + timeout) {
            Ok(message) => Ok(message),
            Err(Silence::Late) => {
                self.0.kill();
                Err(Quiet { why: format!("no answer within {} s", timeout.as_secs_f64()), is_hang: true })
            }
            Err(Silence::Ended) => {
                let why = self.end(timeout).err().unwrap_or_else(|| "the process exited with code 0".to_owned());
                Err(Quiet { why, is_hang: false })
            }
        }
    }

    fn wait_until_loaded(&mut self, timeout: Duration) -> Ready {
        match self.next(timeout) {
            Ok(Message::Loaded { identity, ops, own_ops }) => Ok((identity, Ops { known: ops, own: own_ops })),
            Ok(Message::Refused { reason }) => Err(NotReady::Refused(reason)),
            Ok(other) => Err(NotReady::Broken(format!("the worker says {other:?}"))),
            Err(Quiet { why, .. }) => Err(NotReady::Broken(format!("while it was loaded, {why}"))),
        }
    }

    /// Waits for the beginning of the task of this name.
    fn begin(&mut self, name: &str, timeout: Duration) -> Result<Begin, Quiet> {
        match self.next(timeout)? {
            Message::Begin { case, facts } if case == name => Ok(Begin::Task(facts)),
            Message::Lost => Ok(Begin::Lost),
            other => Err(Quiet { why: format!("the worker says {other:?}"), is_hang: false }),
        }
    }

    /// Waits for the end of the task that has begun.
    fn finish(&mut self, name: &str, timeout: Duration) -> Result<(Outcome, f64), Quiet> {
        match self.next(timeout)? {
            Message::End { outcome, seconds } if name == CLOSE => {
                let ended = self.end(timeout).map_err(|how| format!("after the device was closed, {how}"));
                Ok((ended.map_or_else(Outcome::failed, |()| outcome), seconds))
            }
            Message::End { outcome, seconds } => Ok((outcome, seconds)),
            other => Err(Quiet { why: format!("the worker says {other:?}"), is_hang: false }),
        }
    }

    /// Waits until the process is gone; kills it when that takes too long.
    ///
    /// # Errors
    /// How it ended, in words, if that was not the end of its work.
    fn end(&mut self, timeout: Duration) -> Result<(), String> {
        let late = || format!("the process did not end within {} s", timeout.as_secs_f64());
        self.0.end(Instant::now() + timeout).unwrap_or_else(|| Err(late()))
    }
}

/// A failure by which the process was lost: it ended, or had to be ended. `when` begins the sentence that `why` ends.
fn lost(when: &str, why: &str, is_hang: bool) -> Outcome {
    let fault = if is_hang { Fault::Hang } else { Fault::Crash };
    Outcome::Failed(Failure::new(format!("{when}{why}")).of(fault).because_of(why))
}

/// Cases of each op that cost a process.
#[derive(Default)]
struct Tally {
    hangs: HashMap<&'static str, usize>,
    deaths: HashMap<&'static str, usize>,
    /// Cases that failed and left the process alive.
    restarts: HashMap<&'static str, usize>,
    /// The error with which the device was lost in the last cases, and how many of them in a row.
    losses: HashMap<&'static str, (String, usize)>,
    /// Ops of which any case has lost the device.
    have_lost: BTreeSet<&'static str>,
}

impl Tally {
    fn count(&mut self, task: &Task, is_hang: bool) {
        let list = if is_hang { &mut self.hangs } else { &mut self.deaths };
        *list.entry(task.subject()).or_default() += 1;
    }

    /// Counts cases in a row that lose the device.
    fn see(&mut self, task: &Task, outcome: &Outcome) {
        let error = match outcome {
            Outcome::Failed(failure) if failure.fault == Some(Fault::DeviceLost) => {
                essence(failure.error.as_deref().unwrap_or(&failure.problem))
            }
            _ => {
                self.losses.remove(task.subject());
                return;
            }
        };
        self.have_lost.insert(task.subject());
        let (known, count) = self.losses.entry(task.subject()).or_default();
        *count = if *known == error { *count + 1 } else { 1 };
        *known = error;
    }

    /// Ops of which a case has ended a worker, or has lost its device.
    fn deadly(&self) -> Vec<String> {
        let ended = self.hangs.keys().chain(self.deaths.keys());
        ended.chain(&self.have_lost).map(|op| (*op).to_owned()).collect()
    }

    /// Ops of which the next failure costs no process any more.
    fn worn(&self) -> Vec<String> {
        let often = self.restarts.iter().filter(|(_, count)| **count >= MOST_RESTARTS);
        often.map(|(op, _)| (*op).to_owned()).collect()
    }

    /// Whether the next case should find another process; no longer, once an op has failed often.
    fn wants_a_new_worker_after(&mut self, task: &Task) -> bool {
        let restarts = self.restarts.entry(task.subject()).or_default();
        *restarts += 1;
        *restarts <= MOST_RESTARTS
    }

    /// Why a task is not tried any more.
    fn gives_up(&self, task: &Task) -> Option<String> {
        let op = task.subject();
        let of = |list: &HashMap<&str, usize>| list.get(op).copied().unwrap_or(0);
        if of(&self.hangs) >= MOST_HANGS {
            return Some(format!("{MOST_HANGS} cases of {op} did not answer"));
        }
        // What a usual call ends with is what the others are called by.
        if matches!(task, Task::Op(case) if case.number == 0 && matches!(case.check, Check::Honesty | Check::Value)) {
            return None;
        }
        if self.losses.get(op).is_some_and(|(_, in_a_row)| *in_a_row >= MOST_LOSSES) {
            return Some(format!("{MOST_LOSSES} cases of {op} in a row lost the device with the same error"));
        }
        (of(&self.deaths) >= MOST_DEATHS).then(|| format!("{MOST_DEATHS} cases of {op} ended the process"))
    }
}
