//! Sizes of an engine: what its limits and the free memory of a device make of each other.
//!
//! A plan is made before the weights are loaded, so that what cannot work is refused at once. An engine that is built
//! without one divides the memory that is free beside its model in the same way.

use std::fmt;

use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::config::ModelConfig;
use deepinfer_model::memory_plan::{DevicePlan, FreeMemory, MemoryNeeds, MemoryPlanError, MemoryRequest, StepLimits};
use deepinfer_model::{KvCache, Model, Numerics};
use deepinfer_scheduler::{ConfigError, PAGE_TOKENS};

use crate::builder::BuildError;
use crate::config::EngineConfig;

/// Most rows of prompts in a step whose logits are reported: with a vocabulary of 129,280 tokens they take 126 MiB.
pub(crate) const PROMPT_LOGIT_ROWS: usize = 256;

/// What an engine takes of a device. [`fmt::Display`] writes it as a table.
#[derive(Clone, Debug, PartialEq)]
pub struct EnginePlan {
    pub(crate) config: EngineConfig,
    pub(crate) max_model_len: usize,
    memory: DevicePlan,
}

impl EnginePlan {
    /// The division of the memory.
    pub fn memory(&self) -> &DevicePlan {
        &self.memory
    }

    /// Most tokens of a request, prompt and output together.
    pub fn max_model_len(&self) -> usize {
        self.max_model_len
    }

    /// State slots of requests; the one after them is for rows that pad a step.
    pub(crate) fn request_slots(&self) -> usize {
        self.memory.request.slots - 1
    }
}

impl fmt::Display for EnginePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

impl EngineConfig {
    /// Divides free memory among a checkpoint and an engine of this configuration.
    ///
    /// # Errors
    /// The checkpoint does not fit its configuration, the limits contradict each other or the model, or the memory is not
    /// enough; the sentence then says what would be.
    pub fn plan(
        &self,
        checkpoint: &Checkpoint,
        numerics: Numerics,
        free: impl Into<FreeMemory>,
    ) -> Result<EnginePlan, BuildError> {
        let model = checkpoint.config();
        checkpoint.verify(model).map_err(deepinfer_model::LoadError::from)?;
        let limits = self.step_limits(model)?;
        let needs = MemoryNeeds::of_checkpoint(checkpoint, numerics, &limits)?;
        self.divide(free.into(), needs, limits, model)
    }

    /// Divides what is free beside a model that is loaded.
    pub(crate) fn plan_beside(&self, model: &Model) -> Result<EnginePlan, BuildError> {
        let limits = self.step_limits(model.config())?;
        let (free, _) = model.device().memory()?;
        self.divide(free.into(), MemoryNeeds::of_model(model, &limits)?, limits, model.config())
    }

    /// The largest step. With a given number of pages, no request is longer than they are.
    fn step_limits(&self, model: &ModelConfig) -> Result<StepLimits, BuildError> {
        let requests = self.max_num_seqs;
        if requests == 0 {
            let why = "one request must be able to run";
            return Err(ConfigError::TooSmall { name: "max_num_seqs", value: 0, least: 1, why }.into());
        }
        let most = self.pages.map_or(usize::MAX, |pages| pages.saturating_mul(PAGE_TOKENS).max(1));
        let rows = self.max_num_batched_tokens.max(requests);
        // Every request can have a row besides, of its output or of a prompt that waits for its turn.
        let logit_rows = rows.min(PROMPT_LOGIT_ROWS + requests);
        Ok(StepLimits { rows, requests, logit_rows, tokens: self.max_model_len(model)?.min(most) })
    }

    fn max_model_len(&self, model: &ModelConfig) -> Result<usize, BuildError> {
        let context = model.max_position_embeddings;
        let value = self.max_model_len.unwrap_or(context);
        if (2..=context).contains(&value) { Ok(value) } else { Err(BuildError::MaxModelLen { value, context }) }
    }

    fn divide(
        &self,
        free: FreeMemory,
        needs: MemoryNeeds,
        limits: StepLimits,
        model: &ModelConfig,
    ) -> Result<EnginePlan, BuildError> {
        let max_model_len = self.max_model_len(model)?;
        let divide = |max_num_seqs| DevicePlan::new(free, needs, self.memory_request(max_num_seqs, limits));
        let mut memory = divide(self.max_num_seqs).map_err(|source| {
            let fits = most_below(self.max_num_seqs, |max_num_seqs| divide(max_num_seqs).is_ok());
            BuildError::Memory { source, fits }
        })?;
        if self.pages.is_none() {
            // More than all requests at their longest would never be used.
            memory.pages = memory.pages.min(self.max_num_seqs.saturating_mul(KvCache::pages_for(max_model_len)));
        }
        Ok(EnginePlan { config: self.clone(), max_model_len, memory })
    }

    /// What is asked of the device's memory if `max_num_seqs` requests run at a time.
    fn memory_request(&self, max_num_seqs: usize, limits: StepLimits) -> MemoryRequest {
        MemoryRequest {
            utilization: self.memory_utilization,
            // A few more than requests, so that a new one need not wait for the last step of one that has ended, and one for
            // rows that pad a step.
            slots: max_num_seqs.saturating_add(max_num_seqs / 5 + 2),
            checkpoints: self.checkpoints.unwrap_or(max_num_seqs.saturating_mul(2)),
            pages: self.pages,
            limits,
        }
    }
}

/// The largest number from 1 to `end`, exclusive, that fits, if there is one and all smaller ones fit, too.
fn most_below(end: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
    let (mut least, mut beyond) = (0, end);
    while beyond - least > 1 {
        let middle = least + (beyond - least) / 2;
        if fits(middle) { least = middle } else { beyond = middle }
    }
    (least > 0).then_some(least)
}

/// The end of the sentence about memory that is not enough.
pub(crate) fn advice(source: &MemoryPlanError, fits: Option<usize>) -> String {
    match (source, fits) {
        (MemoryPlanError::Utilization { .. }, _) | (_, None) => String::new(),
        (_, Some(fits)) => format!("; a max_num_seqs of at most {fits} fits as well"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_number_that_fits() {
        for most in 0..20 {
            assert_eq!(most_below(20, |n| n <= most), (most > 0).then_some(most), "{most}");
        }
        assert_eq!(most_below(1, |_| true), None);
    }
}
