//! Planning a step: decode rows, then chunks of running prefills, then new requests.

use crate::plan::{Phase, PlannedRequest, StepId, StepKind, StepPlan, TokenSource};

use super::admission::Start;
use super::{RequestRecord, Scheduler};

/// A step while it is planned.
struct Pass {
    step: StepId,
    /// Rows that it can still take.
    budget: usize,
    /// Rows of prompts with logits that it can still take.
    prompt_logits: usize,
}

/// The rows of one request, as decided.
struct Rows {
    key: usize,
    rows: usize,
    drafts: usize,
    phase: Phase,
    /// Set in the first step after a (re)start.
    start: Option<Start>,
}

impl Scheduler {
    /// Plans the next step into `plan` and returns its number. `None` if nothing can run now: there are no requests,
    /// [`depth`](crate::SchedulerConfig::depth) steps are in flight, or everything waits for results of those in flight.
    /// When no step is in flight and there are requests, there is always a step.
    ///
    /// With [`pure_steps`](crate::SchedulerConfig::pure_steps), prefill and decode steps alternate while there is work for
    /// both.
    pub fn schedule(&mut self, plan: &mut StepPlan) -> Option<StepId> {
        if !self.config.pure_steps {
            return self.schedule_kind(plan, StepKind::Mixed);
        }
        let (first, second) = match self.last_was_prefill {
            true => (StepKind::Decode, StepKind::Prefill),
            false => (StepKind::Prefill, StepKind::Decode),
        };
        self.schedule_kind(plan, first).or_else(|| self.schedule_kind(plan, second))
    }

    /// As [`schedule`](Self::schedule), for a step of the given kind: ranks that must agree on it decide it together. `None`
    /// also if there are no rows of this kind; a rank that gets it for one kind must be asked for the other in the end, since
    /// the pages that one waits for can be those of the other.
    pub fn schedule_kind(&mut self, plan: &mut StepPlan, kind: StepKind) -> Option<StepId> {
        let step = StepId(self.planned.0 + 1);
        plan.clear(step);
        if self.in_flight.len() >= self.config.depth {
            return None;
        }
        let (budget, prompt_logits) = (self.config.max_num_batched_tokens, self.config.prompt_logit_rows);
        let mut pass = Pass { step, budget, prompt_logits };
        if kind != StepKind::Prefill {
            self.plan_decodes(plan, &mut pass);
        }
        if kind != StepKind::Decode {
            self.plan_running_prefills(plan, &mut pass);
            self.plan_new(plan, &mut pass);
        }
        if plan.is_empty() {
            return None;
        }
        self.planned = step;
        std::mem::swap(&mut plan.preempted, &mut self.preempted);
        self.last_was_prefill = kind == StepKind::Prefill;
        let mut record = self.spare_records.pop().expect("one record for each step that can be in flight");
        record.step = step;
        self.in_flight.push_back(record);
        Some(step)
    }

    fn plan_decodes(&mut self, plan: &mut StepPlan, pass: &mut Pass) {
        let mut at = 0;
        while at < self.running.len() {
            let key = self.running[at];
            let ledger = &self.requests[key].ledger;
            let left = self.requests[key].max_len.saturating_sub(ledger.assumed_len());
            let from = ledger.scheduled();
            if !ledger.in_prefill() && left > 0 && pass.budget > 0 {
                let drafts = self.config.draft_tokens.min(left - 1).min(pass.budget - 1);
                // Drafts are run only on pages that are free anyway.
                let reached = self.reach(at, from + 1 + drafts, pass.step);
                if reached > from {
                    let (rows, drafts) = (reached - from, reached - from - 1);
                    self.plan_rows(plan, pass, Rows { key, rows, drafts, phase: Phase::Decode, start: None });
                }
            }
            at += 1;
        }
    }

