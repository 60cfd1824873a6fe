//! Steps of the model: planned, queued, drawn, waited for and taken in.
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

use deepinfer_model::{DeviceTokens, RequestRows, StepInput};
use deepinfer_ops::{Download, OpError, Tensor};
use deepinfer_scheduler::{Outcome, PlannedRequest, RequestId, StepId, StepPlan, TokenSource};

use crate::observer::ObservedRow;
use crate::output::FinishReason;
use crate::sampler::SampleRow;
use crate::sequence::Sequence;
use crate::telemetry::{Observation, StepPhase};

use super::{Engine, Event};

/// A step that was queued.
pub(super) struct StepInFlight {
    plan: StepPlan,
    pub(super) queued: Result<Downloads, OpError>,
}

/// What comes back of a step.
pub(super) struct Downloads {
    pub(super) tokens: Box<dyn Download>,
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
    /// Does a turn of work.
    pub(super) fn turn(&mut self) {
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
        let logits = match &self.graphs {
            None => self.model.enqueue(&self.cache, &input)?,
            Some(graphs) => self.model.enqueue_decode(&self.cache, &input, &mut graphs.borrow_mut())?,
        };

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
    pub(super) fn take_in(&mut self, step: StepInFlight) {
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
}

/// A download of F32 values. The copy lies before one that was waited for, so that this does not block.
fn floats(download: &mut dyn Download) -> Result<Vec<f32>, OpError> {
    download.is_done()?;
    Ok(download.wait()?.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
}
