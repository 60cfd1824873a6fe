//! From a model and limits to an engine.

use std::sync::Arc;

use deepinfer_model::memory_plan::MemoryPlanError;
use deepinfer_model::tokenizer::Tokenizer;
use deepinfer_model::{GraphLimits, KvCache, LoadError, Model, StateStore, StepGraphs};
use deepinfer_ops::OpError;
use deepinfer_scheduler::{ConfigError, Scheduler, SchedulerConfig};

use crate::config::EngineConfig;
use crate::engine::{Engine, NoHook, Parts, StepHook};
use crate::memory::{EnginePlan, PROMPT_LOGIT_ROWS, advice};
use crate::observer::LogitsObserver;
use crate::sampler::Sampler;

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
        let (pages, state_slots, checkpoints) = (memory.pages, plan.request_slots(), memory.request.checkpoints);
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
        let cache = KvCache::new(&device, model.config(), model.numerics(), pages, state_slots + 1)?;
        let store = StateStore::new(&device, model.config(), model.numerics(), checkpoints)?;
        let sampler = Sampler::new(device.as_ref(), config.max_num_seqs)?;
        model.arena().reserve(usize::try_from(memory.needs.temporaries).unwrap_or(usize::MAX))?;
        let graphs = config.decode_graphs.unwrap_or_else(|| device.captures()).then(|| {
            StepGraphs::new(GraphLimits {
                requests: config.max_num_seqs,
                tokens: memory.request.limits.tokens,
                padding_slot: state_slots,
            })
        });
        let parts = Parts { model, tokenizer, cache, store, scheduler, sampler, graphs, hook, observer, max_model_len };
        Ok(Engine::new(parts))
    }
}
