//! A scheduler, a device, and people who send requests and know what they must get.

use std::collections::{BTreeMap, VecDeque};

use crate::config::SchedulerConfig;
use crate::error::AddError;
use crate::plan::{Phase, PlannedRequest, StepId, StepPlan, TokenSource};
use crate::prefix::{HashFn, page_hash};
use crate::request::{Finish, Finished, Outcome, RequestId, RequestSpec};
use crate::scheduler::Scheduler;

use super::device::{Content, Device, drafts, next_token};

/// A request as its sender sees it, and a ledger kept by adding up what happened.
pub(super) struct Client {
    pub(super) tokens: Vec<u32>,
    content: Content,
    prompt: usize,
    max_tokens: usize,
    /// Length of the output at which the sender finds a stop.
    stop_at: usize,
    prompt_logits: bool,
    generation: u32,
    computed: usize,
    /// Steps in flight: rows, and tokens that each may draw.
    in_flight: VecDeque<(StepId, usize, usize)>,
    /// Prompt positions whose logits came, each once.
    logits: Vec<usize>,
    /// Preemptions that the test forced.
    pub(super) forced: u32,
}

impl Client {
    fn output(&self) -> usize {
        self.tokens.len() - self.prompt
    }
}

/// How often things happened, so that a test of random events can show that they did.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Seen {
    pub(super) device_tokens: u64,
    pub(super) unverified_starts: u64,
    pub(super) hits: u64,
    /// Hits of requests with a salt or attachments.
    pub(super) content_hits: u64,
    pub(super) forks: u64,
    pub(super) saves: u64,
    /// Preemptions for want of pages.
    pub(super) preemptions: u64,
    /// Requests that were preempted as often as possible.
    pub(super) reserved: u64,
    pub(super) discarded_rows: u64,
    pub(super) stops: u64,
    /// Requests that were refused because too many waited.
    pub(super) queue_full: u64,
}

impl Seen {
    fn counts(&mut self) -> [&mut u64; 11] {
        let Self {
            device_tokens,
            unverified_starts,
            hits,
            content_hits,
            forks,
            saves,
            preemptions,
            reserved,
            discarded_rows,
            stops,
            queue_full,
        } = self;
        [
            device_tokens,
            unverified_starts,
            hits,
            content_hits,
            forks,
            saves,
            preemptions,
            reserved,
            discarded_rows,
            stops,
            queue_full,
        ]
    }

    pub(super) fn add(&mut self, other: &Self) {
        let mut other = *other;
        for (count, more) in self.counts().into_iter().zip(other.counts()) {
            *count += *more;
        }
    }

    /// How often the rarest happened.
    pub(super) fn least(mut self) -> u64 {
        self.counts().into_iter().map(|count| *count).min().unwrap_or(0)
    }
}

pub(super) struct World {
    pub(super) seen: Seen,
    pub(super) scheduler: Scheduler,
    pub(super) device: Device,
    pub(super) clients: BTreeMap<RequestId, Client>,
    pub(super) in_flight: VecDeque<StepPlan>,
    pub(super) ended: Vec<(Finished, Vec<u32>)>,
    /// Preemptions that plans have told of.
    told_preemptions: u64,
    plans: Vec<StepPlan>,
}

impl World {
    pub(super) fn new(config: SchedulerConfig) -> Self {
        Self::with_hash(config, page_hash)
    }

    pub(super) fn with_hash(config: SchedulerConfig, hash: HashFn) -> Self {
        let device = Device::new(&config);
        let scheduler = Scheduler::with_hash(config, hash).expect("a valid configuration");
        Self {
            seen: Seen::default(),
            scheduler,
            device,
            clients: BTreeMap::new(),
            in_flight: VecDeque::new(),
            ended: Vec::new(),
            told_preemptions: 0,
            plans: Vec::new(),
        }
    }

    /// Sends a request whose output has `max_tokens` tokens.
    pub(super) fn add(&mut self, spec: RequestSpec<'_>) -> Result<RequestId, AddError> {
        self.add_stopping(spec, usize::MAX)
    }

    /// Sends a request whose output ends at `stop_at` tokens, if it gets there.
    pub(super) fn add_stopping(&mut self, spec: RequestSpec<'_>, stop_at: usize) -> Result<RequestId, AddError> {
        let first = self.scheduler.add(spec)?;
        for index in 0..spec.n {
            let client = Client {
                tokens: spec.prompt.to_vec(),
                content: Content::of(&spec),
                prompt: spec.prompt.len(),
                max_tokens: spec.max_tokens,
                stop_at,
                prompt_logits: spec.prompt_logits && index == 0,
                generation: 0,
                computed: 0,
                in_flight: VecDeque::new(),
                logits: Vec::new(),
                forced: 0,
            };
            self.clients.insert(first.completion(index), client);
        }
        Ok(first)
    }

