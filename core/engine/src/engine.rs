//! The engine: requests in, tokens out, and what is known of them between steps. `step` does the work.

mod step;

use std::cell::RefCell;
use std::sync::Arc;

use deepinfer_model::tokenizer::Tokenizer;
use deepinfer_model::{GraphStats, KvCache, Model, StateStore, StepGraphs};
use deepinfer_ops::OpError;
use deepinfer_scheduler::{AddError, RequestId, RequestMap, RequestSpec, Scheduler, Stats, StepPlan};

use crate::builder::EngineBuilder;
use crate::error::{EngineError, RequestError};
use crate::observer::LogitsObserver;
use crate::output::{FinishReason, RequestOutput, TokenEvent};
use crate::request::Request;
use crate::sampler::Sampler;
use crate::seed::draw_seed;
use crate::sequence::{Group, Sequence, Shared};
use crate::telemetry::observer::Observers;
use crate::telemetry::{Observation, StepObserver};

use self::step::StepInFlight;

/// What happens between the queueing of a step and the wait for the one before, while the device works.
pub trait StepHook {
    /// `next` has been queued; the engine is about to wait for an earlier step. A store of caches copies pages here.
    fn before_wait(&mut self, _next: &StepPlan, _cache: &KvCache) {}
}

/// The hook that does nothing.
pub(crate) struct NoHook;

impl StepHook for NoHook {}

/// News of a request.
#[derive(Debug)]
pub enum Event {
    /// A completion has a token more.
    Token(TokenEvent),
    /// All completions have ended.
    Finished(Box<RequestOutput>),
}

/// Runs requests, many at a time. What each gets depends on its tokens, its parameters and its seed alone.
///
/// [`Engine::submit`] queues requests, [`Engine::step`] does a turn of work and [`Engine::events`] gives what came of it;
/// [`Engine::generate`], [`Engine::run`] and [`Engine::run_all`] do all three until requests are done. There is no thread and no clock here: see
/// [`EngineThread`](crate::EngineThread).
pub struct Engine {
    model: Model,
    tokenizer: Option<Arc<Tokenizer>>,
    cache: KvCache,
    store: StateStore,
    scheduler: Scheduler,
    sampler: Sampler,
    /// Recorded decode steps, unless every step is issued op by op.
    graphs: Option<RefCell<StepGraphs>>,
    hook: Box<dyn StepHook>,
    observer: Option<Box<dyn LogitsObserver>>,
    step_observers: Observers,
    max_model_len: usize,
    /// Requests, by their names.
    groups: RequestMap<Group>,
    /// Completions, by theirs.
    sequences: RequestMap<(RequestId, Sequence)>,
    /// The step whose tokens are not taken in yet.
    in_flight: Option<StepInFlight>,
    spare_plans: Vec<StepPlan>,
    /// News that nobody has asked for yet.
    pub(crate) events: Vec<(RequestId, Event)>,
    /// Why nothing runs any more.
    lost: Option<OpError>,
}

/// What a builder makes.
pub(crate) struct Parts {
    pub(crate) model: Model,
    pub(crate) tokenizer: Option<Arc<Tokenizer>>,
    pub(crate) cache: KvCache,
    pub(crate) store: StateStore,
    pub(crate) scheduler: Scheduler,
    pub(crate) sampler: Sampler,
    pub(crate) graphs: Option<StepGraphs>,
    pub(crate) hook: Box<dyn StepHook>,
    pub(crate) observer: Option<Box<dyn LogitsObserver>>,
    pub(crate) max_model_len: usize,
}

impl Engine {
    /// An engine for a model; its defaults are those of [`EngineConfig`](crate::EngineConfig).
    pub fn builder(model: Model) -> EngineBuilder {
        EngineBuilder::new(model)
    }

    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { model, tokenizer, cache, store, scheduler, sampler, graphs, hook, observer, max_model_len } = parts;
        Self {
            model,
            tokenizer,
            cache,
            store,
            scheduler,
            sampler,
            graphs: graphs.map(RefCell::new),
            hook,
            observer,
            step_observers: Observers::default(),
            max_model_len,
            groups: RequestMap::default(),
            sequences: RequestMap::default(),
            in_flight: None,
            spare_plans: Vec::new(),
            events: Vec::new(),
            lost: None,
        }
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Pages, slots and requests, and what was done so far.
    pub fn stats(&self) -> Stats {
        self.scheduler.stats()
    }

    /// What became of the decode steps, if they are recorded.
    pub fn graph_stats(&self) -> Option<GraphStats> {
        self.graphs.as_ref().map(|graphs| graphs.borrow().stats())
    }

