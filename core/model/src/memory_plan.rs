//! How a device's memory is divided before a model is loaded on it: what is fixed, and the pages that fit in the rest.
//!
//! [`MemoryNeeds`] is measured: the model is set up, and its largest step run, on a device that computes nothing and counts
//! allocations. So the figures are those of the real thing, and a change of the forward pass changes them.

use std::fmt::{self, Write};
use std::rc::Rc;

use deepinfer_ops::{CountingDevice, Device, OpError};
use serde::Serialize;

use crate::cache_format::PAGE_TOKENS;
use crate::checkpoint::{Checkpoint, TensorSpec, tensor_specs};
use crate::config::ModelConfig;
use crate::forward::Model;
use crate::inspect::render::{binary_unit, grouped};
use crate::inspect::stored_specs;
use crate::numerics::Numerics;
use crate::state::KvCache;
use crate::step::{RequestRows, StepInput};
use crate::weights::{LoadError, TablePlace};

/// Part of the free memory that is used if nobody says otherwise.
pub const DEFAULT_UTILIZATION: f64 = 0.9;

/// Memory that a plan may divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FreeMemory {
    /// Free bytes of the device.
    pub device: u64,
    /// Free bytes of the host's memory that the device reads; `None` if it reads none.
    pub host: Option<u64>,
}

impl FreeMemory {
    /// What is free now.
    ///
    /// # Errors
    /// The device does not answer.
    pub fn of(device: &dyn Device) -> Result<Self, OpError> {
        Ok(Self { device: device.memory()?.0, host: device.host_memory()? })
    }
}

impl From<u64> for FreeMemory {
    /// Of the device alone.
    fn from(device: u64) -> Self {
        Self { device, host: None }
    }
}

/// The largest step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StepLimits {
    /// Most rows.
    pub rows: usize,
    /// Most requests.
    pub requests: usize,
    /// Most rows whose logits are wanted.
    pub logit_rows: usize,
    /// Most tokens of a request, prompt and output together.
    pub tokens: usize,
}

/// Device bytes of the parts of a running model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryNeeds {
    /// Weights of the text model as they are stored, and small tables beside them.
    pub weights: u64,
    /// The Engram tables, which are part of the weights and may lie in memory of the host.
    pub tables: u64,
    /// Temporaries of the largest step, its logits included.
    pub temporaries: u64,
    /// A state slot, and a checkpoint of one.
    pub slot: u64,
    /// A page.
    pub page: u64,
}

impl MemoryNeeds {
    /// Needs of a checkpoint, as it is stored.
    ///
    /// # Errors
    /// The largest step cannot be described: the host has not enough memory for its metadata.
    ///
    /// # Panics
    /// If a limit is 0.
    pub fn of_checkpoint(checkpoint: &Checkpoint, numerics: Numerics, limits: &StepLimits) -> Result<Self, LoadError> {
        Self::measure(checkpoint.config(), numerics, &stored_specs(checkpoint), limits)
    }

    /// Needs of the released storage formats.
    ///
    /// # Errors
    /// As [`MemoryNeeds::of_checkpoint`].
    ///
    /// # Panics
    /// As [`MemoryNeeds::of_checkpoint`].
    pub fn of_config(config: &ModelConfig, numerics: Numerics, limits: &StepLimits) -> Result<Self, LoadError> {
        Self::measure(config, numerics, &tensor_specs(config), limits)
    }

    /// Needs of an engine whose model is on its device already: its weights count as nothing.
    ///
    /// # Errors
    /// As [`MemoryNeeds::of_checkpoint`].
    ///
    /// # Panics
    /// As [`MemoryNeeds::of_checkpoint`].
    pub fn of_model(model: &Model, limits: &StepLimits) -> Result<Self, OpError> {
        let temporaries = largest_step(&model.outline_of(Rc::new(CountingDevice::new())), limits)? as u64;
        let (config, numerics) = (model.config(), model.numerics());
        let (slot, page) = (KvCache::slot_bytes(config, numerics), KvCache::page_bytes(config, numerics));
        Ok(Self { weights: 0, tables: 0, temporaries, slot, page })
    }

    fn measure(
        config: &ModelConfig,
        numerics: Numerics,
        specs: &[TensorSpec],
        limits: &StepLimits,
    ) -> Result<Self, LoadError> {
        let counting = Rc::new(CountingDevice::new());
        let model = Model::outline(counting.clone(), config, numerics, specs, TablePlace::Host)?;
        let tables = counting.host_bytes();
        let weights = counting.allocated_bytes() + tables;
        let temporaries = largest_step(&model, limits)
            .map_err(|source| LoadError::Device { tensor: "the temporaries of the largest step".to_owned(), source })?;
        let (slot, page) = (KvCache::slot_bytes(config, &numerics), KvCache::page_bytes(config, &numerics));
        Ok(Self { weights, tables, temporaries: temporaries as u64, slot, page })
    }
}

