//! What a run found, in numbers.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::case::{Facts, Level, ShapeClass};
use crate::finding::{Finding, findings, is_plain};
use crate::outcome::Outcome;
use crate::same_error::essence;

/// What was tested by what.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// Version of the program.
    pub deepinfer: String,
    /// Plugin ABI that the program speaks.
    pub abi: String,
    /// Name of the backend.
    pub backend: String,
    /// Its version.
    pub version: String,
    /// Toolchain and build, in its words.
    pub build: String,
    /// Plugin ABI that it speaks.
    pub backend_abi: String,
    /// File.
    pub path: String,
    /// Device, in its words.
    pub device: String,
}

/// What came of one case.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// `op/check/number`.
    pub name: String,
    /// Op, or what else is tested.
    pub op: String,
    /// Level.
    pub level: Level,
    /// Formats, shapes and contents, for cases of ops.
    pub facts: Option<Facts>,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Why it was expected to fail, if it was.
    pub expected_failure: Option<String>,
    /// Seconds.
    pub seconds: f64,
    /// Command line that runs this case alone.
    pub rerun: String,
    /// Absolute path of the file with its call, for `deepinfer replay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle: Option<String>,
}

impl Line {
    /// Whether it did not run, and was not expected to fail either.
    pub fn is_gap(&self) -> bool {
        matches!(self.outcome, Outcome::NotTried { .. }) && self.expected_failure.is_none()
    }

    /// Whether it failed and was not expected to.
    pub fn is_failure(&self) -> bool {
        matches!(self.outcome, Outcome::Failed(_)) && self.expected_failure.is_none()
    }
}

/// Worst error of the cases with one combination of formats and one class of shapes.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Formats, as in [`Facts`].
    pub formats: String,
    /// Class.
    pub shape: ShapeClass,
    /// Cases.
    pub cases: usize,
    /// Those that failed, expected or not.
    pub failures: usize,
    /// Largest error as a share of what the contract allows; `None` if nothing was compared.
    pub worst: Option<f64>,
    /// Whether some error has no such share: wrong bits where bits must be equal, or a value that is not finite.
    pub is_unbounded: bool,
    /// Name of the case with that error; of failures, of which one has no share, the first such.
    pub worst_case: Option<String>,
    /// Its file for `deepinfer replay`, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle: Option<String>,
}

impl Cell {
    /// Counts a case; `share` is its error as a share of what is allowed, infinite where it has none.
    fn count(&mut self, line: &Line, share: Option<f64>) {
        self.cases += 1;
        self.failures += usize::from(matches!(line.outcome, Outcome::Failed(_)));
        let worst = if self.is_unbounded { Some(f64::INFINITY) } else { self.worst };
        let is_worse = match (share, worst) {
            (Some(share), Some(worst)) => share > worst,
            (share, worst) => share.is_some() || (worst.is_none() && line.bundle.is_some() && self.bundle.is_none()),
        };
        if is_worse {
            (self.worst_case, self.bundle) = (Some(line.name.clone()), line.bundle.clone());
        }
        let finite = share.filter(|share| share.is_finite());
        self.is_unbounded |= share.is_some() && finite.is_none();
        self.worst = self.worst.into_iter().chain(finite).reduce(f64::max);
    }
}

/// Why a backend declines cases of an op.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Declined {
    /// Its reason.
    pub reason: String,
    /// Cases for which it gives it.
    pub cases: usize,
}

/// Results of one op.
#[derive(Clone, Debug, Serialize)]
pub struct OpSummary {
    /// Op, or what else is tested.
    pub op: String,
    /// Cases that ran.
    pub cases: usize,
    /// Failures that were not expected.
    pub failures: usize,
    /// Failures that were expected.
    pub expected_failures: usize,
    /// Cases of a form that the backend declines.
    pub unsupported: usize,
    /// Why it declines them, in the order in which they ran.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub declined: Vec<Declined>,
    /// Cases that did not run ([`Outcome::NotTried`]).
    pub not_tried: usize,
    /// Largest errors.
    pub worst: Vec<Cell>,
}

/// The answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// All came as expected.
    Conforms,
    /// Something failed, passed unexpectedly, or is missing.
    Fails,
}

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was tested.
    pub identity: Identity,
    /// Seed of the arguments.
    pub seed: u64,
    /// Levels that ran.
    pub levels: Vec<Level>,
    /// Profile that was required, or `none`.
    pub profile: String,
    /// Variables of the environment that may have had a say, by name.
    pub settings: BTreeMap<String, String>,
    /// Ops of the profile that the backend lacks, or of which it declined every case.
    pub missing_ops: Vec<String>,
    /// Other ops that it lacks.
    pub unsupported_ops: Vec<String>,
    /// Ops of the backend alone, of which there are no cases.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub own_ops: Vec<String>,
    /// The answer.
    pub verdict: Verdict,
    /// Cases that ran.
    pub cases: usize,
    /// Failures that were not expected.
    pub failures: usize,
    /// Failures that were expected.
    pub expected_failures: usize,
    /// Cases of a form that the backend declines.
    pub unsupported: usize,
    /// Cases that did not run ([`Outcome::NotTried`]).
    pub not_tried: usize,
    /// Expected failures that do not occur.
    pub unexpected_passes: Vec<String>,
    /// What the failures that were not expected have in common.
    pub findings: Vec<Finding>,
    /// By op, in the order in which they ran.
    pub ops: Vec<OpSummary>,
    /// Cases that failed, expected or not.
    pub failed: Vec<Line>,
    /// All cases; not part of the JSON.
    #[serde(skip)]
    pub lines: Vec<Line>,
}

