//! Sizes and limits of an engine.

use deepinfer_scheduler::Policy;

use crate::request::Request;
use crate::switch::{SwitchError, switch, switch_if_set};

/// Switches asynchronous scheduling off when it is `0`.
const ASYNC_VARIABLE: &str = "DEEPINFER_ZERO_OVERHEAD_SCHEDULING";
/// Switches recorded decode steps off when it is `0`, and on for every backend when it is `1`.
const GRAPHS_VARIABLE: &str = "DEEPINFER_GRAPHS";
/// Requests at a time for which there is always room.
const FEW_SEQUENCES: usize = 8;

/// Sizes and limits, fixed when an engine is built.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Most requests that run at a time; more of them wait.
    pub max_num_seqs: usize,
    /// Most rows of a step: tokens of prompts, and one for each output that grows.
    pub max_num_batched_tokens: usize,
    /// Most rows of one prompt in a step; 0 is no limit besides that of the step.
    pub long_prefill_token_threshold: usize,
    /// Most tokens of a request, prompt and output together; `None` is the model's context.
    pub max_model_len: Option<usize>,
    /// Pages of 128 tokens for all requests, which bound the length of one; `None` is what `max_num_seqs` requests of full
    /// length need, or as many as `memory_utilization` leaves room for, which must be enough for one of them.
    pub pages: Option<usize>,
    /// Part of the device's free memory that may be used, above 0 and at most 1: for weights that are not loaded yet,
    /// temporaries and caches.
    pub memory_utilization: f64,
    /// Keep full pages for later requests with the same beginning.
    pub prefix_caching: bool,
    /// Copies of request states at which a hit of the prefix cache can end, or from which the completions of a request
    /// start; `None` is two for each of `max_num_seqs`.
    pub checkpoints: Option<usize>,
    /// Such a copy is taken at every multiple of this many pages of a prompt.
    pub checkpoint_pages: usize,
    /// Who is served first.
    pub policy: Policy,
    /// Most requests that may wait, completions counted one by one; `None` is no limit. A request that would exceed it is
    /// refused, unless nothing waits.
    pub max_num_queued_reqs: Option<usize>,
    /// Most tokens of waiting requests together, prompts and outputs so far; `None` is no limit. A request that would exceed
    /// it is refused, unless nothing waits.
    pub max_num_queued_tokens: Option<usize>,
    /// A step is all prefill or all decode, for ranks that must agree on its kind. Tokens are the same with it.
    pub pure_steps: bool,
    /// Part of the pages that must stay free when a request is admitted beside others.
    pub watermark: f64,
    /// Plan and queue the next step while one runs. Tokens are the same without it.
    pub async_scheduling: bool,
    /// Record decode steps and launch them again, padded to one of few shapes; `None` is where the backend captures graphs.
    /// Tokens are the same with and without it.
    pub decode_graphs: Option<bool>,
    /// Hand out pages in an order drawn from this seed, instead of ascending. Tokens are the same with any.
    pub page_order_seed: Option<u64>,
}

impl Default for EngineConfig {
    /// 256 requests, 8,192 rows, 90 % of the memory, prefix cache and asynchronous scheduling on.
    fn default() -> Self {
        Self {
            max_num_seqs: 256,
            max_num_batched_tokens: 8192,
            long_prefill_token_threshold: 0,
            max_model_len: None,
            pages: None,
            memory_utilization: 0.9,
            prefix_caching: true,
            checkpoints: None,
            checkpoint_pages: 1,
            policy: Policy::Fcfs,
            max_num_queued_reqs: None,
            max_num_queued_tokens: None,
            pure_steps: false,
            watermark: 0.01,
            async_scheduling: true,
            decode_graphs: None,
            page_order_seed: None,
        }
    }
}

impl EngineConfig {
    /// The defaults, without asynchronous scheduling if `DEEPINFER_ZERO_OVERHEAD_SCHEDULING` is `0`, and with recorded decode
    /// steps as `DEEPINFER_GRAPHS` says.
    ///
    /// # Errors
    /// A variable is neither `0` nor `1`.
    pub fn from_environment() -> Result<Self, SwitchError> {
        let (async_scheduling, decode_graphs) = (switch(ASYNC_VARIABLE, true)?, switch_if_set(GRAPHS_VARIABLE)?);
        Ok(Self { async_scheduling, decode_graphs, ..Self::default() })
    }

    /// These limits with the sizes of a program that runs a file of `lines` lines, if that is known: no more requests at a
    /// time than there are, with some room for lines of several completions.
    #[must_use]
    pub fn for_lines(self, lines: Option<u64>) -> Self {
        let most = lines.map_or(usize::MAX, |lines| usize::try_from(lines).unwrap_or(usize::MAX));
        Self { max_num_seqs: self.max_num_seqs.min(most.max(FEW_SEQUENCES)), ..self }
    }

    /// These limits with the sizes of a program that runs `request` and no other, on a model with this `context`: memory and
    /// the time to prepare it follow from the work. The request must be valid.
    #[must_use]
    pub fn for_request(self, request: &Request, context: usize) -> Self {
        let prompt = request.prompt_token_ids.len();
        let max_num_seqs = self.max_num_seqs.min(request.params.n);
        let tokens = prompt + request.params.output_limit(prompt, context);
        Self {
            max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens.min(prompt).max(max_num_seqs),
            max_model_len: Some(self.max_model_len.unwrap_or(context).min(tokens)),
            prefix_caching: false,
            // The completions start where one of them ran the prompt.
            checkpoints: Some(usize::from(request.params.n > 1)),
            ..self
        }
    }
}
