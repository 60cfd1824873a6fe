//! Requests that come in: what is refused, and where the others wait.

use crate::config::Policy;
use crate::error::AddError;
use crate::fork::{Family, Stage};
use crate::ledger::Ledger;
use crate::plan::StepId;
use crate::prefix::root_hash;
use crate::request::{Request, RequestId, RequestSpec};

use super::Scheduler;

impl Scheduler {
    /// Queues a request and returns its name, which is that of completion 0; see [`RequestId::completion`].
    ///
    /// # Errors
    /// [`AddError`] if the request can never run, or if too much waits already. Nothing has changed then.
    pub fn add(&mut self, spec: RequestSpec<'_>) -> Result<RequestId, AddError> {
        self.check(&spec)?;
        let first = RequestId(self.next_id);
        self.next_id += spec.n as u64;
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        let shared = spec.n > 1 && spec.prompt.len() > 1 && self.config.checkpoints > 0;
        let mut others = Vec::new();
        for index in 0..spec.n {
            let request = self.new_request(&spec, first.completion(index), arrival, index, shared.then_some(first));
            let rank = request.rank;
            self.waiting_tokens += request.ledger.len();
            let key = self.requests.insert(request);
            if shared && index > 0 {
                others.push(key);
            } else {
                self.waiting.insert(rank, key);
            }
        }
        if shared {
            let key = self.requests.find(first).expect("it was just added");
            self.families.insert(first, Family { stage: Stage::Prompt { first: key, others } });
        }
        Ok(first)
    }

    fn check(&self, spec: &RequestSpec<'_>) -> Result<(), AddError> {
        let (prompt, max_tokens) = (spec.prompt.len(), spec.max_tokens);
        if prompt == 0 {
            return Err(AddError::EmptyPrompt);
        }
        for (name, value) in [("max_tokens", max_tokens), ("n", spec.n)] {
            if value == 0 {
                return Err(AddError::NoOutput { name });
            }
        }
        let max_model_len = self.config.max_model_len;
        let total = prompt.saturating_add(max_tokens);
        if total > max_model_len {
            return Err(AddError::TooLong { prompt, max_tokens, max_model_len });
        }
        let needed = self.config.pages_of(total - 1);
        let available = self.config.usable_pages();
        if needed > available {
            let longest = available * self.config.page_tokens + 1;
            return Err(AddError::NeverFits { prompt, max_tokens, needed, available, longest });
        }
        self.check_queue(spec)
    }

    /// Whether the queue has room. An empty one always has, or a request with more than the limit would wait for ever.
    fn check_queue(&self, spec: &RequestSpec<'_>) -> Result<(), AddError> {
        if self.waiting() == 0 {
            return Ok(());
        }
        let (requests, tokens) = (self.config.max_num_queued_reqs, self.config.max_num_queued_tokens);
        for (name, unit, waiting, added, most) in [
            ("max_num_queued_reqs", "requests", self.waiting(), spec.n, requests),
            ("max_num_queued_tokens", "tokens", self.waiting_tokens, spec.n.saturating_mul(spec.prompt.len()), tokens),
        ] {
            if let Some(most) = most.filter(|&most| waiting.saturating_add(added) > most) {
                return Err(AddError::QueueFull { name, unit, waiting, added, most });
            }
        }
        Ok(())
    }

    /// Requests that have not ended and do not run.
    pub(super) fn waiting(&self) -> usize {
        self.requests.len() - self.running.len()
    }

    fn new_request(
        &self,
        spec: &RequestSpec<'_>,
        id: RequestId,
        arrival: u64,
        completion: usize,
        family: Option<RequestId>,
    ) -> Request {
        let priority = match self.config.policy {
            Policy::Fcfs => 0,
            Policy::Priority => spec.priority,
        };
        Request {
            id,
            rank: (priority, arrival, completion as u32),
            ledger: Ledger::new(spec.prompt.len(), self.config.depth),
            tokens: spec.prompt.to_vec(),
            max_len: spec.prompt.len() + spec.max_tokens,
            pages: Vec::new(),
            slot: None,
            last_step: StepId(0),
            sample_row: 0,
            preemptions: 0,
            reserved: false,
            cached_tokens: None,
            prompt_logits: spec.prompt_logits && completion == 0,
            prompt_logits_done: 0,
            root: root_hash(&self.config.cache_seed, spec.cache_salt),
            attachments: spec.attachments.to_vec(),
            hashes: Vec::new(),
            registered: 0,
            chain: None,
            family,
        }
    }
}
