//! What one step does, as data.

use std::ops::Range;

use crate::request::RequestId;

/// Number of a page on the device, as kernels take it.
pub type PageId = u32;
/// Number of a state slot on the device.
pub type SlotId = u32;
/// Number of a checkpoint: a place for a copy of a state slot.
pub type CheckpointId = u32;

/// Number of a step, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StepId(pub u64);

/// Which rows a step may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// Prefill chunks and decode rows.
    Mixed,
    /// Prefill chunks only.
    Prefill,
    /// Decode rows only.
    Decode,
}

/// What the rows of a request are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Tokens that were known when the request (re)started: the prompt, and after a preemption the output so far.
    Prefill,
    /// The last token, and drafts after it.
    Decode,
}

/// Where the token of the first row of a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenSource {
    /// In [`StepPlan::tokens`].
    Host,
    /// On the device: what `step`, which is in flight, draws for its row `row`, a value of
    /// [`PlannedRequest::sample_row`] there. [`StepPlan::tokens`] holds 0 in its place.
    Device {
        /// The step.
        step: StepId,
        /// Its row among the rows that the step samples.
        row: u32,
    },
}

/// A copy of a whole page, to be made before the rows of the step run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageCopy {
    /// Page to read.
    pub from: PageId,
    /// Page to write.
    pub to: PageId,
}

/// The rows of one request in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedRequest {
    /// The request.
    pub id: RequestId,
    /// Which start of the request this belongs to: a preempted request starts again.
    pub generation: u32,
    /// Its state slot.
    pub slot: SlotId,
    /// Position of the first row: the number of tokens that ran before. While drafts of the request are in flight, they count
    /// as accepted; see [`unverified`](Self::unverified).
    pub start: usize,
    /// Rows, at least one.
    pub rows: usize,
    /// Number of the first row within the step.
    pub first_row: usize,
    /// What the rows are.
    pub phase: Phase,
    /// Where the token of the first row is. Rows after the first of a decoding request are drafts, which are where the drafter
    /// left them; their places in [`StepPlan::tokens`] hold 0.
    pub source: TokenSource,
    /// Drafts of the request in steps in flight: the device subtracts from `start` those of them that it rejects.
    pub unverified: usize,
    /// How many of the rows, counted from the last, need logits.
    pub logit_rows: usize,
    /// Where the request's rows begin among all rows of the step that need logits.
    pub first_logit_row: usize,
    /// Where its token (with drafts, its tokens) goes in the output of the step's sampler; `None` if nothing is drawn.
    pub sample_row: Option<u32>,
    /// The slot must be cleared before the rows run: the request starts at position 0.
    pub reset_slot: bool,
    /// Checkpoint to copy to the slot before the rows run.
    pub restore: Option<CheckpointId>,
    /// Checkpoint that the slot is to be copied to after the rows ran.
    pub save: Option<CheckpointId>,
    pub(crate) pages: Range<usize>,
}

impl PlannedRequest {
    /// Whether the last row's logits (with drafts, all rows' logits) are sampled.
    pub fn samples(&self) -> bool {
        self.sample_row.is_some()
    }

    /// Position after the last row.
    pub fn end(&self) -> usize {
        self.start + self.rows
    }
}

/// One step. On the device, in this order: page copies, then slots cleared and checkpoints restored, then the rows, then
/// checkpoints saved.
///
/// The caller owns the plan and hands it to [`Scheduler::schedule`](crate::Scheduler::schedule) again and again; its buffers
/// are reused. With several steps in flight, each needs its own plan.
#[derive(Debug, Clone, Default)]
pub struct StepPlan {
    pub(crate) step: StepId,
    pub(crate) requests: Vec<PlannedRequest>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) page_table: Vec<PageId>,
    pub(crate) page_copies: Vec<PageCopy>,
    pub(crate) preempted: Vec<RequestId>,
    pub(crate) logit_rows: usize,
    pub(crate) sample_rows: u32,
}

impl StepPlan {
    /// The number of the step.
    pub fn step(&self) -> StepId {
        self.step
    }

    /// Requests with rows in this step, in the order of their rows.
    pub fn requests(&self) -> &[PlannedRequest] {
        &self.requests
    }

    /// Whether the step has no rows.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Rows of the step.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Token of each row; 0 where it is on the device ([`TokenSource::Device`], and drafts).
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens of the rows of `request`, one of [`requests`](Self::requests).
    pub fn tokens_of(&self, request: &PlannedRequest) -> &[u32] {
        &self.tokens[request.first_row..request.first_row + request.rows]
    }

    /// Pages of `request`, one of [`requests`](Self::requests), up to that of its last row.
    pub fn pages_of(&self, request: &PlannedRequest) -> &[PageId] {
        &self.page_table[request.pages.clone()]
    }

    /// Pages to copy before the rows run.
    pub fn page_copies(&self) -> &[PageCopy] {
        &self.page_copies
    }

    /// Requests that were preempted since the step before was planned, for this one or by
    /// [`Scheduler::preempt`](crate::Scheduler::preempt). Some may have ended since, and some may have rows in this step again.
    pub fn preempted(&self) -> &[RequestId] {
        &self.preempted
    }

    /// Rows that need logits.
    pub fn logit_rows(&self) -> usize {
        self.logit_rows
    }

    /// Requests that are sampled.
    pub fn sample_rows(&self) -> usize {
        self.sample_rows as usize
    }

    pub(crate) fn clear(&mut self, step: StepId) {
        self.step = step;
        self.requests.clear();
        self.tokens.clear();
        self.page_table.clear();
        self.page_copies.clear();
        self.preempted.clear();
        self.logit_rows = 0;
        self.sample_rows = 0;
    }
}