    /// The tokenizer, if the model has one.
    pub fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        self.tokenizer.as_ref()
    }

    /// Most tokens of a request, prompt and output together.
    pub fn max_model_len(&self) -> usize {
        self.max_model_len
    }

    /// From now on, `observer` is told what the engine does.
    pub fn add_observer(&mut self, observer: Box<dyn StepObserver>) {
        self.step_observers.add(observer);
    }

    /// Forgets all cached pages, so that the next requests run all of their prompts.
    pub fn reset_prefix_cache(&mut self) {
        self.scheduler.reset_prefix_cache();
    }

    /// Forgets up to `pages` cached pages that nobody uses, those that were not used for longest. Returns how many there were.
    pub fn evict(&mut self, pages: usize) -> usize {
        self.scheduler.evict(pages)
    }

    /// The model again, for an engine of other sizes. What has not ended is given up, and its results are waited for.
    pub fn into_model(mut self) -> Model {
        if let Some(StepInFlight { queued: Ok(mut step), .. }) = self.in_flight.take() {
            // A fault concerns nobody any more; the next engine meets one that lasts.
            let _ = step.tokens.wait();
        }
        self.model
    }

    /// Queues a request.
    ///
    /// # Errors
    /// The request is invalid or can never fit, or the device is lost. Nothing has changed then.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        let admitted = self.admit(request);
        if let Err(error) = &admitted {
            self.step_observers.tell(|| Observation::Refused { error });
        }
        admitted
    }

    fn admit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        if let Some(error) = &self.lost {
            return Err(error.clone().into());
        }
        request.validate(self.model.config())?;
        let prompt_len = request.prompt_token_ids.len();
        if prompt_len >= self.max_model_len {
            return Err(RequestError::PromptTooLong { tokens: prompt_len, context: self.max_model_len }.into());
        }
        if !request.params.stop.is_empty() && self.tokenizer.is_none() {
            return Err(RequestError::NoTextToStop.into());
        }
        let seed = match request.params.seed {
            Some(seed) => seed,
            None => draw_seed()?,
        };
        let limit = request.params.output_limit(prompt_len, self.max_model_len);
        let params = &request.params;
        let spec = RequestSpec {
            n: params.n,
            priority: params.priority,
            prompt_logits: params.prompt_logprobs.is_some(),
            cache_salt: params.cache_salt.as_bytes(),
            ..RequestSpec::new(&request.prompt_token_ids, limit)
        };
        let id = self.scheduler.add(spec).map_err(|error| refusal(&error))?;
        let shared = Shared::new(request, self.model.config(), seed, limit);
        self.step_observers.tell(|| Observation::Submitted {
            id,
            request: &shared.request,
            limit,
            stats: self.scheduler.stats(),
        });
        for index in 0..shared.request.params.n {
            let sequence = Sequence::new(&shared, index, self.tokenizer.as_ref());
            self.sequences.insert(id.completion(index), (id, sequence));
        }
        self.groups.insert(id, Group::new(shared));
        Ok(id)
    }

    /// Ends a request with what it has. Returns whether it had not ended.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let Some(group) = self.groups.get(&id) else { return false };
        for index in 0..group.completions() {
            self.end(id.completion(index), FinishReason::Abort, None);
        }
        true
    }

    /// Preempts the completions of a request that run, as if others needed their pages. What they get must not depend on it,
    /// which is what this is for. Returns whether one was running.
    pub fn preempt(&mut self, id: RequestId) -> bool {
        let completions = self.groups.get(&id).map_or(0, Group::completions);
        (0..completions).fold(false, |any, index| self.scheduler.preempt(id.completion(index)) | any)
    }

    /// Whether a request has not ended, or a step is in flight.
    pub fn has_work(&self) -> bool {
        !self.groups.is_empty() || self.in_flight.is_some()
    }

    /// What has happened since the last call, in order.
    pub fn events(&mut self) -> impl Iterator<Item = (RequestId, Event)> + '_ {
        self.events.drain(..)
    }

    /// Waits for the step in flight, if there is one, and takes in what it brought. Plans nothing: the device has nothing to do
    /// afterwards.
    pub fn settle(&mut self) {
        if let Some(step) = self.in_flight.take() {
            self.take_in(step);
            self.step_observers.tell(|| Observation::TurnEnded { stats: self.scheduler.stats() });
        }
    }

    /// Does a turn of work: at most one step is queued, and at most one waited for. Without work, nothing.
    pub fn step(&mut self) {
        self.turn();
        self.step_observers.tell(|| Observation::TurnEnded { stats: self.scheduler.stats() });
    }

    /// Ends a completion that has not ended, and the request with its last one.
    fn end(&mut self, completion: RequestId, reason: FinishReason, error: Option<EngineError>) {
        let Some((id, sequence)) = self.sequences.remove(&completion) else { return };
        self.scheduler.abort(completion);
        let group = self.groups.get_mut(&id).expect("a request lives as long as its completions");
        let ended = sequence.finish(reason, error);
        self.step_observers.tell(|| Observation::Ended {
            id: completion,
            completion: &ended,
            stats: self.scheduler.stats(),
        });
        if let Some(output) = group.take(ended) {
            self.groups.remove(&id);
            self.step_observers.tell(|| Observation::Finished { id, output: &output });
            self.events.push((id, Event::Finished(Box::new(output))));
        }
    }
}

/// The scheduler's refusal as the caller knows it.
fn refusal(error: &AddError) -> RequestError {
    match *error {
        AddError::EmptyPrompt => RequestError::EmptyPrompt,
        AddError::NoOutput { name } => {
            RequestError::InvalidParameter { name, value: "0".to_owned(), wanted: "at least 1" }
        }
        AddError::TooLong { prompt, max_model_len, .. } => {
            RequestError::PromptTooLong { tokens: prompt, context: max_model_len }
        }
        AddError::NeverFits { prompt, max_tokens, needed, available, longest } => {
            RequestError::DoesNotFit { tokens: prompt, max_tokens, needed, available, longest }
        }
        AddError::QueueFull { name, unit, waiting, added, most } => {
            RequestError::QueueFull { name, unit, waiting, added, most }
        }
    }
}
