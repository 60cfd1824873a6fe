//! What failures have in common: a few faults by name, instead of many cases.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde::Serialize;

use crate::case::{Case, Check, Facts};
use crate::fault::Fault;
use crate::generate::{Content, specs};
use crate::outcome::{Failure, Outcome};
use crate::report::Line;
use crate::same_error::essence;

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

/// What tests of allocations, copies and fills stand under.
const MEMORY: &str = "memory";
/// Calls without a property that must pass before it is what the failing ones have in common.
const FEWEST: usize = 3;

/// The faults of a run, in the order in which they were met. Expected failures are none.
pub fn findings(lines: &[Line]) -> Vec<Finding> {
    let mut ops: Vec<&str> = Vec::new();
    for line in lines.iter().filter(|line| line.is_failure()) {
        if !ops.contains(&line.op.as_str()) {
            ops.push(&line.op);
        }
    }
    let of = |op: &str| of_op(op, &lines.iter().filter(|line| line.op == op).collect::<Vec<_>>());
    in_one(ops.into_iter().flat_map(of).collect())
}

/// What keeps cases from being set up is not the matter of their ops: all of it is one finding, the first.
fn in_one(found: Vec<Finding>) -> Vec<Finding> {
    let (set_up, mut others): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| found.fault == Fault::SetUp);
    let (count, cases) = (set_up.len(), set_up.iter().map(|found| found.cases).sum());
    // Where memory itself is found to be wrong, that is why.
    if let Some(memory) = others.iter_mut().find(|found| found.op == MEMORY).filter(|_| count > 0) {
        let _ = write!(memory.sentence, "; {cases} cases of other subjects cannot be set up");
        return others;
    }
    if let Some(first) = set_up.into_iter().next() {
        let sentence = match count {
            1 => first.sentence,
            _ => format!("{cases} cases of {count} ops and subjects; {}: {}", first.op, first.sentence),
        };
        others.insert(0, Finding { sentence, cases, ..first });
    }
    others
}

/// Cases of one kind, in their order.
struct Group<'a> {
    fault: Fault,
    lines: Vec<&'a Line>,
    sentence: String,
}

impl<'a> Group<'a> {
    /// The case that tells most: one of plain calls, if there is one, since others may show a consequence.
    fn head(&self) -> &'a Line {
        self.lines.iter().find(|line| is_plain(line)).unwrap_or(&self.lines[0])
    }

    /// What the head says, of so many cases.
    fn tell(&mut self) {
        let head = self.head();
        let Outcome::Failed(failure) = &head.outcome else { return };
        self.sentence = match self.fault {
            Fault::Panic => without_origin(&failure.to_string(), &head.op),
            _ => failure.to_string(),
        };
        if self.lines.len() > 1 {
            self.sentence = format!("{} cases; in {}, {}", self.lines.len(), head.name, self.sentence);
        }
    }
}

/// What a panic in `run` of an op says, of `backend/op: panic in OP: TEXT`; of others also where they arose.
fn without_origin(problem: &str, op: &str) -> String {
    let from_panic = problem.find("panic in ").map_or(problem, |at| &problem[at..]);
    from_panic.strip_prefix(&format!("panic in {op}: ")).unwrap_or(from_panic).to_owned()
}

