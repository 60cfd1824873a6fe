//! What failures have in common: a few faults by name, instead of many cases.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde::Serialize;

use crate::case::{Case, Check, Facts};
use crate::fault::Fault;
use crate::generate::{Content, specs};
use crate::outcome::{Failure, Outcome};
use crate::report::Line;

/// A fault of an op, or of the backend as a whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Its kind.
    pub fault: Fault,
    /// Op, or what else is tested.
    pub op: String,
    /// Cases that show it.
    pub cases: usize,
    /// What they have in common, as a sentence.
    pub sentence: String,
    /// Name of the first of them.
    pub example: String,
}

/// A conclusion from what failing cases have in common is drawn where it would come about by chance less often than this.
const CHANCE: f64 = 0.05;

/// The faults of a run, in the order in which they were met. Expected failures are none.
pub fn findings(lines: &[Line]) -> Vec<Finding> {
    let mut ops: Vec<&str> = Vec::new();
    for line in lines.iter().filter(|line| line.is_failure()) {
        if !ops.contains(&line.op.as_str()) {
            ops.push(&line.op);
        }
    }
    let of = |op: &str| of_op(op, &lines.iter().filter(|line| line.op == op).collect::<Vec<_>>());
    ops.into_iter().flat_map(of).collect()
}

/// Cases of one kind, in their order.
struct Group<'a> {
    fault: Fault,
    lines: Vec<&'a Line>,
    sentence: String,
}

fn of_op(op: &str, lines: &[&Line]) -> Vec<Finding> {
    let right: BTreeSet<usize> = lines
        .iter()
        .filter(|line| matches!(line.outcome, Outcome::Passed { .. }))
        .filter_map(|line| case_of(line).filter(|case| case.check == Check::Value).map(|case| case.number))
        .collect();
    let mut groups: Vec<Group<'_>> = Vec::new();
    // Wrong values, of which the kind is to be concluded.
    let mut wrong: Vec<&Line> = Vec::new();
    for &line in lines.iter().filter(|line| line.is_failure()) {
        let Outcome::Failed(failure) = &line.outcome else { continue };
        let Some(fault) = kind_of(line, failure, &right) else {
            wrong.push(line);
            continue;
        };
        match groups.iter_mut().find(|group| group.fault == fault) {
            Some(group) => group.lines.push(line),
            None => groups.push(Group { fault, lines: vec![line], sentence: failure.to_string() }),
        }
    }
    for group in groups.iter_mut().filter(|group| group.lines.len() > 1) {
        group.sentence = format!("{} cases; in the first, {}", group.lines.len(), group.sentence);
    }
    if !wrong.is_empty() {
        let compared: Vec<&Line> = lines.iter().copied().filter(|line| is_comparison(line)).collect();
        let (fault, sentence) = conclude(op, &wrong, &compared);
        groups.insert(0, Group { fault, lines: wrong, sentence });
    }
    without_consequences(&mut groups);
    let finding = |Group { fault, lines, sentence }: Group<'_>| Finding {
        fault,
        op: op.to_owned(),
        cases: lines.len(),
        sentence,
        example: lines[0].name.clone(),
    };
    groups.into_iter().map(finding).collect()
}

/// A fault may show in other checks than its own. What may come of it is told with it.
fn without_consequences(groups: &mut Vec<Group<'_>>) {
    let may_come_of = |cause: Fault, fault: Fault| match cause {
        Fault::StaleWorkspace => !matches!(
            fault,
            Fault::StaleWorkspace
                | Fault::Crash
                | Fault::OverRead
                | Fault::LyingSupports
                | Fault::OutOfBounds
                | Fault::UnknownValue
                | Fault::RefusesValid
                | Fault::AcceptsWrong
                | Fault::Layer
                | Fault::Rule
        ),
        Fault::NotDeterministic => {
            matches!(
                fault,
                Fault::Strides | Fault::StreamRace | Fault::Replay | Fault::BatchDependent | Fault::SizeEquality
            )
        }
        _ => false,
    };
    for cause in [Fault::StaleWorkspace, Fault::NotDeterministic] {
        if !groups.iter().any(|group| group.fault == cause) {
            continue;
        }
        let others = groups.iter().filter(|group| may_come_of(cause, group.fault));
        let cases: usize = others.map(|group| group.lines.len()).sum();
        groups.retain(|group| !may_come_of(cause, group.fault));
        if let Some(group) = groups.iter_mut().find(|group| group.fault == cause && cases > 0) {
            let _ = write!(group.sentence, "; {cases} failures of other checks may come of it");
        }
    }
}

