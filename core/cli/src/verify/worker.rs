//! A cell in a process that has run nothing else: both ends.

use std::ffi::{OsStr, OsString};
use std::time::{Duration, Instant};

use deepinfer_verify::{Cell, Elsewhere, Run, VerifyError};
use serde::{Deserialize, Serialize};

use super::args::VerifyWorkerArgs;
use super::{arguments_of, lab_of};
use crate::args::ModelArgs;
use crate::failure::Failure;
use crate::process::{Link, Silence, Worker};

/// Name of the hidden command.
const COMMAND: &str = "verify-worker";
/// Lines of plugins that are shown.
const MOST_LINES: usize = 20;

/// What the worker says.
#[derive(Serialize, Deserialize)]
enum Answer {
    /// The cell has run.
    Ran(Run),
    /// It has not.
    Failed(String),
}

/// Runs the cell and sends an [`Answer`].
///
/// # Errors
/// Nobody listens.
pub(crate) fn run(args: &VerifyWorkerArgs, link: &mut Link) -> Result<(), Failure> {
    link.end_with_the_other();
    let ran = lab_of(&args.model, args.seed).and_then(|mut lab| lab.run(&args.cell).map_err(Failure::fault));
    link.say(&ran.map_or_else(|failure| Answer::Failed(failure.sentence()), Answer::Ran))
}

/// Starts workers.
pub(super) struct Workers {
    arguments: Vec<OsString>,
    limit: Duration,
}

impl Workers {
    /// Workers that load this model, and have `limit` for it and a cell.
    pub(super) fn new(model: &ModelArgs, limit: Duration) -> Self {
        Self { arguments: arguments_of(model), limit }
    }

    fn answer(&self, seed: u64, cell: &Cell) -> Result<Answer, String> {
        let (seed, cell) = (seed.to_string(), cell.to_string());
        let mut arguments: Vec<&OsStr> = vec![COMMAND.as_ref(), "--seed".as_ref(), seed.as_ref(), "--cell".as_ref()];
        arguments.push(cell.as_ref());
        arguments.extend(self.arguments.iter().map(OsString::as_os_str));
        let until = Instant::now() + self.limit;
        let mut worker = Worker::start(&arguments, MOST_LINES, false).map_err(|error| format!("{error:#}"))?;
        let answer = worker.next(until);
        let late = || format!("it took more than {} s; raise --timeout", self.limit.as_secs());
        match (answer, worker.end(until)) {
            (Ok(answer), _) => Ok(answer),
            (Err(Silence::Ended), Some(Err(how))) => Err(how),
            (Err(Silence::Ended), Some(Ok(()))) => Err("it said nothing".to_owned()),
            (Err(Silence::Late), _) | (_, None) => Err(late()),
        }
    }
}

impl Elsewhere for Workers {
    fn run(&mut self, seed: u64, cell: &Cell) -> Result<Run, VerifyError> {
        match self.answer(seed, cell) {
            Ok(Answer::Ran(run)) => Ok(run),
            Ok(Answer::Failed(reason)) | Err(reason) => Err(VerifyError::Child { cell: cell.to_string(), reason }),
        }
    }
}
