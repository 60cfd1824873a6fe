//! The engine: requests in, steps of the model, tokens out.
//!
//! With asynchronous scheduling, one turn of the loop is
//!
//! ```text
//! plan step n+1 -> queue its forward pass -> wait for the tokens of step n -> take them in -> queue the draw of step n+1
//! ```
//!
//! The forward pass of step n+1 reads the tokens of step n where the sampler left them on the device, so that the device goes
//! on while the host takes in step n. The draw is queued after that, for all rows alike, because penalties, `min_tokens` and
//! stops depend on the tokens of step n. A request that step n ends has a row too many in step n+1, which is thrown away.
//!
//! Without it, a step is planned, queued, drawn, waited for and taken in before the next one is planned. The tokens are the
//! same, since none depends on when it was computed.

use std::collections::HashMap;
use std::sync::Arc;

use deepinfer_model::tokenizer::Tokenizer;
use deepinfer_model::{DeviceTokens, KvCache, Model, RequestRows, StateStore, StepInput};
use deepinfer_ops::{Download, OpError, Tensor};
use deepinfer_scheduler::{
    AddError, Outcome, PlannedRequest, RequestId, RequestMap, RequestSpec, Scheduler, Stats, StepId, StepPlan,
    TokenSource,
};

use crate::builder::EngineBuilder;
use crate::error::{EngineError, RequestError};
use crate::observer::{LogitsObserver, ObservedRow};
use crate::output::{FinishReason, RequestOutput, TokenEvent};
use crate::request::Request;
use crate::sampler::{SampleRow, Sampler};
use crate::seed::draw_seed;
use crate::sequence::{Group, Sequence, Shared};
use crate::telemetry::observer::Observers;
use crate::telemetry::{Observation, StepObserver, StepPhase};

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
    pub(crate) hook: Box<dyn StepHook>,
    pub(crate) observer: Option<Box<dyn LogitsObserver>>,
    pub(crate) max_model_len: usize,
}

/// A step that was queued.
struct StepInFlight {
    plan: StepPlan,
    queued: Result<Downloads, OpError>,
}

/// What comes back of a step.
struct Downloads {
    tokens: Box<dyn Download>,
    /// Raw logits, by the request's place in the plan.
    logits: Vec<(usize, RawLogits)>,
}

/// Logits before anything changed them.
enum RawLogits {
    /// Of the row that is drawn from.
    Drawn(Box<dyn Download>),
    /// Of tokens before it, from this position on.
    Before(usize, Box<dyn Download>),
}

/// A step whose forward pass is queued, before its draw.
struct Forward {
    plan: StepPlan,
    /// Logits of the rows that are drawn from, and raw logits for the host.
    queued: Result<(Tensor, Vec<(usize, RawLogits)>), OpError>,
}

