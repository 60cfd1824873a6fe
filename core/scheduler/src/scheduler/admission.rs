//! From waiting to running.

use crate::plan::{CheckpointId, PageCopy, PageId, StepId};
use crate::prefix::Parent;

use super::Scheduler;

/// What a request starts with.
pub(super) struct Start {
    /// Tokens that are there already.
    pub(super) tokens: usize,
    /// State at their end; without one the slot is cleared.
    pub(super) restore: Option<CheckpointId>,
    /// The partly filled page at their end, to be copied.
    pub(super) copy: Option<PageCopy>,
}

impl Scheduler {
    /// Admits `key`, the first waiting request, to `step` if slot and pages allow. Requests behind it never overtake it: what
    /// it needs becomes free in the end only if others do not take it first.
    ///
    /// A request must leave free, besides its own tokens so far, what running prefills still need (`promised` pages), and the
    /// watermark: otherwise the next decode steps would preempt it again. When nothing runs there is nobody to care for.
    pub(super) fn try_admit(&mut self, key: usize, promised: usize, step: StepId) -> Option<Start> {
        if self.slots.free() == 0 {
            return None;
        }
        loop {
            let alone = self.running.is_empty();
            let margin = if alone { 0 } else { promised + self.config.watermark_pages() };
            let id = self.requests[key].id;
            let free = self.kv.pool.free();
            if !alone && self.blocked.is_some_and(|(blocked, own)| blocked == id && free < own + margin) {
                return None;
            }
            let start = self.find_start(key);
            let request = &self.requests[key];
            let reserve = request.preemptions >= self.config.reserve_after;
            let tokens = if reserve { request.max_len - 1 } else { request.ledger.len() };
            let held_by_others = self.hit.iter().filter(|&&page| !self.kv.pool.is_free(page)).count();
            let own = self.config.pages_of(tokens) - held_by_others;
            if free >= own + margin {
                return Some(self.start(key, start, step, reserve));
            }
            if !alone || !self.drop_fork_point() {
                self.blocked = Some((id, own));
                return None;
            }
        }
    }

    /// Pages that running prefills have not taken yet.
    pub(super) fn promised_pages(&self) -> usize {
        let missing = |&key: &usize| {
            let request = &self.requests[key];
            self.config.pages_of(request.ledger.prefill_end()).saturating_sub(request.pages.len())
        };
        self.running.iter().map(missing).sum()
    }

    /// What is there of a waiting request already: a fork point, or a hit of the prefix cache. The pages are left in
    /// `self.hit`; nothing is held yet.
    fn find_start(&mut self, key: usize) -> Start {
        let mut pages = std::mem::take(&mut self.hit);
        pages.clear();
        if let Some(point) = self.fork_point(key) {
            let full = point.position / self.config.page_tokens;
            // The destination of the copy is known when a page is taken for it.
            let copy = point.pages.get(full).map(|&from| PageCopy { from, to: from });
            let start = Start { tokens: point.position, restore: Some(point.checkpoint), copy };
            pages.extend_from_slice(&point.pages[..full]);
            self.hit = pages;
            return start;
        }
        let restore = if self.config.prefix_caching { self.find_hit(key, &mut pages) } else { None };
        self.hit = pages;
        Start { tokens: self.hit.len() * self.config.page_tokens, restore, copy: None }
    }

    /// The longest chain of known pages that ends at a checkpoint and leaves a token to run.
    fn find_hit(&mut self, key: usize, pages: &mut Vec<PageId>) -> Option<CheckpointId> {
        let page_tokens = self.config.page_tokens;
        let request = &mut self.requests[key];
        let mut most = (request.ledger.len() - 1) / page_tokens;
        if request.prompt_logits {
            most = most.min(request.prompt_logits_done / page_tokens);
        }
        let mut parent = Parent::Root(request.root);
        let (mut restore, mut usable) = (None, 0);
        for index in 0..most {
            request.page_hash(index, &self.kv.prefix, page_tokens);
            let Some(page) = self.kv.prefix.find(&request.page_key(index, parent, page_tokens)) else { break };
            pages.push(page);
            parent = self.kv.as_parent(page);
            if let Some(checkpoint) = self.kv.prefix.checkpoint(page) {
                (restore, usable) = (Some(checkpoint), pages.len());
            }
        }
        pages.truncate(usable);
        restore
    }

    /// Gives `key` its slot and the pages that are there, and moves it to the running ones.
    fn start(&mut self, key: usize, mut start: Start, step: StepId, reserve: bool) -> Start {
        self.blocked = None;
        let from_fork = self.fork_point(key).is_some();
        // Everything that is there must be held before the first page or checkpoint is taken, which may be the same.
        for &page in &self.hit {
            self.kv.pool.hold(page);
        }
        if let Some(checkpoint) = start.restore {
            self.kv.checkpoints.hold(checkpoint);
        }
        if let Some(copy) = &mut start.copy {
            copy.to = self.kv.take_page().expect("admission counted it");
        }
        let request = &mut self.requests[key];
        request.slot = self.slots.take();
        request.reserved = reserve;
        request.pages.extend_from_slice(&self.hit);
        self.waiting_tokens -= request.ledger.len();
        request.cached_tokens.get_or_insert(start.tokens);
        if start.tokens > 0 {
            request.ledger.skip(start.tokens);
        }
        if from_fork {
            self.start_from_fork(key, start.copy.as_ref(), step);
        } else if self.config.prefix_caching {
            request.registered = self.hit.len();
            let last = self.hit.last();
            request.chain = Some(last.map_or(Parent::Root(request.root), |&page| self.kv.as_parent(page)));
            self.counters.queried_tokens += request.ledger.len() as u64;
            self.counters.hit_tokens += start.tokens as u64;
        }
        if reserve {
            let request = &mut self.requests[key];
            while request.pages.len() < self.config.pages_of(request.max_len - 1) {
                request.pages.push(self.kv.take_page().expect("admission counted it"));
            }
        }
        let rank = self.requests[key].rank;
        self.waiting.remove(&rank);
        let at = self.running.partition_point(|&other| self.requests[other].rank < rank);
        self.running.insert(at, key);
        // A first completion that starts where the others would fork leaves them nothing to wait for.
        self.fork_if_due(key, None);
        start
    }
}
