//! Parity of a backend with the op catalogue: every op, on calls that are drawn from the catalogue, against oracles in
//! F64 that share no code with any kernel.
//!
//! [`cases`] lists the cases of an op, [`run_case`] runs one on a device and gives an [`Outcome`]. A [`Case`] is a name:
//! op, check, number and seed mean the same call in every process, so that a failure is repeated from what was printed.
//! `cargo test` and `deepinfer parity` run the same list.
//!
//! What came of a run goes into a [`Report`], which is written as JSON, as JUnit XML ([`junit`]) and as a page with a heat
//! map ([`html`]); [`Expectations`] are failures that are known.
//!
//! The crate knows no backend: it sees a [`deepinfer_ops::Device`].

#![forbid(unsafe_code)]

mod call;
mod case;
mod expect;
mod generate;
mod glob;
pub mod html;
pub mod junit;
mod oracle;
mod outcome;
mod place;
mod refuse;
mod report;
mod rng;
mod run;

pub use case::{Case, Check, Facts, Level, ShapeClass, cases};
pub use expect::{ExpectError, Expectations};
pub use generate::Content;
pub use glob::matches as glob_matches;
pub use outcome::{Failure, Mismatch, Outcome};
pub use report::{Identity, Line, OpSummary, Report, Verdict};
pub use run::run_case;

/// Ops that have cases, an oracle and a typed call, in the order of the catalogue's families.
pub fn ops() -> impl Iterator<Item = &'static str> {
    generate::specs().map(|spec| spec.name).filter(|name| place::CALLABLE.contains(name))
}
