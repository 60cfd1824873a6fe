//! The stages that each completion of a request goes through, told apart from what the engine observes.
//!
//! ```text
//! request  [ queued | prefill [chunk][chunk] | decode                  ]
//! preempted [ queued | prefill [chunk]        | decode | queued | prefill | decode ]
//! ```
//!
//! Stages nest: chunks lie in a prefill, and of one completion only one is open at a time. With two steps in flight the next
//! chunk is queued while one runs; it counts from the end of that one, which is when the device gets to it.

use std::collections::VecDeque;

use deepinfer_scheduler::{Phase, PlannedRequest, RequestId, RequestMap, StepId, StepPlan};

use crate::output::Completion;
use crate::request::Request;
use crate::telemetry::observer::Observation;

/// Part of a completion's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It waits to be admitted: at first, and after a preemption.
    Queued,
    /// Known tokens run.
    Prefill,
    /// A part of them, in one step.
    Chunk(Chunk),
    /// One token after the other is made.
    Decode,
}

impl Stage {
    /// The name, as spans and traces have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Prefill => "prefill",
            Self::Chunk(_) => "prefill chunk",
            Self::Decode => "decode",
        }
    }
}

/// Rows of a prefill in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) step: StepId,
    /// Position of the first row.
    pub(crate) start: usize,
    pub(crate) rows: usize,
}

/// What is done when stages begin and end. `Data` is what it keeps for each completion.
pub(crate) trait Sink {
    type Data;

    /// Completion `index` of a request begins, with [`Stage::Queued`].
    fn begin(&mut self, id: RequestId, request: &Request, index: usize, limit: usize) -> Self::Data;

    fn enter(&mut self, data: &mut Self::Data, id: RequestId, stage: Stage);

    fn leave(&mut self, data: &mut Self::Data, id: RequestId, stage: Stage);

    /// The completion has `count` tokens more.
    fn tokens(&mut self, data: &mut Self::Data, id: RequestId, count: usize);

    /// It ends, after its stages; without a completion if the engine goes away before.
    fn end(&mut self, data: Self::Data, id: RequestId, completion: Option<&Completion>);
}

/// All completions that have not ended.
#[derive(Debug)]
pub(crate) struct Lifecycles<T> {
    completions: RequestMap<Lifecycle<T>>,
}

#[derive(Debug)]
struct Lifecycle<T> {
    /// Never [`Stage::Chunk`].
    stage: Stage,
    /// Chunks in flight, the oldest, which is open, in front.
    chunks: VecDeque<Chunk>,
    /// Which start of the request this is.
    generation: u32,
    data: T,
}

impl<T> Default for Lifecycles<T> {
    fn default() -> Self {
        Self { completions: RequestMap::default() }
    }
}

impl<T> Lifecycles<T> {
    /// Takes in an observation and tells the sink what begins and ends by it.
    pub(crate) fn observe(&mut self, what: &Observation<'_>, sink: &mut impl Sink<Data = T>) {
        match *what {
            Observation::Submitted { id, request, limit, .. } => {
                for index in 0..request.params.n {
                    let id = id.completion(index);
                    let mut data = sink.begin(id, request, index, limit);
                    sink.enter(&mut data, id, Stage::Queued);
                    let life = Lifecycle { stage: Stage::Queued, chunks: VecDeque::new(), generation: 0, data };
                    self.completions.insert(id, life);
                }
            }
            Observation::Scheduled { plan, .. } => self.schedule(plan, sink),
            Observation::Completed { plan, outcomes } => {
                for (planned, outcome) in plan.requests().iter().zip(outcomes) {
                    self.complete(plan.step(), planned, outcome.tokens.len(), sink);
                }
            }
            Observation::Ended { id, completion, .. } => {
                if let Some(life) = self.completions.remove(&id) {
                    life.end(id, Some(completion), sink);
                }
            }
            _ => {}
        }
    }

    /// Ends everything that is open.
    pub(crate) fn close(&mut self, sink: &mut impl Sink<Data = T>) {
        let mut left: Vec<_> = self.completions.drain().collect();
        left.sort_unstable_by_key(|(id, _)| *id);
        for (id, life) in left {
            life.end(id, None, sink);
        }
    }

    /// Whether the rows of a step are still those of the request, which was not preempted and has not ended since.
    pub(crate) fn is_live(&self, planned: &PlannedRequest) -> bool {
        self.completions.get(&planned.id).is_some_and(|life| life.is_live(planned))
    }

    fn schedule(&mut self, plan: &StepPlan, sink: &mut impl Sink<Data = T>) {
        for &id in plan.preempted() {
            let Some(life) = self.completions.get_mut(&id) else { continue };
            life.leave_all(id, sink);
            life.enter(id, Stage::Queued, sink);
        }
        for planned in plan.requests() {
            // Decode rows follow from the prefill, whose end is known when it was taken in.
            if planned.phase != Phase::Prefill {
                continue;
            }
            let Some(life) = self.completions.get_mut(&planned.id) else { continue };
            if life.stage == Stage::Queued {
                sink.leave(&mut life.data, planned.id, Stage::Queued);
                life.enter(planned.id, Stage::Prefill, sink);
                life.generation = planned.generation;
            }
            let chunk = Chunk { step: plan.step(), start: planned.start, rows: planned.rows };
            if life.chunks.is_empty() {
                sink.enter(&mut life.data, planned.id, Stage::Chunk(chunk));
            }
            life.chunks.push_back(chunk);
        }
    }

    fn complete(&mut self, step: StepId, planned: &PlannedRequest, tokens: usize, sink: &mut impl Sink<Data = T>) {
        let id = planned.id;
        let Some(life) = self.completions.get_mut(&id).filter(|life| life.is_live(planned)) else { return };
        if life.chunks.front().is_some_and(|chunk| chunk.step == step) {
            let chunk = life.chunks.pop_front().expect("it is in front");
            sink.leave(&mut life.data, id, Stage::Chunk(chunk));
            if let Some(&next) = life.chunks.front() {
                sink.enter(&mut life.data, id, Stage::Chunk(next));
            }
        }
        if tokens > 0 {
            sink.tokens(&mut life.data, id, tokens);
        }
        // Without a token the request was preempted meanwhile, of which the next plan tells.
        if planned.phase == Phase::Prefill && tokens > 0 {
            sink.leave(&mut life.data, id, Stage::Prefill);
            life.enter(id, Stage::Decode, sink);
        }
    }
}

impl<T> Lifecycle<T> {
    fn is_live(&self, planned: &PlannedRequest) -> bool {
        self.stage != Stage::Queued && self.generation == planned.generation
    }

    fn enter(&mut self, id: RequestId, stage: Stage, sink: &mut impl Sink<Data = T>) {
        self.stage = stage;
        sink.enter(&mut self.data, id, stage);
    }

    /// Leaves the stage, and first the chunk in it.
    fn leave_all(&mut self, id: RequestId, sink: &mut impl Sink<Data = T>) {
        if let Some(&chunk) = self.chunks.front() {
            sink.leave(&mut self.data, id, Stage::Chunk(chunk));
        }
        self.chunks.clear();
        sink.leave(&mut self.data, id, self.stage);
    }

    fn end(mut self, id: RequestId, completion: Option<&Completion>, sink: &mut impl Sink<Data = T>) {
        self.leave_all(id, sink);
        sink.end(self.data, id, completion);
    }
}