    fn plan_running_prefills(&mut self, plan: &mut StepPlan, pass: &mut Pass) {
        let mut at = 0;
        while at < self.running.len() && pass.budget > 0 {
            if self.requests[self.running[at]].ledger.in_prefill() {
                self.plan_chunk(at, None, plan, pass);
            }
            at += 1;
        }
    }

    fn plan_new(&mut self, plan: &mut StepPlan, pass: &mut Pass) {
        while pass.budget > 0 && self.running.len() < self.config.max_num_seqs {
            let Some((_, &key)) = self.waiting.first_key_value() else { return };
            let promised = self.promised_pages();
            let Some(start) = self.try_admit(key, promised, pass.step) else { return };
            let at = self.running.iter().position(|&k| k == key).expect("it was just admitted");
            let before = plan.requests.len();
            self.plan_chunk(at, Some(start), plan, pass);
            assert!(plan.requests.len() > before, "an admitted request has pages for its first chunk");
        }
    }

    /// Plans the next prefill chunk of the running request at `at`, unless there is no page for it.
    fn plan_chunk(&mut self, at: usize, start: Option<Start>, plan: &mut StepPlan, pass: &mut Pass) {
        let key = self.running[at];
        let from = self.requests[key].ledger.scheduled();
        let end = self.chunk_end(key, pass);
        let reached = self.reach(at, end, pass.step);
        if reached > from {
            self.plan_rows(plan, pass, Rows { key, rows: reached - from, drafts: 0, phase: Phase::Prefill, start });
        }
    }

    /// Where the next prefill chunk ends: as far as the step and the chunk limit allow, but not beyond a position at which a
    /// checkpoint is wanted. The end of the last full page before the last token is one, whatever the interval, because that
    /// is where a hit of the same prompt ends.
    fn chunk_end(&self, key: usize, pass: &Pass) -> usize {
        let request = &self.requests[key];
        let (start, prefill_end) = (request.ledger.scheduled(), request.ledger.prefill_end());
        let mut limit = match self.config.long_prefill_token_threshold {
            0 => pass.budget,
            threshold => pass.budget.min(threshold),
        };
        if request.prompt_logits && start < request.ledger.prompt_len() {
            limit = limit.min(pass.prompt_logits.max(1));
        }
        let mut end = prefill_end.min(start + limit);
        let mut cut = |at: usize| {
            if at > start {
                end = end.min(at);
            }
        };
        if request.chain.is_some() {
            let page_tokens = self.config.page_tokens;
            let interval = page_tokens * self.config.checkpoint_pages;
            cut((start / interval + 1) * interval);
            cut((prefill_end - 1) / page_tokens * page_tokens);
        }
        if let Some(position) = self.fork_position(key) {
            cut(position);
        }
        end
    }

    /// Gives the running request at `at` pages for positions up to `end`, as far as there are any; preempts others only for
    /// the first one. Returns the position up to which it can run.
    fn reach(&mut self, at: usize, end: usize, step: StepId) -> usize {
        let (key, page_tokens) = (self.running[at], self.config.page_tokens);
        let request = &self.requests[key];
        let held = request.pages.len();
        if held * page_tokens >= end {
            return end;
        }
        let missing = self.config.pages_of(end) - held;
        let can_run = held * page_tokens > request.ledger.scheduled();
        if !can_run && !self.make_room(at, step) {
            return 0;
        }
        let pages = &mut self.requests[key].pages;
        for _ in 0..missing {
            let Some(page) = self.kv.take_page() else { break };
            pages.push(page);
        }
        end.min(pages.len() * page_tokens)
    }

    /// Sees to it that a page is free for the running request at `at`. If pages are about to become free anyway, the request
    /// waits for them; otherwise fork points are given up, and then requests of lower rank are preempted, the lowest first.
    /// Requests that are in this step already are spared, and so are those with all their pages reserved. A request that
    /// nobody can make room for waits, with what it has, until others end: whoever ranks higher can still preempt it.
    fn make_room(&mut self, at: usize, step: StepId) -> bool {
        loop {
            if self.kv.pool.free() > 0 {
                return true;
            }
            if self.kv.pool.retiring() > 0 {
                return false;
            }
            if self.drop_fork_point() {
                continue;
            }
            let may_go = |&key: &usize| {
                let request = &self.requests[key];
                !request.reserved && request.last_step != step
            };
            let Some(behind) = self.running[at + 1..].iter().rposition(may_go) else { return false };
            self.preempt_running(at + 1 + behind);
        }
    }

