//! Which rows of which requests run in the next step, and where their caches lie.
//!
//! [`Scheduler`] is a state machine: requests and results go in, [`StepPlan`]s come out. There is no clock, no thread and no
//! device in this crate, so a list of events replays a day of traffic. The engine drives it:
//!
//! ```
//! use deepinfer_scheduler::{Outcome, RequestSpec, Scheduler, SchedulerConfig, StepPlan};
//!
//! let mut scheduler = Scheduler::new(SchedulerConfig::new(64, 8))?;
//! scheduler.add(RequestSpec::new(&[5, 6, 7], 4))?;
//! let mut plan = StepPlan::default();
//! let mut output = Vec::new();
//! while let Some(step) = scheduler.schedule(&mut plan) {
//!     // Here the engine runs the plan. This one draws the number of the step.
//!     let token = [step.0 as u32];
//!     let outcomes: Vec<Outcome<'_>> =
//!         plan.requests().iter().map(|r| if r.samples() { Outcome::tokens(&token) } else { Outcome::none() }).collect();
//!     output.extend(token);
//!     scheduler.complete(step, &outcomes);
//! }
//! assert_eq!(output, [1, 2, 3, 4]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The parts, bottom up:
//! - [`Ledger`] counts the tokens of one request: committed, in flight, computed. All other counts follow from it.
//! - Pages and state slots have reference counts and are freed by *epoch*: what is released while steps are in flight can be
//!   handed out again only when the last step that may touch it has completed.
//! - The prefix cache finds full pages by the tokens that they hold. A hit needs a *checkpoint*, an exact copy of a state slot
//!   taken where the hit ends: window rings and open compression groups then hold the bits that a cold run would have.
//! - Scheduling serves running requests before waiting ones and decode rows before prefill chunks, preempts when pages run
//!   out, and may run `depth` steps ahead of the results.
//!
//! What a request gets must not depend on any of this. The scheduler's part of that promise: every row is planned exactly
//! once per start of a request, at its position, with the pages and the state of the tokens before it.

#![forbid(unsafe_code)]

mod checkpoints;
mod config;
mod error;
mod fork;
mod kv;
mod ledger;
mod list;
mod pages;
mod plan;
mod prefix;
mod request;
mod request_map;
mod scheduler;
mod slots;
mod stats;

pub use config::{PAGE_TOKENS, Policy, SchedulerConfig};
pub use error::{AddError, ConfigError};
pub use ledger::Ledger;
pub use plan::{
    CheckpointId, PageCopy, PageId, Phase, PlannedRequest, SlotId, StepId, StepKind, StepPlan, TokenSource,
};
pub use request::{Attachment, Finish, Finished, Outcome, RequestId, RequestSpec};
pub use request_map::{RequestIdHasher, RequestMap};
pub use scheduler::Scheduler;
pub use stats::Stats;