fn case_of(line: &Line) -> Option<Case> {
    // The seed is no part of what is asked here.
    Case::parse(&line.name, 0)
}

/// Whether outputs are held to an oracle.
fn is_comparison(line: &Line) -> bool {
    case_of(line).is_some_and(|case| matches!(case.check, Check::Value | Check::Poison))
        && !matches!(line.outcome, Outcome::Unsupported { .. })
}

/// The kind of a failure by itself; `None` for a wrong value. `right` are the numbers of calls that give the right values.
fn kind_of(line: &Line, failure: &Failure, right: &BTreeSet<usize>) -> Option<Fault> {
    let case = case_of(line);
    match (failure.fault, case.map(|case| case.check)) {
        // The process ends at the edge of the memory that the struct has.
        (Some(Fault::Crash), Some(Check::StructSize)) => Some(Fault::OverRead),
        (Some(fault), _) => Some(fault),
        (None, Some(Check::Poison)) if case.is_some_and(|case| right.contains(&case.number)) => {
            Some(Fault::UnwrittenOutput)
        }
        (None, Some(Check::Value | Check::Poison)) if failure.worst.is_some() => None,
        (None, _) => Some(Fault::Rule),
    }
}

/// A property of calls that a fault may be tied to.
struct Property {
    fault: Fault,
    /// What calls that have it are like, after "all of them".
    words: String,
    has: Box<dyn Fn(&Facts) -> bool>,
}

fn properties(op: &str, compared: &[&Line]) -> Vec<Property> {
    let property =
        |fault, words: &str, has: fn(&Facts) -> bool| Property { fault, words: words.to_owned(), has: Box::new(has) };
    let mut all = vec![
        property(Fault::NanSwallowed, "have a NaN among their values", |facts| facts.has_nan),
        property(Fault::RaggedEdge, "have rows that are no multiple of 32 elements", |facts| {
            !facts.width.is_multiple_of(32)
        }),
    ];
    if specs().any(|spec| spec.name == op && spec.contents.contains(&Content::Ties)) {
        all.push(property(Fault::TieBreak, "have equal values to choose among", |facts| facts.has_ties));
    }
    let formats: BTreeSet<&str> =
        compared.iter().flat_map(|line| &line.facts).flat_map(|facts| facts.formats.split(' ')).collect();
    all.extend(formats.into_iter().filter(|format| !format.is_empty()).map(|format| {
        let name = format.to_owned();
        let has = move |facts: &Facts| facts.formats.split(' ').any(|format| format == name);
        Property { fault: Fault::OneFormat, words: format!("have {format}"), has: Box::new(has) }
    }));
    all
}

