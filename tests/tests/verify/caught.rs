//! Each bug is caught, and named by the op that has it.

use std::rc::Rc;

use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::{KvCache, Numerics};
use deepinfer_tests::{device, miniature};
use deepinfer_verify::{Cell, Finding, Verifier};

use crate::bugs::{ArrivalOrderCombine, BatchWideScale, DirtyPage, RankKeyedNoise, StalePrefix, WrongRingReach};
use crate::lab::lab_on;
use crate::mutant::{Bug, Mutant};

/// Seed of the requests.
const SEED: u64 = 8;
/// A cell with everything that could matter; without a bug nothing differs in it.
pub(crate) const CELL: &str = "requests=1,5,6@2,8@1 budget=48 pages=5 preempt=4 prefix=warm async=on";

/// What is found with a bug.
fn finding(bug: impl Bug + 'static) -> Finding {
    let cell: Cell = CELL.parse().expect("a cell");
    let mutant = Rc::new(Mutant { inner: device(), bug });
    let report = Verifier::new(lab_on(mutant, SEED), None).cell(&cell).expect("the cell runs");
    assert!(report.differing > 0, "the bug was not caught: {report}");
    println!("{report}");
    let finding = report.finding.expect("what differs is explained");
    let smallest: Cell = finding.cell.parse().expect("the text of a cell");
    assert!(smallest.requests.len() <= cell.requests.len(), "{finding}");
    finding
}

/// Scope and op at which the runs part.
fn site(finding: &Finding) -> (&str, &str, &str) {
    let site = finding.site.as_ref().unwrap_or_else(|| panic!("no op is named: {finding}"));
    assert!(site.expected != site.found && site.position <= finding.position, "{finding}");
    (&site.scope, site.op, site.arg)
}

#[test]
fn the_cell_is_clean_without_a_bug() {
    let report = Verifier::new(lab_on(device(), SEED), None).cell(&CELL.parse().expect("a cell")).expect("it runs");
    assert_eq!((report.differing, report.cells), (0, 1), "{report}");
    assert!(report.hit_tokens > 0 && report.preemptions > 0, "{report}");
}

#[test]
fn a_batch_wide_scale_is_caught() {
    let finding = finding(BatchWideScale);
    assert_eq!(site(&finding), ("layers.0.attn", "quantize", "out"), "{finding}");
}

#[test]
fn a_combine_in_order_of_arrival_is_caught() {
    let finding = finding(ArrivalOrderCombine);
    let (scope, op, arg) = site(&finding);
    assert!(scope.ends_with(".ffn") && (op, arg) == ("moe_combine", "out"), "{finding}");
    let site = finding.site.as_ref().expect("a site");
    assert!(site.largest_difference.is_some_and(|largest| largest > 0.0), "{finding}");
    // The text of the smallest cell shows it again.
    let mutant = Rc::new(Mutant { inner: device(), bug: ArrivalOrderCombine });
    let again = Verifier::new(lab_on(mutant, SEED), None).cell(&finding.cell.parse().expect("a cell"));
    let again = again.expect("it runs").finding.expect("it differs again");
    assert_eq!((again.what, again.site), (finding.what, finding.site));
}

#[test]
fn a_read_past_the_entries_of_a_page_is_caught() {
    let finding = finding(DirtyPage);
    let (scope, op, arg) = site(&finding);
    assert!(scope.ends_with(".attn.select") && (op, arg) == ("index_scores", "out"), "{finding}");
}

#[test]
fn a_window_that_reaches_too_far_in_its_ring_is_caught() {
    let finding = finding(WrongRingReach);
    assert_eq!(site(&finding), ("layers.0.attn", "sparse_attention", "out"), "{finding}");
}

#[test]
fn the_state_of_another_prefix_is_caught() {
    let checkpoint = Checkpoint::open(&miniature()).expect("the miniature");
    let slot = KvCache::slot_bytes(checkpoint.config(), &Numerics::DEPLOY) as usize;
    let finding = finding(StalePrefix { slot, ..StalePrefix::default() });
    // No op is wrong: the first that reads the state shows it, in the first row after the checkpoint.
    let site = finding.site.as_ref().expect("what reads the state differs");
    assert!(finding.restored_at.contains(&site.position), "{finding}");
    assert!(finding.cell.contains("prefix="), "{finding}");
}

#[test]
fn noise_of_ranks_is_caught() {
    let finding = finding(RankKeyedNoise);
    assert_eq!(site(&finding), ("sample", "fused_sample", "token"), "{finding}");
}
