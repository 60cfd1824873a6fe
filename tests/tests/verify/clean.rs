//! A device without a fault.

use deepinfer_tests::device;
use deepinfer_verify::{Axis, Campaign, Verifier};

use crate::lab::lab_on;

#[test]
fn nothing_differs_where_nothing_is_wrong() {
    let campaign = Campaign { rows: 6_000, axes: Axis::ALL.into() };
    let mut cells = 0;
    let verifier = Verifier::new(lab_on(device(), 3), None);
    let report = verifier.campaign(&campaign, &mut |progress| cells = progress.cells).expect("cells run");
    assert_eq!((report.differing, report.finding.is_none()), (0, true), "{report}");
    assert!(report.rows >= 6_000 && report.cells == cells && report.draws >= report.tokens / 2, "{report}");
    println!("{report}");
}