/// Bytes of the arena after the step with the most rows, each request at its longest and one of them with all the rows that
/// the others leave. Other chunks can need a few rows more (of the window before a chunk, of groups that end in it), which
/// the reserve has room for.
fn largest_step(model: &Model, limits: &StepLimits) -> Result<usize, OpError> {
    let StepLimits { rows, requests, logit_rows, tokens } = *limits;
    assert!(rows >= requests && requests > 0 && tokens > 0, "limits of a step: {limits:?}");
    let cache = KvCache::new(model.device(), model.config(), model.numerics(), 1, requests)?;
    // One piece, so that nothing is lost at the ends of others.
    model.arena().reserve(usize::MAX / 4)?;
    let (any_token, any_pages) = (vec![0; tokens.min(rows)], vec![0; KvCache::pages_for(tokens)]);
    let mut left = rows;
    let rows_of = |slot: usize| {
        let own = (left - (requests - 1 - slot)).min(tokens);
        left -= own;
        RequestRows { tokens: &any_token[..own], start: tokens - own, slot, pages: &any_pages, image_mask: &[] }
    };
    let requests: Vec<RequestRows<'_>> = (0..requests).map(rows_of).collect();
    let wanted: Vec<usize> = (0..logit_rows.min(rows - left)).collect();
    model.enqueue(&cache, &StepInput { requests: &requests, logit_rows: &wanted, device_tokens: None })?;
    Ok(model.arena().peak_bytes())
}

/// What a plan is to provide for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MemoryRequest {
    /// Part of the free memory that may be used, above 0 and at most 1. The rest is the reserve: workspaces of the backend
    /// and the sampler's buffers come from it.
    pub utilization: f64,
    /// State slots.
    pub slots: usize,
    /// Checkpoints: copies of state slots.
    pub checkpoints: usize,
    /// Pages; as many as fit, if not given.
    pub pages: Option<usize>,
    /// The largest step.
    pub limits: StepLimits,
}

/// Why a plan is impossible.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MemoryPlanError {
    /// The part of the memory that may be used is no part.
    #[error("a memory utilisation of {utilization} is no part of the free memory; give more than 0 and at most 1")]
    Utilization {
        /// What was given.
        utilization: f64,
    },
    /// Even without a page it is too much.
    #[error(
        "weights, temporaries, state slots and checkpoints need {} bytes, but {} of the device's {} free bytes may be \
         used; {advice}",
        grouped(*needed), grouped(*budget), grouped(*free)
    )]
    Fixed {
        /// Bytes needed.
        needed: u64,
        /// Bytes that may be used.
        budget: u64,
        /// Bytes that are free.
        free: u64,
        /// What to change.
        advice: String,
    },
    /// More pages were asked for than fit.
    #[error(
        "{pages} pages need {} bytes, but {} are left for them; {fit} pages fit",
        grouped(*needed), grouped(*left)
    )]
    Pages {
        /// Pages asked for.
        pages: usize,
        /// Their bytes.
        needed: u64,
        /// Bytes left.
        left: u64,
        /// Pages that fit.
        fit: usize,
    },
    /// The longest request would not fit, even alone.
    #[error(
        "a request of {tokens} tokens needs {needed} pages, but there are {pages}; allow requests of at most {} tokens, \
         or more memory",
        pages * PAGE_TOKENS
    )]
    Context {
        /// Tokens of the longest request.
        tokens: usize,
        /// Its pages.
        needed: usize,
        /// Pages that there are.
        pages: usize,
    },
}

/// How the memory of a device is divided. [`fmt::Display`] writes it as a table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DevicePlan {
    /// Free bytes of the device.
    pub free: u64,
    /// Bytes of the parts.
    pub needs: MemoryNeeds,
    /// What it provides for.
    pub request: MemoryRequest,
    /// Pages.
    pub pages: usize,
    /// Where the Engram tables lie: on the device, if everything fits there.
    pub tables: TablePlace,
}

impl DevicePlan {
    /// Divides free memory. Engram tables go to the host if the device has no room for them, and the host has.
    ///
    /// # Errors
    /// See [`MemoryPlanError`].
    pub fn new(
        free: impl Into<FreeMemory>,
        needs: MemoryNeeds,
        request: MemoryRequest,
    ) -> Result<Self, MemoryPlanError> {
        let (free, utilization) = (free.into(), request.utilization);
        if !(utilization > 0.0 && utilization <= 1.0) {
            return Err(MemoryPlanError::Utilization { utilization });
        }
        let host = free.host.map_or(0, |host| (host as f64 * utilization) as u64);
        let plan = Self { free: free.device, needs, request, pages: 0, tables: TablePlace::Device };
        match plan.divide() {
            Err(_) if needs.tables > 0 && needs.tables <= host => Self { tables: TablePlace::Host, ..plan }.divide(),
            divided => divided,
        }
    }