    pub(super) fn abort(&mut self, id: RequestId) {
        assert_eq!(self.scheduler.abort(id), self.clients.remove(&id).is_some());
        assert!(!self.scheduler.abort(id), "a second abort finds nothing");
    }

    pub(super) fn preempt(&mut self, id: RequestId) {
        if self.scheduler.preempt(id) {
            self.clients.get_mut(&id).expect("a client").forced += 1;
            self.note_restarts();
        }
    }

    /// Plans a step and puts it in flight.
    pub(super) fn schedule(&mut self) -> Option<&StepPlan> {
        let mut plan = self.plans.pop().unwrap_or_default();
        let step = self.scheduler.schedule(&mut plan);
        self.note_restarts();
        let Some(step) = step else {
            assert!(plan.is_empty());
            self.plans.push(plan);
            return None;
        };
        assert_eq!((plan.step(), plan.rows() > 0), (step, true));
        self.check_plan(&plan);
        for request in plan.requests() {
            let client = self.clients.get_mut(&request.id).expect("planned requests have not ended");
            let drawn = if request.samples() { 1 + drafts(request) } else { 0 };
            if client.in_flight.is_empty() && client.computed == 0 {
                client.computed = request.start;
            }
            client.in_flight.push_back((step, request.rows, drawn));
            self.seen.device_tokens += u64::from(request.source != TokenSource::Host);
            self.seen.unverified_starts += u64::from(request.unverified > 0);
            self.seen.hits += u64::from(request.restore.is_some());
            self.seen.content_hits += u64::from(request.restore.is_some() && client.content != Content::default());
            self.seen.saves += u64::from(request.save.is_some());
        }
        self.seen.forks += plan.page_copies().len() as u64;
        self.told_preemptions += plan.preempted().len() as u64;
        assert_eq!(self.told_preemptions, self.scheduler.stats().preemptions, "plans tell of every preemption once");
        self.device.run(&plan, |id| &self.clients[&id].content);
        self.in_flight.push_back(plan);
        self.in_flight.back()
    }

    /// Hands the results of the oldest step in flight to the scheduler. Returns false if there is none.
    pub(super) fn complete(&mut self) -> bool {
        let Some(plan) = self.in_flight.pop_front() else { return false };
        let mut outcomes = Vec::with_capacity(plan.requests().len());
        for request in plan.requests() {
            let live = self.scheduler.is_live(request);
            assert!(!live || self.clients.contains_key(&request.id));
            let drawn = request.sample_row.map_or(&[][..], |row| self.device.drawn(plan.step(), row));
            let client = self.clients.get_mut(&request.id).filter(|_| live);
            let outcome = client.map(|client| take_results(client, request, drawn));
            // Results that will be dropped are given as they came.
            outcomes.push(outcome.unwrap_or(Outcome::tokens(drawn)));
        }
        let finished = self.scheduler.complete(plan.step(), &outcomes).to_vec();
        for finished in finished {
            let client = self.clients.remove(&finished.id).expect("requests end once");
            let expected = client.max_tokens.min(client.stop_at);
            assert_eq!((finished.output_tokens, client.output()), (expected, expected));
            let reason = if client.output() == client.stop_at { Finish::Stop } else { Finish::Length };
            assert_eq!(finished.reason, reason);
            let bound = self.scheduler.config().reserve_after + client.forced;
            assert!(finished.preemptions <= bound, "preempted {} times, at most {bound}", finished.preemptions);
            if client.prompt_logits {
                assert_eq!(client.logits, (0..client.prompt).collect::<Vec<_>>(), "prompt logits");
            }
            self.seen.stops += u64::from(reason == Finish::Stop);
            self.seen.preemptions += u64::from(finished.preemptions.saturating_sub(client.forced));
            self.seen.reserved += u64::from(finished.preemptions == bound && client.forced == 0 && bound > 0);
            self.ended.push((finished, client.tokens));
        }
        self.note_restarts();
        // The step after this one may still read its tokens; it has run.
        self.device.forget(plan.step());
        self.plans.push(plan);
        true
    }

