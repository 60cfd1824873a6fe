//! The scheduler: requests come and go, steps are planned and complete.

mod admission;
mod completions;
mod intake;
mod step;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use crate::config::SchedulerConfig;
use crate::error::ConfigError;
use crate::fork::{Family, Stage};
use crate::kv::Kv;
use crate::ledger::Ledger;
use crate::plan::{CheckpointId, PageId, PlannedRequest, StepId};
use crate::prefix::{HashFn, page_hash};
use crate::request::{Finish, Finished, Outcome, Rank, Request, RequestId, RequestTable};
use crate::slots::SlotPool;
use crate::stats::Stats;

/// Decides which rows run in the next step, and owns the numbers of pages, state slots and checkpoints.
///
/// Events are [`add`](Self::add), [`abort`](Self::abort), [`schedule`](Self::schedule) and [`complete`](Self::complete).
/// Steps complete in the order in which they were planned; up to [`SchedulerConfig::depth`] can be in flight.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    requests: RequestTable,
    /// Keys of running requests, in order of rank.
    running: Vec<usize>,
    /// Keys of waiting requests.
    waiting: BTreeMap<Rank, usize>,
    /// Completions of one prompt that have not all started, by the name of completion 0.
    families: BTreeMap<RequestId, Family>,
    kv: Kv,
    slots: SlotPool,
    /// Steps in flight, the oldest in front.
    in_flight: VecDeque<StepRecord>,
    /// Records of completed steps, to be used again. The last one is filled while a step is planned.
    spare_records: Vec<StepRecord>,
    /// The last step that was planned.
    planned: StepId,
    last_was_prefill: bool,
    next_id: u64,
    next_arrival: u64,
    /// The first waiting request, if it could not be admitted, and the free pages that it takes: the search for a hit is
    /// not repeated before there are so many.
    blocked: Option<(RequestId, usize)>,
    /// Pages of the hit that is being considered.
    hit: Vec<PageId>,
    finished: Vec<Finished>,
    /// Requests that were preempted since the last step was planned.
    preempted: Vec<RequestId>,
    /// Tokens of the requests that do not run.
    waiting_tokens: usize,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    queried_tokens: u64,
    hit_tokens: u64,
    preemptions: u64,
    discarded_rows: u64,
}

/// What is remembered of a step in flight.
#[derive(Debug, Default)]
struct StepRecord {
    step: StepId,
    requests: Vec<RequestRecord>,
}

/// One request of a step in flight. The request may end or start again before the step completes.
#[derive(Debug)]
struct RequestRecord {
    key: usize,
    id: RequestId,
    generation: u32,
    rows: usize,
    samples: bool,
    restore: Option<CheckpointId>,
    save: Option<CheckpointId>,
}

impl Scheduler {
    /// A scheduler without requests.
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration cannot work.
    pub fn new(config: SchedulerConfig) -> Result<Self, ConfigError> {
        Self::with_hash(config, page_hash)
    }

