//! Limits and sizes, fixed when the scheduler is made.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::ConfigError;
use crate::plan::PageId;

/// Tokens of a page.
pub const PAGE_TOKENS: usize = 128;

/// Who is served first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// First come, first served.
    #[default]
    Fcfs,
    /// The smallest [`RequestSpec::priority`](crate::RequestSpec::priority) first, then by arrival.
    Priority,
}

/// Limits of a step and sizes of the pools.
#[derive(Debug, Clone, PartialEq)]
pub struct SchedulerConfig {
    /// Most requests that run at a time.
    pub max_num_seqs: usize,
    /// Most rows of a step. At least `max_num_seqs * (1 + draft_tokens)`, so that every running request can have its rows.
    pub max_num_batched_tokens: usize,
    /// Most rows of one prefill chunk; 0 is no limit besides the rows of a step.
    pub long_prefill_token_threshold: usize,
    /// Most rows of prompts in a step whose logits are wanted, which take far more memory than others; each request that
    /// wants them has at least one.
    pub prompt_logit_rows: usize,
    /// Most tokens of a request, prompt and output together.
    pub max_model_len: usize,
    /// Who is served first.
    pub policy: Policy,
    /// Part of the pages that must stay free when a waiting request is admitted, in `0.0..1.0`. It is not asked for when
    /// nothing runs.
    pub watermark: f64,
    /// Most requests that may wait, completions counted one by one; `None` is no limit. A request that would exceed it is
    /// refused, unless nothing waits.
    pub max_num_queued_reqs: Option<usize>,
    /// Most tokens of waiting requests together, prompts and outputs so far; `None` is no limit. A request that would exceed
    /// it is refused, unless nothing waits.
    pub max_num_queued_tokens: Option<usize>,
    /// A step is all prefill or all decode, for ranks that must agree on its kind.
    pub pure_steps: bool,
    /// Most steps in flight: 1 waits for every result before the next step, 2 schedules one step ahead.
    pub depth: usize,
    /// Rows that a decoding request has besides the one of its last token, for drafts to be verified.
    pub draft_tokens: usize,
    /// Preemptions after which a request gets all pages that it can ever need before it runs again.
    pub reserve_after: u32,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Pages on the device, reserved ones included.
    pub pages: usize,
    /// Pages 0 to this are never handed out. Padding may write to them.
    pub reserved_pages: usize,
    /// Hand out pages in an order drawn from this seed; without one, ascending. What requests get must not depend on it,
    /// which is what this is for.
    pub page_order_seed: Option<u64>,
    /// State slots on the device; those beyond `max_num_seqs` spare a wait for requests whose last step is in flight.
    pub state_slots: usize,
    /// Keep full pages for later requests with the same beginning. Needs checkpoints.
    pub prefix_caching: bool,
    /// Copies of state slots that can be kept. With 0 there are no hits, and the completions of a request with `n > 1` run
    /// their prompts each. A step in flight holds those that it saves or restores; when all are held, none is saved.
    pub checkpoints: usize,
    /// With prefix caching, a prefill chunk ends at every multiple of this many pages, where a checkpoint is taken. 1 lets
    /// every full page of a prompt end a hit; larger numbers make longer chunks and fewer copies.
    pub checkpoint_pages: usize,
    /// What the contents of pages depend on besides tokens: digest of the weights, the numerics and the layout of pages.
    pub cache_seed: Vec<u8>,
}

impl SchedulerConfig {
    /// The defaults with `pages` pages and `state_slots` slots: at most `state_slots` requests and 8,192 rows, first come
    /// first served, a watermark of 1 %, two steps in flight, no drafts, no prefix cache.
    pub fn new(pages: usize, state_slots: usize) -> Self {
        Self {
            max_num_seqs: state_slots,
            max_num_batched_tokens: 8192.max(state_slots),
            long_prefill_token_threshold: 0,
            prompt_logit_rows: usize::MAX,
            max_model_len: usize::MAX,
            policy: Policy::Fcfs,
            watermark: 0.01,
            max_num_queued_reqs: None,
            max_num_queued_tokens: None,
            pure_steps: false,
            depth: 2,
            draft_tokens: 0,
            reserve_after: 3,
            page_tokens: PAGE_TOKENS,
            pages,
            reserved_pages: 0,
            page_order_seed: None,
            state_slots,
            prefix_caching: false,
            checkpoints: 0,
            checkpoint_pages: 1,
            cache_seed: Vec::new(),
        }
    }

    /// Pages that requests can have.
    pub fn usable_pages(&self) -> usize {
        self.pages.saturating_sub(self.reserved_pages)
    }

    /// Pages that `tokens` tokens lie in.
    pub fn pages_of(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page_tokens)
    }

    /// Pages that requests can have, in the order in which they are first handed out.
    pub(crate) fn page_order(&self) -> Vec<PageId> {
        let mut pages: Vec<PageId> = (self.reserved_pages as PageId..self.pages as PageId).collect();
        if let Some(seed) = self.page_order_seed {
            for at in (1..pages.len()).rev() {
                let noise = xxh3_64_with_seed(&(at as u64).to_le_bytes(), seed);
                pages.swap(at, (noise % (at as u64 + 1)) as usize);
            }
        }
        pages
    }

    /// Pages that admission leaves free.
    pub(crate) fn watermark_pages(&self) -> usize {
        (self.usable_pages() as f64 * self.watermark).ceil() as usize
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let at_least = |name, value: usize, least: usize, why| {
            if value >= least { Ok(()) } else { Err(ConfigError::TooSmall { name, value, least, why }) }
        };
        at_least("max_num_seqs", self.max_num_seqs, 1, "one request must be able to run")?;
        at_least("depth", self.depth, 1, "one step must be able to run")?;
        at_least("page_tokens", self.page_tokens, self.draft_tokens + 1, "a step must not reach over a whole page")?;
        at_least("pages", self.pages, self.reserved_pages + 1, "one page must be left besides the reserved ones")?;
        at_least("state_slots", self.state_slots, self.max_num_seqs, "each of max_num_seqs requests needs one")?;
        at_least("checkpoint_pages", self.checkpoint_pages, 1, "checkpoints lie at ends of pages")?;
        let rows = self.max_num_seqs.saturating_mul(1 + self.draft_tokens);
        let why = "each of max_num_seqs requests decodes 1 + draft_tokens rows in a step";
        at_least("max_num_batched_tokens", self.max_num_batched_tokens, rows, why)?;
        if self.prefix_caching {
            at_least("checkpoints", self.checkpoints, 1, "a hit of the prefix cache needs one")?;
        }
        for (name, value) in
            [("pages", self.pages), ("state_slots", self.state_slots), ("checkpoints", self.checkpoints)]
        {
            if value > i32::MAX as usize {
                return Err(ConfigError::TooLarge { name, value, most: i32::MAX as usize });
            }
        }
        if !(0.0..1.0).contains(&self.watermark) {
            return Err(ConfigError::Watermark { value: self.watermark });
        }
        Ok(())
    }
}