    /// Plans and completes steps, as many in flight as possible, until there are no requests.
    pub(super) fn drain(&mut self) {
        let reserve_after = self.scheduler.config().reserve_after;
        let starts = |client: &Client| (reserve_after + client.forced + 2) as usize;
        // Every step has a row of some request's some start, and only rows of the last steps in flight come to nothing.
        let mut left: usize = self.clients.values().map(|c| (c.prompt + c.max_tokens) * starts(c)).sum();
        left += 2 * self.scheduler.config().depth;
        while self.scheduler.has_requests() {
            left = left.checked_sub(1).expect("requests end within a bound");
            while self.schedule().is_some() {}
            assert!(self.complete(), "requests are left, but nothing runs");
        }
        while self.complete() {}
        self.seen.discarded_rows = self.scheduler.stats().discarded_rows;
    }

    /// One step at a time until there are no requests, each plan shown to `see`.
    pub(super) fn run(&mut self, mut see: impl FnMut(&StepPlan)) {
        while self.scheduler.has_requests() {
            see(self.schedule().expect("requests are left, but nothing runs"));
            self.complete();
        }
    }

    /// Client-side ledgers of requests that were preempted start again.
    fn note_restarts(&mut self) {
        for (&id, client) in &mut self.clients {
            let generation = self.scheduler.ledger(id).expect("clients' requests have not ended").generation();
            if client.generation != generation {
                client.generation = generation;
                client.computed = 0;
                client.in_flight.clear();
            }
        }
    }

    /// What must hold of every plan by itself.
    fn check_plan(&self, plan: &StepPlan) {
        let config = self.scheduler.config();
        assert!(plan.rows() <= config.max_num_batched_tokens);
        assert!(plan.requests().len() <= config.max_num_seqs);
        let (mut row, mut logit_row, mut sample_row) = (0, 0, 0);
        for request in plan.requests() {
            assert_eq!((request.first_row, request.first_logit_row), (row, logit_row));
            row += request.rows;
            logit_row += request.logit_rows;
            if let Some(at) = request.sample_row {
                assert_eq!(at, sample_row);
                assert!(request.logit_rows > 0);
                sample_row += 1;
            }
            assert_eq!(plan.pages_of(request).len(), config.pages_of(request.end()));
            assert!(
                config.long_prefill_token_threshold == 0
                    || request.phase == Phase::Decode
                    || request.rows <= config.long_prefill_token_threshold
            );
        }
        assert_eq!((row, logit_row, sample_row as usize), (plan.rows(), plan.logit_rows(), plan.sample_rows()));
        let decodes = plan.requests().iter().take_while(|r| r.phase == Phase::Decode).count();
        assert!(plan.requests()[decodes..].iter().all(|r| r.phase == Phase::Prefill), "decode rows come first");
        assert!(!config.pure_steps || decodes == 0 || decodes == plan.requests().len());
    }

    /// Compares the scheduler's ledgers with those of the clients.
    pub(super) fn check_ledgers(&self) {
        for (&id, client) in &self.clients {
            let ledger = self.scheduler.ledger(id).expect("clients' requests have not ended");
            let rows: usize = client.in_flight.iter().map(|f| f.1).sum();
            let drawn: usize = client.in_flight.iter().map(|f| f.2).sum();
            assert_eq!((ledger.prompt_len(), ledger.output_len()), (client.prompt, client.output()));
            assert_eq!(self.scheduler.tokens(id), Some(client.tokens.as_slice()));
            assert_eq!(ledger.placeholders(), drawn);
            assert_eq!(ledger.assumed_len(), client.tokens.len() + drawn);
            assert_eq!(ledger.steps_in_flight(), client.in_flight.len());
            // Where a start begins is the scheduler's choice, seen with its first rows.
            assert_eq!((ledger.computed(), ledger.scheduled()), (client.computed, client.computed + rows));
        }
    }
}

/// The client takes what was drawn, up to its stop, and checks it.
fn take_results<'a>(client: &mut Client, request: &PlannedRequest, drawn: &'a [u32]) -> Outcome<'a> {
    let (_, rows, most) = client.in_flight.pop_front().expect("a step in flight");
    assert_eq!(rows, request.rows);
    if client.prompt_logits {
        let prompt_rows = (request.end() - request.logit_rows..request.end()).filter(|&at| at < client.prompt);
        client.logits.extend(prompt_rows);
    }
    let room = client.stop_at.min(client.max_tokens) - client.output();
    let taken = &drawn[..drawn.len().min(room).min(most)];
    for &token in taken {
        assert_eq!(token, next_token(&client.tokens, &client.content), "token {} of {:?}", client.output(), request.id);
        client.tokens.push(token);
    }
    client.computed += rows - most.saturating_sub(taken.len().max(1));
    if client.output() == client.stop_at { Outcome::stop(taken) } else { Outcome { tokens: taken, stop: false } }
}
