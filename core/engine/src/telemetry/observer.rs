//! What the engine tells about its work, as it happens.
//!
//! The engine has no clock: it says what begins and what has come of it, and whoever listens looks at the time. Without a
//! listener, telling is one branch.

use deepinfer_ops::OpError;
use deepinfer_scheduler::{Outcome, RequestId, Stats, StepId, StepPlan};

use crate::error::EngineError;
use crate::output::{Completion, RequestOutput};
use crate::request::Request;

/// Listens to an engine; see [`Engine::add_observer`](crate::Engine::add_observer).
pub trait StepObserver {
    /// Something has happened. Runs on the engine's thread, between its work: what it takes is added to every step.
    fn observe(&mut self, what: &Observation<'_>);
}

/// What the engine is at. A turn goes through these in order and leaves out those that it has nothing for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepPhase {
    /// Choosing the rows of the next step.
    Schedule,
    /// Queueing its forward pass.
    Launch,
    /// Waiting for the tokens of an earlier step, or without asynchronous scheduling of the same one.
    Wait,
    /// Taking them in.
    Update,
    /// Queueing the draw of the next step. Without asynchronous scheduling this precedes [`StepPhase::Wait`].
    Sample,
}

impl StepPhase {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Schedule, Self::Launch, Self::Wait, Self::Update, Self::Sample];

    /// The name, as spans, traces and metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Launch => "launch",
            Self::Wait => "wait",
            Self::Update => "update",
            Self::Sample => "sample",
        }
    }
}

/// Something that happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Observation<'a> {
    /// A request was taken in. Its completions are `id.completion(0..request.params.n)`, and each of them ends by itself.
    Submitted {
        /// Its name.
        id: RequestId,
        /// What is asked for.
        request: &'a Request,
        /// Most output tokens of a completion.
        limit: usize,
        /// Numbers after that.
        stats: Stats,
    },
    /// A request was refused.
    Refused {
        /// Why.
        error: &'a EngineError,
    },
    /// A phase begins; the one before it, if any in this turn, ends.
    Phase {
        /// The phase.
        phase: StepPhase,
        /// The step that it is for; with [`StepPhase::Schedule`], the next one that has rows.
        step: StepId,
    },
    /// A step has rows. Its forward pass is queued next.
    Scheduled {
        /// The step.
        plan: &'a StepPlan,
        /// Numbers after that.
        stats: Stats,
    },
    /// What a step did was taken in.
    Completed {
        /// The step. Requests that ended or were preempted since it was planned have no tokens.
        plan: &'a StepPlan,
        /// What came of each of its requests.
        outcomes: &'a [Outcome<'a>],
    },
    /// A step failed. Its requests end next; after a fault that lasts, all do.
    Failed {
        /// The step.
        plan: &'a StepPlan,
        /// The fault.
        error: &'a OpError,
    },
    /// A completion has ended.
    Ended {
        /// The completion.
        id: RequestId,
        /// All of it.
        completion: &'a Completion,
        /// Numbers after that.
        stats: Stats,
    },
    /// The last completion of a request has ended.
    Finished {
        /// The request.
        id: RequestId,
        /// All of it.
        output: &'a RequestOutput,
    },
    /// A turn of work is over. The engine goes back to its caller.
    TurnEnded {
        /// Numbers after that.
        stats: Stats,
    },
}

/// The listeners of an engine.
#[derive(Default)]
pub(crate) struct Observers(Vec<Box<dyn StepObserver>>);

impl Observers {
    pub(crate) fn add(&mut self, observer: Box<dyn StepObserver>) {
        self.0.push(observer);
    }

    /// Tells all of them, if there are any; `what` is made only then.
    pub(crate) fn tell<'a>(&mut self, what: impl FnOnce() -> Observation<'a>) {
        if self.0.is_empty() {
            return;
        }
        let what = what();
        for observer in &mut self.0 {
            observer.observe(&what);
        }
    }
}
