//! The determinism harness: what a request gets must depend on its tokens, its parameters and its seed, and on nothing else.
//!
//! A [`Verifier`] runs requests together in many ways ([`Cell`]s, drawn from the product of [`Axis`] values by a seed) and holds
//! the raw logits of every row, as 128-bit hashes, and every token to the run of the same request alone, in an engine of its
//! own. A draw that is wrong in the same way everywhere would be no difference, so that each token is drawn once more on the
//! host from its raw row. When something differs, the cell is made as small as it can be, and the outputs of every op are
//! hashed row by row to name the first (layer, position, op) at which the two runs part.
//!
//! ```
//! # fn example(
//! #     device: std::rc::Rc<dyn deepinfer_ops::Device>,
//! #     checkpoint: deepinfer_model::checkpoint::Checkpoint,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! use deepinfer_model::{Model, Numerics};
//! use deepinfer_verify::{Axis, Campaign, Lab, Verifier};
//!
//! let lab = Lab::new(device, 1, |device| {
//!     Model::load(device, &checkpoint, Numerics::DEPLOY, &mut |_, _| {}).map(|(model, _)| model)
//! })?;
//! let campaign = Campaign { rows: 100_000, axes: Axis::ALL.into() };
//! let report = Verifier::new(lab, None).campaign(&campaign, &mut |_| {})?;
//! assert_eq!(report.differing, 0, "{report}");
//! # Ok(())
//! # }
//! ```
//!
//! This crate prints nothing and starts no process; who can start one gives an [`Elsewhere`] for the axis of the restart.

#![forbid(unsafe_code)]

mod axis;
mod cell;
mod draw;
mod error;
mod lab;
mod noise;
mod report;
mod run;
mod shrink;
mod trace;
mod verify;
mod workload;

pub use axis::{Axis, Coverage};
pub use cell::{Arrival, Cell, Memory, Prefix, Process};
pub use error::VerifyError;
pub use lab::Lab;
pub use report::{Finding, Report};
pub use run::{CompletionRun, Digest, HostToken, Row, Run, WrongDraw};
pub use trace::Site;
pub use verify::{Campaign, Elsewhere, Progress, Verifier};
pub use workload::{Sampling, Workload};