impl Report {
    /// Counts what came of a run. `required` and `others` are ops that the backend lacks: of the profile, and besides.
    pub fn new(
        identity: Identity,
        (seed, levels, profile): (u64, &[Level], &str),
        (required, others): (Vec<String>, Vec<String>),
        lines: Vec<Line>,
        unexpected_passes: Vec<String>,
    ) -> Self {
        let mut order: Vec<&str> = Vec::new();
        for line in &lines {
            if order.last() != Some(&line.op.as_str()) && !order.contains(&line.op.as_str()) {
                order.push(&line.op);
            }
        }
        let ops: Vec<OpSummary> =
            order.into_iter().map(|op| summary(op, lines.iter().filter(|line| line.op == op))).collect();
        let count = |of: fn(&OpSummary) -> usize| ops.iter().map(of).sum();
        let failures = count(|op| op.failures);
        let conforms =
            failures == 0 && !lines.iter().any(Line::is_gap) && required.is_empty() && unexpected_passes.is_empty();
        Self {
            identity,
            seed,
            levels: levels.to_vec(),
            profile: profile.to_owned(),
            settings: BTreeMap::new(),
            missing_ops: required,
            unsupported_ops: others,
            own_ops: Vec::new(),
            verdict: if conforms { Verdict::Conforms } else { Verdict::Fails },
            cases: lines.len(),
            failures,
            expected_failures: count(|op| op.expected_failures),
            unsupported: count(|op| op.unsupported),
            not_tried: count(|op| op.not_tried),
            unexpected_passes,
            findings: findings(&lines),
            failed: lines.iter().filter(|line| matches!(line.outcome, Outcome::Failed(_))).cloned().collect(),
            ops,
            lines,
        }
    }

    /// Failures that were not expected. Of those of an op that end with the same error there is one, a plain call if one is
    /// among them, in the place of the first; the number behind it says how many more there are.
    pub fn distinct_failures(&self) -> Vec<(&Line, usize)> {
        let mut distinct: Vec<(&Line, usize)> = Vec::new();
        let mut places: HashMap<(&str, String), usize> = HashMap::new();
        for line in self.failed.iter().filter(|line| line.is_failure()) {
            let Outcome::Failed(failure) = &line.outcome else { continue };
            let place = failure.error.as_deref().map(|error| places.entry((&line.op, essence(error))));
            match place {
                Some(Entry::Occupied(place)) => {
                    let (known, more) = &mut distinct[*place.get()];
                    *more += 1;
                    if is_plain(line) && !is_plain(known) {
                        *known = line;
                    }
                    continue;
                }
                Some(Entry::Vacant(place)) => drop(place.insert(distinct.len())),
                None => {}
            }
            distinct.push((line, 0));
        }
        distinct
    }

    /// The report as JSON, without the cases that passed.
    ///
    /// # Errors
    /// As [`serde_json`] says.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

fn summary<'a>(op: &str, lines: impl Iterator<Item = &'a Line>) -> OpSummary {
    let (failures, expected_failures, unsupported, not_tried) = Default::default();
    let (op, worst, declined) = (op.to_owned(), Vec::new(), Vec::new());
    let mut out = OpSummary { op, cases: 0, failures, expected_failures, unsupported, declined, not_tried, worst };
    let mut cells: BTreeMap<(String, ShapeClass), Cell> = BTreeMap::new();
    for line in lines {
        out.cases += 1;
        out.failures += usize::from(line.is_failure());
        let failed = matches!(line.outcome, Outcome::Failed(_));
        out.expected_failures += usize::from(failed && line.expected_failure.is_some());
        out.not_tried += usize::from(matches!(line.outcome, Outcome::NotTried { .. }));
        if let Outcome::Unsupported { reason } = &line.outcome {
            out.unsupported += 1;
            match out.declined.iter_mut().find(|known| known.reason == *reason) {
                Some(known) => known.cases += 1,
                None => out.declined.push(Declined { reason: reason.clone(), cases: 1 }),
            }
        }
        let Some(facts) = line.facts.as_ref().filter(|facts| facts.content.is_some()) else { continue };
        let key = (facts.formats.clone(), facts.shape);
        let cell = cells.entry(key).or_insert_with(|| Cell {
            formats: facts.formats.clone(),
            shape: facts.shape,
            cases: 0,
            failures: 0,
            worst: None,
            is_unbounded: false,
            worst_case: None,
            bundle: None,
        });
        let share = match &line.outcome {
            Outcome::Passed { share } => *share,
            Outcome::Unsupported { .. } | Outcome::NotTried { .. } => None,
            Outcome::Failed(failure) => failure.worst.as_ref().map(|worst| worst.share().unwrap_or(f64::INFINITY)),
        };
        cell.count(line, share);
    }
    out.worst = cells.into_values().collect();
    out
}
