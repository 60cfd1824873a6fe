//! What failures have in common: a few faults by name, instead of many cases.

use std::collections::BTreeSet;

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
    ops.into_iter().flat_map(|op| of_op(op, lines.iter().filter(|line| line.op == op).collect())).collect()
}

/// Cases of one kind, in their order.
struct Group<'a> {
    fault: Fault,
    lines: Vec<&'a Line>,
}

fn of_op(op: &str, lines: Vec<&Line>) -> Vec<Finding> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    // Wrong values, of which the kind is to be concluded.
    let mut wrong: Vec<&Line> = Vec::new();
    let right: BTreeSet<usize> = lines
        .iter()
        .filter(|line| matches!(line.outcome, Outcome::Passed { .. }))
        .filter_map(|line| case_of(line).filter(|case| case.check == Check::Value).map(|case| case.number))
        .collect();
    for &line in lines.iter().filter(|line| line.is_failure()) {
        let Outcome::Failed(failure) = &line.outcome else { continue };
        match kind_of(line, failure, &right) {
            None => wrong.push(line),
            Some(fault) => match groups.iter_mut().find(|group| group.fault == fault) {
                Some(group) => group.lines.push(line),
                None => groups.push(Group { fault, lines: vec![line] }),
            },
        }
    }
    let mut found: Vec<Finding> = Vec::new();
    if let Some(first) = wrong.first() {
        let compared: Vec<&Line> = lines.iter().copied().filter(|line| is_comparison(line)).collect();
        let (fault, sentence) = conclude(op, &wrong, &compared);
        found.push(Finding { fault, op: op.to_owned(), cases: wrong.len(), sentence, example: first.name.clone() });
    }
    found.extend(groups.iter().map(|group| {
        let first = group.lines[0];
        let count = group.lines.len();
        let problem = match &first.outcome {
            Outcome::Failed(failure) => failure.to_string(),
            Outcome::Passed { .. } | Outcome::Unsupported { .. } => String::new(),
        };
        let sentence = if count == 1 { problem } else { format!("{count} cases; in the first, {problem}") };
        Finding { fault: group.fault, op: op.to_owned(), cases: count, sentence, example: first.name.clone() }
    }));
    found
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
        property(Fault::NanSwallowed, "have a NaN among their values", |facts| facts.content == Some(Content::Nan)),
        property(Fault::RaggedEdge, "have rows that are no multiple of 32 elements", |facts| {
            !facts.width.is_multiple_of(32)
        }),
    ];
    if specs().any(|spec| spec.name == op && spec.contents.contains(&Content::Ties)) {
        all.push(property(Fault::TieBreak, "have equal values to choose among", |facts| {
            matches!(facts.content, Some(Content::Ties | Content::Equal | Content::Zeros))
        }));
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