    /// Takes everything but the tokens from the running request at `at`. It waits in front of all that arrived later.
    pub(super) fn preempt_running(&mut self, at: usize) {
        let key = self.running.remove(at);
        let request = &mut self.requests[key];
        self.kv.release_all(&request.pages, request.last_step);
        request.pages.clear();
        let slot = request.slot.take().expect("running requests have slots");
        self.slots.release(slot, request.last_step);
        request.ledger.restart();
        self.waiting_tokens += request.ledger.len();
        request.preemptions += 1;
        self.counters.preemptions += 1;
        self.preempted.push(request.id);
        self.waiting.insert(request.rank, key);
    }

    /// Enters rows into the plan, the ledger and the record of the step.
    fn plan_rows(&mut self, plan: &mut StepPlan, pass: &mut Pass, planned: Rows) {
        let Rows { key, rows, drafts, phase, start: begin } = planned;
        let fork_position = self.fork_position(key);
        let request = &mut self.requests[key];
        let ledger = &mut request.ledger;
        let (start, unverified) = (ledger.scheduled(), ledger.unverified());
        let end = start + rows;
        let first_row = plan.tokens.len();
        let source = match ledger.sampling_step() {
            None => {
                plan.tokens.extend_from_slice(&request.tokens[start..end - drafts]);
                TokenSource::Host
            }
            Some(step) => {
                plan.tokens.push(0);
                TokenSource::Device { step, row: request.sample_row }
            }
        };
        plan.tokens.resize(first_row + rows, 0);

        let samples = ledger.begin(pass.step, rows, drafts);
        let sample_row = samples.then_some(plan.sample_rows);
        if samples {
            request.sample_row = plan.sample_rows;
            plan.sample_rows += 1;
        }
        let mut logit_rows = if samples { 1 + drafts } else { 0 };
        if request.prompt_logits && start < ledger.prompt_len() {
            logit_rows = logit_rows.max(end.saturating_sub(start.max(request.prompt_logits_done)));
            pass.prompt_logits = pass.prompt_logits.saturating_sub(logit_rows);
        }

        // With drafts the state holds rows that may be rejected, and where it ends is not known yet.
        let known_end = drafts == 0 && unverified == 0;
        let ends_page = request.chain.is_some() && end.is_multiple_of(self.config.page_tokens);
        let wanted = known_end && (ends_page || fork_position == Some(end));
        let save = if wanted { self.kv.take_checkpoint() } else { None };
        let restore = begin.as_ref().and_then(|begin| begin.restore);
        plan.page_copies.extend(begin.as_ref().and_then(|begin| begin.copy));

        let first_page = plan.page_table.len();
        plan.page_table.extend_from_slice(&request.pages[..end.div_ceil(self.config.page_tokens)]);
        plan.requests.push(PlannedRequest {
            id: request.id,
            generation: ledger.generation(),
            slot: request.slot.expect("running requests have slots"),
            start,
            rows,
            first_row,
            phase,
            source,
            unverified,
            logit_rows,
            first_logit_row: plan.logit_rows,
            sample_row,
            reset_slot: begin.is_some() && restore.is_none(),
            restore,
            save,
            pages: first_page..plan.page_table.len(),
        });
        plan.logit_rows += logit_rows;
        request.last_step = pass.step;
        pass.budget -= rows;
        let (id, generation) = (request.id, ledger.generation());
        let record = RequestRecord { key, id, generation, rows, samples, restore, save };
        self.spare_records.last_mut().expect("a record for the step that is planned").requests.push(record);
    }
}
