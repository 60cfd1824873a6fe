//! Parity of a backend with the op catalogue: every op, on calls that are drawn from the catalogue, against the
//! oracles of [`deepinfer_oracle`].
//!
//! [`cases`] lists the cases of an op, [`run_case`] runs one on a device and gives an [`Outcome`]. A [`Case`] is a name:
//! op, check, number and seed mean the same call in every process, so that a failure is repeated from what was printed.
//! `cargo test` and `deepinfer parity` run the same list.
//!
//! What came of a run goes into a [`Report`], which is written as JSON, as JUnit XML ([`junit`]) and as a page with a heat
//! map ([`html`]); [`Expectations`] are failures that are known.
//!
//! Many failures of one cause are one [`Finding`], with the name of its kind.
//!
//! The crate knows no backend: it sees a [`deepinfer_runtime::OpenDevice`].

#![forbid(unsafe_code)]

mod case;
mod concurrent;
mod expect;
mod fault;
mod finding;
mod generate;
mod glob;
pub mod html;
pub mod junit;
mod outcome;
mod place;
mod present;
mod recorded;
mod refuse;
mod report;
mod rng;
mod run;
mod same_error;

pub use case::{Case, Check, Facts, Level, ShapeClass, cases};
pub use expect::{ExpectError, Expectations};
pub use fault::Fault;
pub use finding::{Finding, findings};
pub use generate::Content;
pub use glob::matches as glob_matches;
pub use outcome::{Failure, Outcome};
pub use place::{Arguments, dispatch_on};
pub use report::{Declined, Identity, Line, OpSummary, Report, Verdict};
pub use rng::SplitMix64;
pub use run::{CallError, Evidence, run_call, run_case, run_case_with_evidence};
pub use same_error::essence;

/// Ops that have cases and a typed call, in the order of the catalogue's families.
pub fn ops() -> impl Iterator<Item = &'static str> {
    generate::specs().map(|spec| spec.name).filter(|name| place::CALLABLE.contains(name))
}

/// Ops that a profile of the catalogue requires; `None` if it has no such profile.
pub fn required_ops(profile: &str) -> Option<&'static [&'static str]> {
    deepinfer_plugin_api::profile(profile)
}

/// Catalogue id and version of an op.
pub fn identity_of(op: &str) -> Option<(u32, u32)> {
    deepinfer_plugin_api::op_by_name(op).map(|info| (info.id, info.version))
}

/// Name of a catalogue id.
pub fn op_of(id: u32) -> Option<&'static str> {
    deepinfer_plugin_api::op_by_id(id).map(|info| info.name)
}

/// Version of the plugin ABI, `major.minor`.
pub fn abi_version() -> String {
    format!("{}.{}", deepinfer_plugin_api::abi::DI_ABI_MAJOR, deepinfer_plugin_api::abi::DI_ABI_MINOR)
}