impl Engine {
    /// An engine for a model; its defaults are those of [`EngineConfig`](crate::EngineConfig).
    pub fn builder(model: Model) -> EngineBuilder {
        EngineBuilder::new(model)
    }

    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { model, tokenizer, cache, store, scheduler, sampler, hook, observer, max_model_len } = parts;
        Self {
            model,
            tokenizer,
            cache,
            store,
            scheduler,
            sampler,
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

    fn turn(&mut self) {
        self.step_observers
            .tell(|| Observation::Phase { phase: StepPhase::Schedule, step: StepId(self.scheduler.stats().steps + 1) });
        let mut plan = self.spare_plans.pop().unwrap_or_default();
        let next = match self.scheduler.schedule(&mut plan) {
            Some(step) => {
                self.step_observers.tell(|| Observation::Scheduled { plan: &plan, stats: self.scheduler.stats() });
                self.step_observers.tell(|| Observation::Phase { phase: StepPhase::Launch, step });
                Some(self.forward(plan))
            }
            None => {
                self.spare_plans.push(plan);
                None
            }
        };
        if let Some(earlier) = self.in_flight.take() {
            self.take_in(earlier);
        }
        let Some(next) = next else { return };
        let step = self.draw(next);
        if self.scheduler.config().depth > 1 && step.queued.is_ok() {
            self.in_flight = Some(step);
        } else {
            self.take_in(step);
        }
    }

    /// Queues what a step does before the draw.
    fn forward(&self, plan: StepPlan) -> Forward {
        let queued = self.queue_forward(&plan);
        Forward { plan, queued }
    }

    fn queue_forward(&self, plan: &StepPlan) -> Result<(Tensor, Vec<(usize, RawLogits)>), OpError> {
        let device = self.model.device().as_ref();
        for copy in plan.page_copies() {
            self.cache.copy_page(device, copy.from as usize, copy.to as usize)?;
        }
        for planned in plan.requests() {
            let slot = planned.slot as usize;
            if planned.reset_slot {
                self.cache.reset_slot(device, slot)?;
            }
            if let Some(checkpoint) = planned.restore {
                self.store.restore(device, &self.cache, checkpoint as usize, slot)?;
            }
        }

        let sequences: Vec<&Sequence> = plan.requests().iter().map(|planned| &self.sequences[&planned.id].1).collect();
        let mut tokens = plan.tokens().to_vec();
        let mut late = Vec::with_capacity(plan.requests().len());
        for (planned, sequence) in plan.requests().iter().zip(&sequences) {
            let TokenSource::Device { row, .. } = planned.source else { continue };
            match sequence.forced(planned.start - sequence.shared.prompt_len()) {
                Some(token) => tokens[planned.first_row] = token,
                None => late.push((planned.first_row, row as usize)),
            }
        }
        let requests: Vec<RequestRows<'_>> = plan
            .requests()
            .iter()
            .map(|planned| RequestRows {
                tokens: &tokens[planned.first_row..planned.first_row + planned.rows],
                start: planned.start,
                slot: planned.slot as usize,
                pages: plan.pages_of(planned),
                image_mask: &[],
            })
            .collect();
        // Rows that are drawn from come first, so that the sampler has them in one piece.
        let samples = plan.sample_rows();
        let mut logit_rows = vec![0; samples];
        let mut prompt_rows = Vec::new();
        for (at, (planned, sequence)) in plan.requests().iter().zip(&sequences).enumerate() {
            if let Some(row) = planned.sample_row {
                logit_rows[row as usize] = planned.first_row + planned.rows - 1;
            }
            let positions = self.positions_before(planned, sequence);
            if !positions.is_empty() {
                let first_row = planned.first_row + positions.start - planned.start;
                prompt_rows.push((at, positions.start, logit_rows.len(), positions.len()));
                logit_rows.extend(first_row..first_row + positions.len());
            }
        }
        let ids = self.sampler.tokens();
        let device_tokens = (!late.is_empty()).then_some(DeviceTokens { ids, rows: &late });
        let input = StepInput { requests: &requests, logit_rows: &logit_rows, device_tokens };
        let logits = self.model.enqueue(&self.cache, &input)?;

        for planned in plan.requests() {
            if let Some(checkpoint) = planned.save {
                self.store.save(device, &self.cache, planned.slot as usize, checkpoint as usize)?;
            }
        }
        let mut raw = Vec::new();
        for (at, position, first, count) in prompt_rows {
            raw.push((at, RawLogits::Before(position, device.download_later(&logits.rows(first, count))?)));
        }
        for (at, (planned, sequence)) in plan.requests().iter().zip(&sequences).enumerate() {
            let wanted = self.observer.is_some() || sequence.wants_logits();
            if let Some(row) = planned.sample_row.filter(|_| wanted) {
                raw.push((at, RawLogits::Drawn(device.download_later(&logits.rows(row as usize, 1))?)));
            }
        }
        Ok((logits.rows(0, samples), raw))
    }

    /// Positions whose logits tell about a token that is known and are wanted: those of the prompt for its log-probabilities,
    /// all for an observer.
    fn positions_before(&self, planned: &PlannedRequest, sequence: &Sequence) -> std::ops::Range<usize> {
        if self.observer.is_some() {
            return planned.start..planned.end() - usize::from(planned.samples());
        }
        if sequence.shared.request.params.prompt_logprobs.is_none() || sequence.index > 0 {
            return 0..0;
        }
        let end = planned.end().min(sequence.shared.prompt_len() - 1);
        (planned.end() - planned.logit_rows).min(end)..end
    }

    /// Queues the draw of a step, once everything before it is known.
    fn draw(&mut self, forward: Forward) -> StepInFlight {
        let Forward { plan, queued } = forward;
        self.step_observers.tell(|| Observation::Phase { phase: StepPhase::Sample, step: plan.step() });
        let mut rows: Vec<SampleRow<'_>> = Vec::with_capacity(plan.sample_rows());
        let drawn = plan.requests().iter().filter(|planned| planned.samples());
        rows.extend(drawn.map(|planned| match self.sequences.get(&planned.id) {
            Some((_, sequence)) if self.scheduler.is_live(planned) => sequence.sample_row(),
            _ => SampleRow::unused(planned.end()),
        }));
        let device = self.model.device().as_ref();
        let queued = queued.and_then(|(drawn_from, logits)| {
            let tokens = self.sampler.enqueue(device, self.model.arena(), &drawn_from, &rows)?;
            Ok(Downloads { tokens, logits })
        });
        drop(rows);
        self.hook.before_wait(&plan, &self.cache);
        StepInFlight { plan, queued }
    }

    /// Waits for a step and takes in what it brings.
    fn take_in(&mut self, step: StepInFlight) {
        let StepInFlight { plan, queued } = step;
        self.step_observers.tell(|| Observation::Phase { phase: StepPhase::Wait, step: plan.step() });
        let drawn = queued.and_then(|mut downloads| {
            let tokens: Vec<i32> =
                downloads.tokens.wait()?.as_chunks().0.iter().map(|&b| i32::from_le_bytes(b)).collect();
            Ok((tokens, downloads.logits))
        });
        self.step_observers.tell(|| Observation::Phase { phase: StepPhase::Update, step: plan.step() });
        let is_whole = drawn.is_ok();
        let mut taken: Vec<(Option<u32>, bool)> = vec![(None, false); plan.requests().len()];
        match drawn {
            Ok((tokens, logits)) => self.take_tokens(&plan, &tokens, logits, &mut taken),
            Err(error) => self.fail_step(&plan, &error),
        }
        let outcomes: Vec<Outcome<'_>> =
            taken.iter().map(|(token, stop)| Outcome { tokens: token.as_slice(), stop: *stop }).collect();
        if is_whole {
            self.step_observers.tell(|| Observation::Completed { plan: &plan, outcomes: &outcomes });
        }
        let finished = self.scheduler.complete(plan.step(), &outcomes).to_vec();
        for finished in finished {
            if let Some((id, sequence)) = self.sequences.get(&finished.id) {
                let (id, is_first) = (*id, sequence.index == 0);
                let group = self.groups.get_mut(&id).expect("a request lives as long as its completions");
                group.count(is_first, finished.cached_tokens, finished.preemptions);
            }
            self.end(finished.id, FinishReason::Length, None);
        }
        self.spare_plans.push(plan);
    }

    fn take_tokens(
        &mut self,
        plan: &StepPlan,
        tokens: &[i32],
        logits: Vec<(usize, RawLogits)>,
        taken: &mut [(Option<u32>, bool)],
    ) {
        let mut drawn_from: HashMap<usize, Vec<f32>> = HashMap::new();
        for (at, raw) in logits {
            let planned = &plan.requests()[at];
            if !self.scheduler.is_live(planned) {
                continue;
            }
            let (position, mut download) = match raw {
                RawLogits::Drawn(download) => (None, download),
                RawLogits::Before(position, download) => (Some(position), download),
            };
            match (floats(download.as_mut()), position) {
                (Ok(row), None) => {
                    self.observe(planned, planned.end() - 1, &row);
                    drawn_from.insert(at, row);
                }
                (Ok(rows), Some(first)) => {
                    self.observe(planned, first, &rows);
                    self.take_prompt_logits(planned, first, &rows);
                }
                (Err(error), _) => self.end(planned.id, FinishReason::Error, Some(error.into())),
            }
        }
        for (at, (planned, taken)) in plan.requests().iter().zip(taken).enumerate() {
            let Some(row) = planned.sample_row.filter(|_| self.scheduler.is_live(planned)) else { continue };
            let (id, sequence) = self.sequences.get_mut(&planned.id).expect("a live request has a sequence");
            let logits = drawn_from.get(&at).map(Vec::as_slice);
            match sequence.push(tokens[row as usize], logits, self.model.config()) {
                Ok(event) => {
                    *taken = (Some(event.step.token_id), sequence.is_stopped());
                    self.events.push((*id, Event::Token(event)));
                }
                Err(error) => self.end(planned.id, FinishReason::Error, Some(error)),
            }
        }
    }

    /// Shows rows of a request, the first of which is at `position`, to who wants to see them.
    fn observe(&mut self, planned: &PlannedRequest, position: usize, rows: &[f32]) {
        let Some(observer) = &mut self.observer else { return };
        let (request, completion) = (self.sequences[&planned.id].0, self.sequences[&planned.id].1.index);
        for (logits, position) in rows.chunks_exact(self.model.config().vocab_size).zip(position..) {
            observer.row(&ObservedRow { request, completion, position, logits });
        }
    }

    /// Takes in the logits of a request's tokens from `position` on, of which those of the prompt may be wanted.
    fn take_prompt_logits(&mut self, planned: &PlannedRequest, position: usize, rows: &[f32]) {
        let (id, sequence) = &self.sequences[&planned.id];
        if sequence.index > 0 {
            return;
        }
        let last = sequence.shared.prompt_len() - 1;
        let group = self.groups.get_mut(id).expect("a request lives as long as its completions");
        for (row, position) in rows.chunks_exact(self.model.config().vocab_size).zip(position..last) {
            group.take_prompt_logits(position, row);
        }
    }

    /// Nothing that a step did counts. After a fault that lasts, nothing will.
    fn fail_step(&mut self, plan: &StepPlan, error: &OpError) {
        self.step_observers.tell(|| Observation::Failed { plan, error });
        if matches!(error, OpError::DeviceLost(_) | OpError::Panicked { .. }) {
            self.lost = Some(error.clone());
            let mut all: Vec<RequestId> = self.sequences.keys().copied().collect();
            all.sort_unstable();
            for id in all {
                self.end(id, FinishReason::Error, Some(error.clone().into()));
            }
            return;
        }
        for planned in plan.requests() {
            if self.scheduler.is_live(planned) {
                self.end(planned.id, FinishReason::Error, Some(error.clone().into()));
            }
        }
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

/// A download of F32 values. The copy lies before one that was waited for, so that this does not block.
fn floats(download: &mut dyn Download) -> Result<Vec<f32>, OpError> {
    download.is_done()?;
    Ok(download.wait()?.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
}