/// What the wrong cases of an op have in common, most telling first, and a sentence about it.
fn conclude(op: &str, wrong: &[&Line], compared: &[&Line]) -> (Fault, String) {
    let count = |lines: &[&Line], property: &Property| {
        lines.iter().filter(|line| line.facts.as_ref().is_some_and(|facts| (property.has)(facts))).count()
    };
    let all = compared.len();
    let mut best: Option<(f64, Property)> = None;
    for property in properties(op, compared) {
        if count(wrong, &property) < wrong.len() {
            continue;
        }
        let share = count(compared, &property) as f64 / all as f64;
        let chance = share.powi(i32::try_from(wrong.len()).unwrap_or(i32::MAX));
        // Of several, what fewest calls have says most.
        if chance < CHANCE && best.as_ref().is_none_or(|(least, _)| share < *least) {
            best = Some((share, property));
        }
    }
    let passed = all - wrong.len();
    match best {
        Some((_, property)) => (
            property.fault,
            format!(
                "{} of {all} cases give wrong values; all of them {}, and {passed} others pass",
                wrong.len(),
                property.words
            ),
        ),
        None => (Fault::WrongResult, format!("{} of {all} cases give wrong values", wrong.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Level;

    /// A case of an op, with the facts of the drawn call, that fails where `fails` says so.
    fn line(case: &Case, fails: impl Fn(&Facts) -> bool) -> Line {
        let facts = case.facts();
        let worst = || deepinfer_oracle::Mismatch {
            argument: "out".to_owned(),
            part: String::new(),
            shape: vec![1],
            element: 0,
            found: "1".to_owned(),
            found_bits: "0x1".to_owned(),
            wanted: "2".to_owned(),
            wanted_bits: "0x2".to_owned(),
            distance: None,
        };
        let outcome = if fails(&facts) {
            Outcome::Failed(Failure { worst: Some(Box::new(worst())), ..Failure::new("wrong") })
        } else {
            Outcome::Passed { share: None }
        };
        Line {
            name: case.to_string(),
            op: case.op.to_owned(),
            level: Level::L2,
            facts: Some(facts),
            outcome,
            expected_failure: None,
            seconds: 0.0,
            rerun: String::new(),
            bundle: None,
        }
    }

    fn found(op: &str, fails: impl Fn(&Facts) -> bool) -> Vec<Finding> {
        let cases = crate::cases(op, Check::Value, 5, None);
        findings(&cases.iter().map(|case| line(case, &fails)).collect::<Vec<_>>())
    }

    #[test]
    fn what_all_failing_cases_have_in_common_is_the_kind() {
        for (op, fault, fails) in [
            ("rms_norm", Fault::RaggedEdge, (|facts| facts.width % 8 != 0) as fn(&Facts) -> bool),
            ("rms_norm", Fault::NanSwallowed, |facts| facts.has_nan),
            ("topk_select", Fault::TieBreak, |facts| facts.has_ties && facts.width > 31),
            ("rms_norm", Fault::OneFormat, |facts| facts.formats.contains("weight=BF16")),
            ("rms_norm", Fault::WrongResult, |_| true),
        ] {
            let findings = found(op, fails);
            assert_eq!(findings.len(), 1, "{op} {fault}: {findings:?}");
            assert_eq!((findings[0].fault, findings[0].op.as_str()), (fault, op), "{}", findings[0].sentence);
        }
        assert_eq!(found("rms_norm", |_| false), []);
    }

    #[test]
    fn few_failures_are_no_pattern() {
        let first = std::cell::Cell::new(true);
        let findings = found("rms_norm", |facts| facts.has_nan && first.replace(false));
        assert_eq!(findings[0].fault, Fault::WrongResult);
    }

    #[test]
    fn consequences_are_told_with_their_cause() {
        let cases = crate::cases("rstd", Check::Value, 0, Some(4));
        let mut lines: Vec<Line> = cases.iter().map(|case| line(case, |_| false)).collect();
        for (line, fault) in lines.iter_mut().zip([Fault::StreamRace, Fault::StaleWorkspace, Fault::OutOfBounds]) {
            line.outcome = Outcome::Failed(Failure::new("it is so").of(fault));
        }
        let found: Vec<(Fault, String)> = findings(&lines).into_iter().map(|f| (f.fault, f.sentence)).collect();
        let told = "it is so; 1 failures of other checks may come of it".to_owned();
        assert_eq!(found, [(Fault::StaleWorkspace, told), (Fault::OutOfBounds, "it is so".to_owned())]);
    }

    #[test]
    fn expected_failures_are_no_findings() {
        let mut line = line(&crate::cases("rstd", Check::Value, 0, Some(1))[0], |_| true);
        line.expected_failure = Some("known".to_owned());
        assert_eq!(findings(&[line]), []);
    }
}
