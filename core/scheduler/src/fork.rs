//! Several completions of one prompt.
//!
//! The *first* completion runs the prompt up to its last token, where the *fork point* is: its pages, and a checkpoint. The
//! others then start there, each with its own copy of the last, partly filled page; all run the last token themselves,
//! because each draws from its logits with its own noise. A fork point holds pages that no preemption can get back, so it is
//! given up when pages run out; completions that have not started then run the prompt like any other request.

use crate::kv::Kv;
use crate::plan::{CheckpointId, PageId, StepId};
use crate::prefix::Parent;

/// The completions of one prompt, until all have started.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) stage: Stage,
}

#[derive(Debug)]
pub(crate) enum Stage {
    /// The prompt is being run.
    Prompt {
        /// Key of the completion that runs it.
        first: usize,
        /// Keys of the others, which are neither waiting nor running.
        others: Vec<usize>,
    },
    /// The others can start.
    Forked {
        /// Where.
        point: ForkPoint,
        /// How many have not.
        waiting: usize,
    },
}

/// What a completion needs in order to start at the last token of the prompt.
#[derive(Debug)]
pub(crate) struct ForkPoint {
    /// Position of the last token of the prompt.
    pub(crate) position: usize,
    /// Held pages up to there; the last one is partly filled unless `position` is at the end of a page.
    pub(crate) pages: Vec<PageId>,
    /// Held copy of the state there.
    pub(crate) checkpoint: CheckpointId,
    /// How many of the pages the prefix cache knows, and how the chain goes on.
    pub(crate) registered: usize,
    pub(crate) chain: Option<Parent>,
    /// Last step that touches the pages on behalf of the fork point.
    pub(crate) last_step: StepId,
}

impl ForkPoint {
    pub(crate) fn release(self, kv: &mut Kv) {
        kv.release_all(&self.pages, self.last_step);
        kv.checkpoints.release(self.checkpoint);
    }
}