    fn with_hash(config: SchedulerConfig, hash: HashFn) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            requests: RequestTable::default(),
            running: Vec::with_capacity(config.max_num_seqs),
            waiting: BTreeMap::new(),
            families: BTreeMap::new(),
            kv: Kv::new(&config, hash),
            slots: SlotPool::new(config.state_slots),
            in_flight: VecDeque::with_capacity(config.depth),
            spare_records: std::iter::repeat_with(StepRecord::default).take(config.depth).collect(),
            planned: StepId(0),
            last_was_prefill: false,
            next_id: 0,
            next_arrival: 0,
            blocked: None,
            hit: Vec::new(),
            finished: Vec::new(),
            waiting_tokens: 0,
            preempted: Vec::new(),
            counters: Counters::default(),
            config,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Ends a request without a result, wherever it is. Rows in flight are discarded when they come. Returns whether there
    /// was such a request: one that has ended already is not an error.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let key = self.requests.find(id);
        if let Some(key) = key {
            self.remove(key);
        }
        key.is_some()
    }

    /// Takes the results of `step`, the oldest one in flight: one outcome for each of the plan's requests, in their order.
    /// Outcomes of requests that ended or started again meanwhile are dropped; [`is_live`](Self::is_live) tells which.
    /// Returns the requests that ended by this.
    ///
    /// # Panics
    /// If `step` is not the oldest one in flight, if the number of outcomes is not that of the plan's requests, if a sampled
    /// request goes on without a token, or if there are more tokens than rows that were sampled.
    pub fn complete(&mut self, step: StepId, outcomes: &[Outcome<'_>]) -> &[Finished] {
        let mut record = self.in_flight.pop_front().expect("a step completes, but none is in flight");
        assert_eq!(record.step, step, "steps must complete in order");
        assert_eq!(record.requests.len(), outcomes.len(), "one outcome for each request of the step");
        self.kv.pool.complete(step);
        self.slots.complete(step);
        self.finished.clear();
        for (rows, outcome) in record.requests.drain(..).zip(outcomes) {
            if self.requests.is_live(rows.key, rows.id, rows.generation) {
                self.commit(step, &rows, outcome);
            } else {
                self.counters.discarded_rows += rows.rows as u64;
            }
            for checkpoint in rows.restore.into_iter().chain(rows.save) {
                self.kv.checkpoints.release(checkpoint);
            }
        }
        self.spare_records.push(record);
        &self.finished
    }

    /// Whether a planned request is still the one that was planned: false once it has ended or was preempted, so that what
    /// the step did for it is void.
    pub fn is_live(&self, planned: &PlannedRequest) -> bool {
        self.ledger(planned.id).is_some_and(|ledger| ledger.generation() == planned.generation)
    }

    /// Whether any request has not ended.
    pub fn has_requests(&self) -> bool {
        self.requests.len() > 0
    }

    /// Token counts of a request that has not ended.
    pub fn ledger(&self, id: RequestId) -> Option<&Ledger> {
        self.requests.find(id).map(|key| &self.requests[key].ledger)
    }

    /// Prompt and committed output of a request that has not ended.
    pub fn tokens(&self, id: RequestId) -> Option<&[u32]> {
        self.requests.find(id).map(|key| self.requests[key].tokens.as_slice())
    }

    /// Preempts a running request, as if its pages were needed. Its output stays and it will run again; what it gets must not
    /// depend on it, which is what this is for. Returns whether the request was running.
    pub fn preempt(&mut self, id: RequestId) -> bool {
        let key = self.requests.find(id);
        let at = key.and_then(|key| self.running.iter().position(|&k| k == key));
        if let Some(at) = at {
            self.preempt_running(at);
        }
        at.is_some()
    }

    /// Forgets up to `pages` cached pages that nobody uses, those that were not used for longest. Returns how many there were.
    pub fn evict(&mut self, pages: usize) -> usize {
        self.kv.evict(pages)
    }

    /// Forgets all cached pages and checkpoints. Running requests keep theirs; what they run until they end or start again is
    /// not cached.
    pub fn reset_prefix_cache(&mut self) {
        self.kv.forget_all();
        for request in self.requests.iter_mut() {
            request.chain = None;
        }
        for family in self.families.values_mut() {
            if let Stage::Forked { point, .. } = &mut family.stage {
                point.chain = None;
            }
        }
    }

    /// Numbers for people and dashboards.
    pub fn stats(&self) -> Stats {
        Stats {
            running: self.running.len(),
            waiting: self.waiting(),
            waiting_tokens: self.waiting_tokens,
            in_flight: self.in_flight.len(),
            usable_pages: self.config.usable_pages(),
            free_pages: self.kv.pool.free(),
            retiring_pages: self.kv.pool.retiring(),
            cached_pages: self.kv.prefix.len(),
            checkpoints: self.kv.checkpoints.attached(),
            queried_tokens: self.counters.queried_tokens,
            hit_tokens: self.counters.hit_tokens,
            preemptions: self.counters.preemptions,
            discarded_rows: self.counters.discarded_rows,
            steps: self.planned.0,
        }
    }

    /// Takes in what `step` did for a request.
    fn commit(&mut self, step: StepId, rows: &RequestRecord, outcome: &Outcome<'_>) {
        let key = rows.key;
        let request = &mut self.requests[key];
        let tokens = outcome.tokens;
        assert!(!rows.samples || outcome.stop || !tokens.is_empty(), "request {:?} goes on without a token", rows.id);
        request.ledger.settle(step, tokens.len());
        request.tokens.extend_from_slice(tokens);
        request.prompt_logits_done = request.prompt_logits_done.max(request.ledger.computed());
        self.register_pages(key);
        if let Some(checkpoint) = rows.save {
            self.attach_checkpoint(key, checkpoint);
        }
        self.fork_if_due(key, rows.save);
        let request = &self.requests[key];
        let reason = if outcome.stop {
            Finish::Stop
        } else if request.ledger.len() >= request.max_len {
            Finish::Length
        } else {
            return;
        };
        let request = self.remove(key);
        self.finished.push(Finished {
            id: request.id,
            reason,
            output_tokens: request.ledger.output_len(),
            cached_tokens: request.cached_tokens.unwrap_or(0),
            preemptions: request.preemptions,
        });
    }

    /// Tells the prefix cache about pages that have become full. Where it knows the same contents already, the request takes
    /// over the known page, so that equal prefixes share memory even if they ran at the same time.
    fn register_pages(&mut self, key: usize) {
        let page_tokens = self.config.page_tokens;
        let request = &mut self.requests[key];
        while let Some(parent) = request.chain
            && (request.registered + 1) * page_tokens <= request.ledger.computed()
        {
            let index = request.registered;
            request.page_hash(index, &self.kv.prefix, page_tokens);
            let own = request.pages[index];
            let known = self.kv.register(&request.page_key(index, parent, page_tokens), own);
            if let Some(known) = known.filter(|&known| known != own) {
                self.kv.pool.hold(known);
                self.kv.pool.release(own, request.last_step);
                request.pages[index] = known;
            }
            request.chain = known.map(|known| self.kv.as_parent(known));
            request.registered += usize::from(known.is_some());
        }
    }

    /// Makes a saved checkpoint one that hits can end at.
    fn attach_checkpoint(&mut self, key: usize, checkpoint: CheckpointId) {
        let request = &self.requests[key];
        let computed = request.ledger.computed();
        if request.chain.is_some() && computed == request.registered * self.config.page_tokens {
            self.kv.attach(checkpoint, request.pages[request.registered - 1]);
        }
    }

    /// Takes a request out, with all that it holds.
    fn remove(&mut self, key: usize) -> Request {
        self.leave_family(key);
        let request = self.requests.remove(key);
        self.waiting.remove(&request.rank);
        match request.slot {
            Some(slot) => {
                let at = self.running.iter().position(|&k| k == key).expect("whoever has a slot is running");
                self.running.remove(at);
                self.slots.release(slot, request.last_step);
            }
            None => self.waiting_tokens -= request.ledger.len(),
        }
        self.kv.release_all(&request.pages, request.last_step);
        request
    }
}