    /// The plan with its pages.
    fn divide(self) -> Result<Self, MemoryPlanError> {
        let Self { free, needs, request, .. } = self;
        let plan = self;
        let (budget, needed) = (plan.budget(), plan.fixed_bytes());
        let Some(left) = budget.checked_sub(needed) else {
            let advice = plan.advice();
            return Err(MemoryPlanError::Fixed { needed, budget, free, advice });
        };
        let fit = (left / needs.page) as usize;
        let pages = request.pages.unwrap_or(fit);
        if pages > fit {
            let needed = (pages as u64).saturating_mul(needs.page);
            return Err(MemoryPlanError::Pages { pages, needed, left, fit });
        }
        let tokens = request.limits.tokens;
        let needed = KvCache::pages_for(tokens);
        if pages < needed {
            return Err(MemoryPlanError::Context { tokens, needed, pages });
        }
        Ok(Self { pages, ..plan })
    }

    /// Bytes that may be used.
    pub fn budget(&self) -> u64 {
        (self.free as f64 * self.request.utilization) as u64
    }

    /// Bytes of weights on the device.
    pub fn weights(&self) -> u64 {
        match self.tables {
            TablePlace::Device => self.needs.weights,
            TablePlace::Host => self.needs.weights - self.needs.tables,
        }
    }

    /// Bytes besides the pages.
    pub fn fixed_bytes(&self) -> u64 {
        let copies = (self.request.slots as u64).saturating_add(self.request.checkpoints as u64);
        self.weights().saturating_add(self.needs.temporaries).saturating_add(copies.saturating_mul(self.needs.slot))
    }

    /// Bytes of everything.
    pub fn total_bytes(&self) -> u64 {
        self.fixed_bytes().saturating_add(self.pages as u64 * self.needs.page)
    }

    /// What to change when the fixed parts are too much.
    fn advice(&self) -> String {
        let (needs, request) = (&self.needs, &self.request);
        let needed = self.fixed_bytes();
        if needed <= self.free {
            let least = (needed as f64 / self.free as f64 * 1000.0).ceil() / 1000.0;
            return format!("a memory utilisation above {least} leaves room for pages");
        }
        let for_copies = self.budget().saturating_sub(self.weights().saturating_add(needs.temporaries));
        match for_copies / needs.slot {
            0 if self.weights() >= self.budget() => {
                "the weights alone do not fit; use a device with more memory".to_owned()
            }
            0 => format!(
                "a step of {} rows takes {} bytes of temporaries; allow fewer rows or shorter requests",
                request.limits.rows,
                grouped(needs.temporaries)
            ),
            copies => format!(
                "{copies} state slots and checkpoints together fit, not {}",
                request.slots + request.checkpoints
            ),
        }
    }
}

impl fmt::Display for DevicePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needs, request, pages, .. } = *self;
        let limits = request.limits;
        let line = |f: &mut fmt::Formatter<'_>, name: &str, bytes: u64, note: &str| {
            let mut line = format!("  {name:<12} {:>20} bytes {:>12}", grouped(bytes), binary_unit(bytes));
            if !note.is_empty() {
                // Writing to a string cannot fail.
                let _ = write!(line, "   {note}");
            }
            writeln!(f, "{}", line.trim_end())
        };
        writeln!(f, "Device memory")?;
        line(f, "free", self.free, "")?;
        let tables = match self.tables {
            TablePlace::Device => String::new(),
            TablePlace::Host => format!("besides {} of Engram tables in memory of the host", grouped(needs.tables)),
        };
        line(f, "weights", self.weights(), &tables)?;
        let largest = format!(
            "a step of {} rows, {} requests of at most {} tokens",
            grouped(limits.rows as u64),
            grouped(limits.requests as u64),
            grouped(limits.tokens as u64)
        );
        line(f, "temporaries", needs.temporaries, &largest)?;
        let each = |count: usize, bytes: u64| format!("{} of {}", grouped(count as u64), grouped(bytes));
        line(f, "state slots", request.slots as u64 * needs.slot, &each(request.slots, needs.slot))?;
        line(f, "checkpoints", request.checkpoints as u64 * needs.slot, &each(request.checkpoints, needs.slot))?;
        let tokens = grouped((pages * PAGE_TOKENS) as u64);
        line(f, "pages", pages as u64 * needs.page, &format!("{}, {tokens} tokens", each(pages, needs.page)))?;
        line(f, "reserve", self.free - self.total_bytes(), "")
    }
}
