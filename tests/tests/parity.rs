//! Parity of a backend with the op catalogue: the cases of `deepinfer-parity`, as `deepinfer parity` runs them, in this
//! process.
//!
//! The backend under test is that of `DEEPINFER_ACCELERATOR`, or cpu-reference. A failure prints the case with its
//! shapes, formats and scalars; cases are the same in every run.

#![forbid(unsafe_code)]

use deepinfer_parity::{Check, Outcome, cases, ops, run_case};
use deepinfer_plugin_api::generated::OPS;

/// Failures that are shown.
const SHOWN: usize = 20;

/// Runs the cases of a check of every op.
#[track_caller]
fn hold(check: Check) {
    let device = deepinfer_tests::open_device();
    let (mut ran, mut failures) = (0, Vec::new());
    for case in ops().flat_map(|op| cases(op, check, 0, None)) {
        ran += 1;
        match run_case(&device, &case) {
            Outcome::Passed { .. } => {}
            Outcome::Unsupported { reason } | Outcome::NotTried { reason } => {
                failures.push(format!("{case}: did not run: {reason}"));
            }
            Outcome::Failed(failure) => failures.push(format!("{case}: {failure}\n  {}", case.facts().call)),
        }
    }
    assert!(ran > OPS.len(), "only {ran} cases");
    let shown = failures[..failures.len().min(SHOWN)].join("\n");
    assert!(failures.is_empty(), "{} of {ran} failed:\n{shown}", failures.len());
}

#[test]
fn every_op_of_the_catalogue_is_covered() {
    for op in OPS {
        assert!(
            ops().any(|name| name == op.name),
            "{} has no parity cases: add how its calls are drawn to core/parity/src/generate, its oracle to \
             plugin-api/oracle/src/ops, and run `cargo xtask codegen`",
            op.name
        );
    }
    assert_eq!(ops().count(), OPS.len(), "an op has two entries, or one that is not in the catalogue");
}

#[test]
fn every_op_gives_what_its_oracle_gives() {
    hold(Check::Value);
}

#[test]
fn large_calls_give_what_their_oracles_give() {
    hold(Check::Large);
}

#[test]
fn strides_change_no_bit() {
    hold(Check::Strided);
}

#[test]
fn empty_tensors_run() {
    hold(Check::Empty);
}

#[test]
fn outputs_are_written_whole() {
    hold(Check::Poison);
}

#[test]
fn a_row_alone_has_the_bits_that_it_has_among_others() {
    hold(Check::Rows);
}

#[test]
fn the_same_call_gives_the_same_bits() {
    hold(Check::Twice);
}

#[test]
fn wrong_values_are_refused() {
    hold(Check::Refusal);
}

#[test]
fn wrong_formats_ranks_and_extents_are_refused() {
    hold(Check::Malformed);
}

#[test]
fn structs_of_every_length_are_taken() {
    hold(Check::StructSize);
}

#[test]
fn values_that_nobody_knows_are_refused() {
    hold(Check::UnknownValue);
}

#[test]
fn what_is_accepted_is_run() {
    hold(Check::Honesty);
}

#[test]
fn nothing_outside_of_the_tensors_is_written() {
    hold(Check::Bounds);
}

#[test]
fn the_workspace_needs_no_content() {
    hold(Check::Workspace);
}

#[test]
fn two_streams_do_not_mix() {
    hold(Check::Streams);
}

#[test]
fn recorded_calls_give_the_bits_of_the_calls() {
    hold(Check::Replay);
}
