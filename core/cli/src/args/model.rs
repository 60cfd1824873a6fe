//! Arguments of every command that runs a model: which one, where, and with how much at a time.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use deepinfer_engine::EngineConfig;
use deepinfer_model::Numerics;

use crate::failure::Failure;
use crate::numbers::{number, whole};

/// Most requests that run at a time.
const MOST_SEQUENCES: u64 = 1 << 16;
/// Most rows of a step.
const MOST_ROWS: u64 = 1 << 24;

/// Which model runs, how exactly, and where.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// Directory of the model: config.json, safetensors files, tokenizer.json
    ///
    /// The default is the directory in DEEPINFER_HF_MODEL_DIR, else a small model that is part of the program.
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,

    /// What is rounded while computing
    #[arg(long, value_name = "MODE", value_enum, default_value_t = NumericsPreset::Deploy)]
    pub(crate) numerics: NumericsPreset,

    /// Accelerator: auto, the name of a backend, or the path of a plugin
    ///
    /// A name or path may be followed by a colon and the number of a device, then by options for the
    /// plugin, as in `npu:1` or `./libmine_deepinfer_npu.so:0?mode=simulator&log=1`.
    /// The default is DEEPINFER_ACCELERATOR, else auto: the first that works, the processor last.
    /// See `deepinfer backends`.
    #[arg(long, value_name = "NAME|PATH", verbatim_doc_comment)]
    pub(crate) accelerator: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum NumericsPreset {
    /// Nothing: 32-bit floats throughout
    Exact,
    /// Only the caches, to their stored formats
    Cache,
    /// As in deployment: 16-bit activations, 8-bit inputs of quantised layers, stored caches
    Deploy,
}

impl NumericsPreset {
    pub(crate) fn numerics(self) -> Numerics {
        match self {
            Self::Exact => Numerics::EXACT,
            Self::Cache => Numerics::CACHE,
            Self::Deploy => Numerics::DEPLOY,
        }
    }
}

/// Limits of the engine. Tokens do not depend on them; memory and speed do.
#[derive(Debug, Args)]
#[command(next_help_heading = "Engine (memory and speed; tokens do not depend on it)")]
pub(crate) struct EngineArgs {
    /// Most requests that run at a time; more of them wait
    #[arg(long, value_name = "N", default_value = "256", allow_negative_numbers = true, value_parser = whole::<usize>(1..=MOST_SEQUENCES))]
    pub(crate) max_num_seqs: usize,

    /// Most rows of a step: tokens of prompts, and one for each output that grows
    #[arg(long, value_name = "N", default_value = "8192", allow_negative_numbers = true, value_parser = whole::<usize>(1..=MOST_ROWS))]
    pub(crate) max_num_batched_tokens: usize,

    /// Most tokens of a request, prompt and output together [default: the context of the model]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>(2..=u64::MAX))]
    pub(crate) max_model_len: Option<usize>,

    /// Run every prompt whole, also if an earlier one began alike
    ///
    /// With the cache a prompt runs in pieces of at most 128 tokens, since its state is kept at the end of every page.
    #[arg(long)]
    pub(crate) no_prefix_cache: bool,

    /// Part of the device's free memory that may be used, above 0 and at most 1
    #[arg(long, value_name = "PART", default_value = "0.9", allow_negative_numbers = true, value_parser = number::<f64>)]
    pub(crate) memory_utilization: f64,
}

impl EngineArgs {
    /// The configuration of the engine: these limits, and what the environment says.
    ///
    /// # Errors
    /// A variable of the environment is no switch.
    pub(crate) fn config(&self) -> Result<EngineConfig, Failure> {
        Ok(EngineConfig {
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_model_len: self.max_model_len,
            prefix_caching: !self.no_prefix_cache,
            memory_utilization: self.memory_utilization,
            ..EngineConfig::from_environment().map_err(Failure::input)?
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_those_of_the_model() {
        for preset in NumericsPreset::value_variants() {
            let value = preset.to_possible_value().unwrap();
            assert_eq!(Numerics::preset(value.get_name()), Some(preset.numerics()), "{preset:?}");
        }
    }
}