fn of_op(op: &str, lines: &[&Line]) -> Vec<Finding> {
    let right: BTreeSet<usize> = lines
        .iter()
        .filter(|line| matches!(line.outcome, Outcome::Passed { .. }))
        .filter_map(|line| case_of(line).filter(|case| case.check == Check::Value).map(|case| case.number))
        .collect();
    let usual = usual_errors(lines, &right);
    // A check of something else that ends as usual calls do has found nothing else.
    let as_usual = |line: &Line, failure: &Failure| {
        let error = failure.error.as_deref().filter(|_| !is_usual(line)).map(essence)?;
        usual.iter().find(|(known, _)| *known == error).map(|(_, fault)| *fault)
    };
    let mut groups: Vec<Group<'_>> = Vec::new();
    // Wrong values, of which the kind is to be concluded.
    let mut wrong: Vec<&Line> = Vec::new();
    for &line in lines.iter().filter(|line| line.is_failure()) {
        let Outcome::Failed(failure) = &line.outcome else { continue };
        let Some(fault) = as_usual(line, failure).or_else(|| kind_of(line, failure, &right)) else {
            wrong.push(line);
            continue;
        };
        match groups.iter_mut().find(|group| group.fault == fault) {
            Some(group) => group.lines.push(line),
            None => groups.push(Group { fault, lines: vec![line], sentence: String::new() }),
        }
    }
    groups.iter_mut().for_each(Group::tell);
    if !wrong.is_empty() {
        let compared: Vec<&Line> = lines.iter().copied().filter(|line| is_comparison(line)).collect();
        let (fault, mut sentence) = conclude(op, &wrong, &compared);
        // Wrong values that a layer has seen in other checks are the same ones.
        for group in groups.extract_if(.., |group| group.fault == Fault::WrongResult) {
            let _ = write!(sentence, "; {} failures of other checks may come of it", group.lines.len());
        }
        groups.insert(0, Group { fault, lines: wrong, sentence });
    }
    without_consequences(&mut groups);
    let finding = |group: Group<'_>| Finding {
        fault: group.fault,
        op: op.to_owned(),
        cases: group.lines.len(),
        example: group.head().name.clone(),
        sentence: group.sentence,
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
                | Fault::Panic
                | Fault::Hang
                | Fault::DeviceLost
                | Fault::SetUp
                | Fault::OverRead
                | Fault::InputWritten
                | Fault::WroteWhenRefused
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
        // Of memory around a tensor; a struct that is read beyond its end is found at its edge.
        Fault::OverRead => matches!(
            fault,
            Fault::NotDeterministic
                | Fault::Strides
                | Fault::StreamRace
                | Fault::Replay
                | Fault::BatchDependent
                | Fault::SizeEquality
                | Fault::StaleWorkspace
                | Fault::UnwrittenOutput
                | Fault::RaggedEdge
                | Fault::TieBreak
                | Fault::NanSwallowed
                | Fault::OneFormat
                | Fault::OneContent
                | Fault::WrongResult
        ),
        _ => false,
    };
    let is_cause = |cause: Fault, group: &Group<'_>| {
        let shows_in_bounds =
            || group.lines.iter().filter_map(|line| case_of(line)).any(|case| case.check == Check::Bounds);
        group.fault == cause && (cause != Fault::OverRead || shows_in_bounds())
    };
    for cause in [Fault::OverRead, Fault::StaleWorkspace, Fault::NotDeterministic] {
        if !groups.iter().any(|group| is_cause(cause, group)) {
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

/// Whether a case makes one call as a model makes it, and looks at its values.
pub(crate) fn is_plain(line: &Line) -> bool {
    case_of(line).is_some_and(|case| case.check == Check::Value)
}

/// Whether a case makes calls as a model makes them: structs of the usual length, and nothing wrong on purpose.
fn is_usual(line: &Line) -> bool {
    use Check::{Malformed, Refusal, StructSize, UnknownValue};
    case_of(line).is_some_and(|case| !matches!(case.check, StructSize | UnknownValue | Refusal | Malformed))
}

/// The errors that such calls of an op end with, each with its kind.
fn usual_errors(lines: &[&Line], right: &BTreeSet<usize>) -> Vec<(String, Fault)> {
    let error_of = |line: &&Line| match &line.outcome {
        Outcome::Failed(failure) => Some((essence(failure.error.as_deref()?), kind_of(line, failure, right)?)),
        _ => None,
    };
    let usual = lines.iter().copied().filter(|line| line.is_failure() && is_usual(line));
    let mut errors: Vec<(String, Fault)> = Vec::new();
    for (error, fault) in usual.filter_map(|line| error_of(&line)) {
        if !errors.iter().any(|(known, _)| *known == error) {
            errors.push((error, fault));
        }
    }
    errors
}

fn case_of(line: &Line) -> Option<Case> {
    // The seed is no part of what is asked here.
    Case::parse(&line.name, 0)
}

/// Whether outputs are held to an oracle.
fn is_comparison(line: &Line) -> bool {
    case_of(line).is_some_and(|case| case.check.judges_each_call())
        && !matches!(line.outcome, Outcome::Unsupported { .. } | Outcome::NotTried { .. })
}

/// The kind of a failure by itself; `None` for a wrong value. `right` are the numbers of calls that give the right values.
fn kind_of(line: &Line, failure: &Failure, right: &BTreeSet<usize>) -> Option<Fault> {
    let case = case_of(line);
    match (failure.fault, case.map(|case| case.check)) {
        // The process ends at the edge of the memory that the struct has.
        (Some(Fault::Crash), Some(Check::StructSize)) => Some(Fault::OverRead),
        // Of what a layer has compared, as of what was compared here.
        (Some(Fault::WrongResult), Some(check)) if check.judges_each_call() => None,
        (Some(fault), _) => Some(fault),
        (None, Some(Check::Poison)) if case.is_some_and(|case| right.contains(&case.number)) => {
            Some(Fault::UnwrittenOutput)
        }
        (None, Some(check)) if check.judges_each_call() && failure.worst.is_some() => None,
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
    all.extend([
        property(Fault::RaggedEdge, "have an odd number of rows", |facts| facts.rows.is_some_and(|rows| rows % 2 == 1)),
        property(Fault::WrongResult, "have more than one row", |facts| facts.rows.is_some_and(|rows| rows > 1)),
        property(Fault::WrongResult, "have one row", |facts| facts.rows == Some(1)),
        property(Fault::WrongResult, "have more than 32 rows", |facts| facts.rows.is_some_and(|rows| rows > 32)),
        property(Fault::WrongResult, "have rows of more than 256 elements", |facts| facts.width > 256),
    ]);
    let contents = specs().filter(|spec| spec.name == op).flat_map(|spec| spec.contents);
    // What has a name of its own stands above.
    let contents = contents.filter(|content| !matches!(content, Content::Nan | Content::Ties));
    all.extend(contents.map(|&content| Property {
        fault: Fault::OneContent,
        words: format!("have content {content:?}"),
        has: Box::new(move |facts| facts.content == Some(content)),
    }));
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
        let having = count(compared, &property);
        // What all calls have, or all but a few, says nothing; of the others all pass.
        if all - having < FEWEST {
            continue;
        }
        let share = having as f64 / all as f64;
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
            ("rms_norm", Fault::RaggedEdge, |facts| facts.rows.is_some_and(|rows| rows % 2 == 1)),
            ("rms_norm", Fault::WrongResult, |_| true),
        ] {
            let findings = found(op, fails);
            assert_eq!(findings.len(), 1, "{op} {fault}: {findings:?}");
            assert_eq!((findings[0].fault, findings[0].op.as_str()), (fault, op), "{}", findings[0].sentence);
        }
        assert_eq!(found("rms_norm", |_| false), []);
    }

    #[test]
    fn the_number_of_rows_is_told() {
        for (op, words, fails) in [
            ("rms_norm", "more than one row,", (|rows| rows > 1) as fn(usize) -> bool),
            ("rstd", "one row,", |rows| rows == 1),
            ("convert_kv_index", "more than 32 rows,", |rows| rows > 32),
        ] {
            let findings = found(op, |facts| facts.rows.is_some_and(fails));
            assert_eq!((findings.len(), findings[0].fault), (1, Fault::WrongResult), "{findings:?}");
            assert!(findings[0].sentence.contains(&format!("all of them have {words}")), "{}", findings[0].sentence);
        }
    }

    #[test]
    fn a_plain_call_heads_a_finding_and_a_panic_is_told_without_its_origin() {
        let names = [("rstd", Check::StructSize), ("rstd", Check::Value), ("rstd", Check::Twice)];
        let mut lines: Vec<Line> =
            names.iter().map(|(op, check)| line(&crate::cases(op, *check, 0, Some(1))[0], |_| false)).collect();
        let mut fail = |texts: [&str; 3]| {
            for (line, text) in lines.iter_mut().zip(texts) {
                line.outcome = Outcome::Failed(Failure::new(text).of(Fault::Panic));
            }
            findings(&lines)
        };
        let found = fail([
            "npu/copy: npu is unusable after a panic in rstd: x",
            "npu/rstd: panic in rstd: boom (rstd.rs:3)",
            "",
        ]);
        assert_eq!(found[0].sentence, "3 cases; in rstd/value/0, boom (rstd.rs:3)");
        assert_eq!((found.len(), found[0].example.as_str()), (1, "rstd/value/0"));
        let found = fail(["", "npu/rstd: panic in plan of rstd: boom", ""]);
        assert_eq!(found[0].sentence, "3 cases; in rstd/value/0, panic in plan of rstd: boom");
    }

    #[test]
    fn wrong_values_that_a_layer_has_seen_are_concluded_from_as_well() {
        let cases = crate::cases("rms_norm", Check::Value, 5, None);
        let mut lines: Vec<Line> = cases.iter().map(|case| line(case, |facts| facts.has_nan)).collect();
        for line in &mut lines {
            if let Outcome::Failed(failure) = &mut line.outcome {
                *failure = Failure::new("validate (value): out is wrong").of(Fault::WrongResult);
            }
        }
        let mut twice = line(&crate::cases("rms_norm", Check::Twice, 5, Some(1))[0], |_| true);
        twice.outcome = Outcome::Failed(Failure::new("validate (value): out is wrong").of(Fault::WrongResult));
        lines.push(twice);
        let found = findings(&lines);
        assert_eq!((found.len(), found[0].fault), (1, Fault::NanSwallowed), "{found:?}");
        assert!(found[0].sentence.ends_with("; 1 failures of other checks may come of it"), "{}", found[0].sentence);
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
    fn an_error_of_usual_calls_is_told_under_its_name_alone() {
        let checks = [Check::StructSize, Check::UnknownValue, Check::Malformed, Check::Value, Check::Twice];
        let mut lines: Vec<Line> =
            checks.iter().map(|check| line(&crate::cases("rstd", *check, 0, Some(1))[0], |_| false)).collect();
        let mut found = |faults: [Fault; 5], errors: [&str; 5]| -> Vec<(Fault, usize)> {
            for ((line, fault), error) in lines.iter_mut().zip(faults).zip(errors) {
                line.outcome = Outcome::Failed(Failure::new(format!("it says {error}")).of(fault).because_of(error));
            }
            findings(&lines).iter().map(|found| (found.fault, found.cases)).collect()
        };
        let kinds = [Fault::Crash, Fault::UnknownValue, Fault::AcceptsWrong, Fault::Crash, Fault::Crash];
        assert_eq!(found(kinds, ["killed"; 5]), [(Fault::Crash, 5)]);
        let kinds = [Fault::SizeEquality, Fault::DeviceLost, Fault::AcceptsWrong, Fault::DeviceLost, Fault::DeviceLost];
        let errors = ["of size 8", "sync: block 1 faults", "it ran", "copy: block 3 faults", "copy: block 3 faults"];
        let wanted = [(Fault::SizeEquality, 1), (Fault::DeviceLost, 3), (Fault::AcceptsWrong, 1)];
        assert_eq!(found(kinds, errors), wanted);
        // What only the lengths of structs bring out stays what they look for.
        let kinds = [Fault::Crash, Fault::UnknownValue, Fault::AcceptsWrong, Fault::Hang, Fault::Hang];
        let wanted = [(Fault::OverRead, 1), (Fault::UnknownValue, 1), (Fault::AcceptsWrong, 1), (Fault::Hang, 2)];
        assert_eq!(found(kinds, ["killed", "killed", "killed", "no answer", "no answer"]), wanted);
    }

    #[test]
    fn expected_failures_are_no_findings() {
        let mut line = line(&crate::cases("rstd", Check::Value, 0, Some(1))[0], |_| true);
        line.expected_failure = Some("known".to_owned());
        assert_eq!(findings(&[line]), []);
    }
}
