//! Sizes and limits of an engine.

use std::sync::Arc;

use deepinfer_model::memory_plan::MemoryPlanError;
use deepinfer_model::tokenizer::Tokenizer;
use deepinfer_model::{KvCache, LoadError, Model, StateStore};
use deepinfer_ops::OpError;
use deepinfer_scheduler::{ConfigError, Policy, Scheduler, SchedulerConfig};

use crate::engine::{Engine, NoHook, Parts, StepHook};
use crate::memory::{EnginePlan, PROMPT_LOGIT_ROWS, advice};
use crate::observer::LogitsObserver;
use crate::request::Request;
use crate::sampler::Sampler;
use crate::switch::{SwitchError, switch};

/// Switches asynchronous scheduling off when it is `0`.
const ASYNC_VARIABLE: &str = "DEEPINFER_ZERO_OVERHEAD_SCHEDULING";
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
    /// Part of the memory that is free when the engine is built which its caches may take, above 0 and at most 1.
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
            page_order_seed: None,
        }
    }
}

impl EngineConfig {
    /// The defaults, without asynchronous scheduling if `DEEPINFER_ZERO_OVERHEAD_SCHEDULING` is `0`.
    ///
    /// # Errors
    /// The variable is neither `0` nor `1`.
    pub fn from_environment() -> Result<Self, SwitchError> {
        Ok(Self { async_scheduling: switch(ASYNC_VARIABLE, true)?, ..Self::default() })
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

/// Why an engine cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The limits contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A limit is beyond the model.
    #[error(
        "max_model_len is {value}, but the model has a context of {context} tokens; use at most that, and at least 2"
    )]
    MaxModelLen {
        /// What was asked for.
        value: usize,
        /// `max_position_embeddings`.
        context: usize,
    },
    /// The memory is not enough.
    #[error("{source}{}", advice(source, *fits))]
    Memory {
        /// What is missing.
        source: MemoryPlanError,
        /// Most requests at a time that would fit, all else being equal.
        fits: Option<usize>,
    },
    /// The checkpoint is refused, or the host cannot hold what describes it.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The device is at fault.
    #[error(transparent)]
    Device(#[from] OpError),
}

/// Builds an [`Engine`]; see [`Engine::builder`].
pub struct EngineBuilder {
    model: Model,
    tokenizer: Option<Arc<Tokenizer>>,
    config: EngineConfig,
    plan: Option<EnginePlan>,
    hook: Box<dyn StepHook>,
    observer: Option<Box<dyn LogitsObserver>>,
}

impl EngineBuilder {
    pub(crate) fn new(model: Model) -> Self {
        let config = EngineConfig::default();
        Self { model, tokenizer: None, config, plan: None, hook: Box::new(NoHook), observer: None }
    }

    /// The tokenizer of the model, without which there is no text and no stop string.
    #[must_use]
    pub fn tokenizer(mut self, tokenizer: Option<Arc<Tokenizer>>) -> Self {
        self.tokenizer = tokenizer;
        self
    }

    /// Sizes and limits.
    #[must_use]
    pub fn config(mut self, config: EngineConfig) -> Self {
        self.config = config;
        self
    }

    /// What [`EngineConfig::plan`] made of limits and memory before this model was loaded. It takes the place of
    /// [`EngineBuilder::config`].
    #[must_use]
    pub fn plan(mut self, plan: EnginePlan) -> Self {
        self.plan = Some(plan);
        self
    }

    /// What runs before each wait for the device.
    #[must_use]
    pub fn hook(mut self, hook: Box<dyn StepHook>) -> Self {
        self.hook = hook;
        self
    }

    /// Who sees the raw logits of every row.
    #[must_use]
    pub fn observe(mut self, observer: Box<dyn LogitsObserver>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Allocates the caches, and the temporaries of the largest step. Without a plan, they are those that the memory beside
    /// the model allows.
    ///
    /// # Errors
    /// The configuration contradicts itself, or the device has not enough memory.
    pub fn build(self) -> Result<Engine, BuildError> {
        let Self { model, tokenizer, config, plan, hook, observer } = self;
        let plan = match plan {
            Some(plan) => plan,
            None => config.plan_beside(&model)?,
        };
        let EnginePlan { ref config, max_model_len, .. } = plan;
        let memory = plan.memory();
        let (pages, state_slots, checkpoints) = (memory.pages, memory.request.slots, memory.request.checkpoints);
        let scheduler = Scheduler::new(SchedulerConfig {
            max_num_seqs: config.max_num_seqs,
            max_num_batched_tokens: config.max_num_batched_tokens.max(config.max_num_seqs),
            long_prefill_token_threshold: config.long_prefill_token_threshold,
            prompt_logit_rows: PROMPT_LOGIT_ROWS,
            max_model_len,
            policy: config.policy,
            max_num_queued_reqs: config.max_num_queued_reqs,
            max_num_queued_tokens: config.max_num_queued_tokens,
            pure_steps: config.pure_steps,
            watermark: config.watermark,
            depth: if config.async_scheduling { 2 } else { 1 },
            prefix_caching: config.prefix_caching,
            checkpoints,
            checkpoint_pages: config.checkpoint_pages,
            page_order_seed: config.page_order_seed,
            cache_seed: format!("{:?}", model.numerics()).into_bytes(),
            ..SchedulerConfig::new(pages, state_slots)
        })?;
        let device = model.device().clone();
        let cache = KvCache::new(&device, model.config(), model.numerics(), pages, state_slots)?;
        let store = StateStore::new(&device, model.config(), model.numerics(), checkpoints)?;
        let sampler = Sampler::new(device.as_ref(), config.max_num_seqs)?;
        model.arena().reserve(usize::try_from(memory.needs.temporaries).unwrap_or(usize::MAX))?;
        Ok(Engine::new(Parts { model, tokenizer, cache, store, scheduler, sampler, hook, observer, max_model_len }))
    }
}
