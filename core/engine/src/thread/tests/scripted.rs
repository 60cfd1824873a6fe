//! An engine that draws 1, 2, 3, .. for every request, one step behind, and watches over how it is driven.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use deepinfer_scheduler::{RequestId, Stats};

use crate::engine::Event;
use crate::error::{EngineError, RequestError};
use crate::output::{Completion, FinishReason, RequestOutput, StepOutput, TokenEvent};
use crate::params::SamplingParams;
use crate::request::Request;
use crate::thread::serve::Serve;

/// What a test sees of an engine, and tells it. The lock is of the system, and is never held where threads may change.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Whether a step would be an error, because the engine was paused.
    pub(super) must_rest: bool,
    pub(super) steps: u64,
    /// Requests that were taken, and how each ended.
    pub(super) ends: BTreeMap<RequestId, Option<FinishReason>>,
    /// Engines that were dropped.
    pub(super) dropped: usize,
}

pub(super) type Watched = Arc<Mutex<Watch>>;

pub(super) struct Scripted {
    watch: Watched,
    running: BTreeMap<RequestId, (Request, Vec<StepOutput>)>,
    /// Requests of the step in flight.
    in_flight: Option<Vec<RequestId>>,
    events: Vec<(RequestId, Event)>,
    next: u64,
}

/// A request of `tokens` tokens; without a number it goes on until it is aborted.
pub(super) fn request(tokens: Option<usize>) -> Request {
    let params = SamplingParams { max_tokens: tokens, ..SamplingParams::default() };
    Request { id: String::new(), prompt_token_ids: vec![1], params }
}

/// A request that is refused.
pub(super) fn empty_request() -> Request {
    Request { prompt_token_ids: Vec::new(), ..request(None) }
}

impl Scripted {
    pub(super) fn new(watch: &Watched) -> Self {
        let watch = watch.clone();
        Self { watch, running: BTreeMap::new(), in_flight: None, events: Vec::new(), next: 0 }
    }

    fn watch<R>(&self, act: impl FnOnce(&mut Watch) -> R) -> R {
        act(&mut self.watch.lock().expect("no thread panics with it"))
    }

    fn finish(&mut self, id: RequestId, reason: FinishReason) -> bool {
        let Some((request, steps)) = self.running.remove(&id) else { return false };
        let completion =
            Completion { index: 0, steps, text: None, finish_reason: reason, stop_reason: None, error: None };
        let output = RequestOutput {
            outputs: vec![completion],
            ..RequestOutput::refused(request.id, request.prompt_token_ids, RequestError::EmptyPrompt)
        };
        self.events.push((id, Event::Finished(Box::new(output))));
        let earlier = self.watch(|watch| watch.ends.insert(id, Some(reason)));
        assert_eq!(earlier, Some(None), "a request that was taken ends once");
        true
    }

    /// Draws a token for each request of the step in flight that has not ended.
    fn take_in(&mut self) {
        for id in self.in_flight.take().into_iter().flatten() {
            let Some((request, steps)) = self.running.get_mut(&id) else { continue };
            let step = StepOutput { token_id: steps.len() as u32 + 1, logprob: None, logits: None };
            steps.push(step.clone());
            let is_last = request.params.max_tokens == Some(steps.len());
            let finish_reason = is_last.then_some(FinishReason::Length);
            let token = TokenEvent { index: 0, step, text: String::new(), finish_reason };
            self.events.push((id, Event::Token(token)));
            if is_last {
                self.finish(id, FinishReason::Length);
            }
        }
    }
}

impl Serve for Scripted {
    fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        if request.prompt_token_ids.is_empty() {
            return Err(RequestError::EmptyPrompt.into());
        }
        let id = RequestId(self.next);
        self.next += 1;
        self.running.insert(id, (request, Vec::new()));
        self.watch(|watch| watch.ends.insert(id, None));
        Ok(id)
    }

    fn abort(&mut self, id: RequestId) -> bool {
        self.finish(id, FinishReason::Abort)
    }

    fn reset_prefix_cache(&mut self) {}

    fn stats(&self) -> Stats {
        let (running, in_flight) = (self.running.len(), usize::from(self.in_flight.is_some()));
        Stats { running, in_flight, steps: self.watch(|watch| watch.steps), ..Stats::default() }
    }

    fn has_work(&self) -> bool {
        !self.running.is_empty() || self.in_flight.is_some()
    }

    fn step(&mut self) {
        self.watch(|watch| {
            assert!(!watch.must_rest, "a step of an engine that is paused");
            watch.steps += 1;
        });
        let planned: Vec<RequestId> = self.running.keys().copied().collect();
        self.take_in();
        self.in_flight = (!planned.is_empty()).then_some(planned);
    }

    fn settle(&mut self) {
        self.take_in();
    }

    fn events(&mut self) -> impl Iterator<Item = (RequestId, Event)> {
        self.events.drain(..)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.watch(|watch| watch.dropped += 1);
    }
}
