//! `deepinfer replay`: one recorded call, made again.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;
use deepinfer_oracle::{Bundle, Found, Mismatch, first_difference};
use deepinfer_parity::{Case, Identity, Outcome};
use deepinfer_runtime::{Choice, Selection, one_line};
use serde::Serialize;

use crate::args::ReplayArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::parity::bundles;
use crate::parity::supervisor::{NotReady, Replayed, Supervisor};
use crate::parity::worker::Replay;
use crate::terminal;

/// Runs the command.
///
/// # Errors
/// The bundle or a backend is refused, or a backend declines the call ([`Failure::Input`]); the result is beyond the contract,
/// or its bits are not those of the other backend ([`Failure::Fault`]).
pub(crate) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    let bundle = bundles::read(&args.bundle).map_err(Failure::Input)?;
    let folder = tempfile::tempdir().map_err(|error| Failure::Fault(anyhow!("no folder for results: {error}")))?;
    let backends = [Some(&args.backend), args.against.as_ref()];
    let mut answers = Vec::new();
    for (number, backend) in backends.into_iter().flatten().enumerate() {
        let results = folder.path().join(number.to_string());
        answers.push(Answer::of(backend, args, &bundle, &results)?);
    }
    let difference = match &answers[..] {
        [one, other] => Some(difference_of(one, other)?),
        _ => None,
    };
    let mut output = Output::stdout()?;
    if args.json {
        let report = Report::new(args, &bundle, &answers, difference.as_ref().map(Option::as_ref));
        let json = serde_json::to_string_pretty(&report).map_err(Failure::fault)?;
        output.write(&(json + "\n"))?;
    } else {
        output.write(&terminal::printable(&text_of(&bundle, &answers, difference.as_ref().map(Option::as_ref))))?;
    }
    match (&answers[0].outcome, difference) {
        (Outcome::Failed(_), _) => Err(Failure::Fault(anyhow!("{} differs from the oracle", answers[0].name()))),
        _ if matches!(answers[0].check, Some(Outcome::Failed(_))) => {
            let case = bundle.case.as_deref().unwrap_or_default();
            Err(Failure::Fault(anyhow!("{} fails again on {}", case, answers[0].name())))
        }
        (_, Some(Some(_))) => {
            Err(Failure::Fault(anyhow!("the bits of {} and {} differ", answers[0].name(), answers[1].name())))
        }
        _ => Ok(()),
    }
}

/// What a backend has answered.
struct Answer {
    identity: Identity,
    outcome: Outcome,
    /// What came of the check from which the call is, where that is more than this call.
    check: Option<Outcome>,
    /// What it wrote, if it wrote something.
    found: Option<Found>,
    /// Whether that are the recorded bits; `None` where none are recorded or it wrote nothing.
    as_recorded: Option<bool>,
}

impl Answer {
    fn of(backend: &str, args: &ReplayArgs, bundle: &Bundle, results: &Path) -> Result<Self, Failure> {
        if Selection::parse(backend).map_err(Failure::input)?.choice == Choice::Auto {
            return Err(Failure::Input(anyhow!("the backend auto could be any; give a name or a path")));
        }
        let timeout = Duration::from_secs(args.timeout);
        let (seed, layers, bundles) = (bundle.seed.unwrap_or(0), None, None);
        let supervisor = Supervisor { backend: backend.to_owned(), seed, timeout, layers, bundles };
        let is_more = |case: &&String| Case::parse(case, seed).is_some_and(|case| !case.check.judges_each_call());
        let check = bundle.case.as_ref().filter(is_more).cloned();
        let replay = Replay { call: args.bundle.clone(), results: results.to_owned(), check };
        let Replayed { identity, outcome, check } = match supervisor.replay(replay).map_err(Failure::Fault)? {
            Ok(answer) => answer,
            Err(NotReady::Refused(why)) => return Err(Failure::Input(anyhow!("{why}"))),
            Err(NotReady::Broken(how)) => {
                return Err(Failure::Input(anyhow!("the backend {backend} does not load: {how}")));
            }
        };
        if let Outcome::Unsupported { reason } = &outcome {
            return Err(Failure::Input(anyhow!("the backend {backend} declines the call: {reason}")));
        }
        let found = match results.exists() {
            true => bundles::read(results).map_err(Failure::Fault)?.found,
            false => None,
        };
        let recorded = bundle.found.as_ref().zip(found.as_ref());
        let as_recorded = recorded.map(|(recorded, found)| first_of(recorded, found).is_none());
        Ok(Self { identity, outcome, check, found, as_recorded })
    }

    fn name(&self) -> String {
        format!("{} {}", one_line(&self.identity.backend), one_line(&self.identity.version))
    }
}

/// The first output of `one` that has other bits in `other`, and the first element in it. A NaN is a NaN.
fn first_of(one: &Found, other: &Found) -> Option<Mismatch> {
    one.outputs.iter().find_map(|(name, wanted)| {
        let found = other.outputs.get(name).filter(|found| !found.same_but_nan(wanted))?;
        Some(Mismatch { argument: (*name).to_owned(), ..first_difference(wanted, found, true) })
    })
}

/// What the first backend has that the second has not.
fn difference_of(one: &Answer, other: &Answer) -> Result<Option<Mismatch>, Failure> {
    match (&one.found, &other.found) {
        (Some(one), Some(other)) => Ok(first_of(other, one)),
        (None, _) | (_, None) => {
            let silent = if one.found.is_none() { one } else { other };
            let Outcome::Failed(failure) = &silent.outcome else { unreachable!("an answer without outputs failed") };
            Err(Failure::Fault(anyhow!("there are no bits to compare: {}: {failure}", silent.name())))
        }
    }
}

fn text_of(bundle: &Bundle, answers: &[Answer], difference: Option<Option<&Mismatch>>) -> String {
    let mut text = format!("{}\n", bundle.call);
    // Writing to a string cannot fail, here and below.
    if let Some(case) = &bundle.case {
        let seed = bundle.seed.map_or_else(String::new, |seed| format!(", seed {seed}"));
        let _ = writeln!(text, "from {case}{seed}");
    }
    if let Some(problem) = &bundle.problem {
        let by = bundle.found.as_ref().map_or("", |found| found.backend.as_str());
        let _ = writeln!(text, "recorded{}{by}: {problem}", if by.is_empty() { "" } else { " of " });
    }
    for answer in answers {
        let verdict = match &answer.outcome {
            Outcome::Passed { share } => {
                format!("agrees with the oracle; largest error {:.3} of the bound", share.unwrap_or(0.0))
            }
            Outcome::Unsupported { reason } => format!("declines the call: {reason}"),
            Outcome::NotTried { reason } => format!("was not tried: {reason}"),
            Outcome::Failed(failure) => format!("DIFFERS: {failure}"),
        };
        let _ = writeln!(text, "{} on {}: {verdict}", answer.name(), one_line(&answer.identity.device));
        if let (Some(check), Some(case)) = (&answer.check, &bundle.case) {
            let again = match check {
                Outcome::Passed { .. } => "it passes".to_owned(),
                Outcome::Unsupported { reason } => format!("it declines a call: {reason}"),
                Outcome::NotTried { reason } => format!("it was not tried: {reason}"),
                Outcome::Failed(failure) => format!("it FAILS: {failure}"),
            };
            let _ = writeln!(text, "  {case} is about more than this one call; made again, {again}");
        }
        match answer.as_recorded {
            None => {}
            Some(true) => text.push_str("  the recorded bits come again\n"),
            Some(false) => text.push_str("  the bits are not the recorded ones\n"),
        }
    }
    match difference {
        None => {}
        Some(None) => text.push_str("the bits of both are equal\n"),
        Some(Some(mismatch)) => {
            let Mismatch { found, found_bits, wanted, wanted_bits, .. } = mismatch;
            let at = mismatch.place();
            let _ = writeln!(text, "the bits differ: {at} is {found} ({found_bits}) and {wanted} ({wanted_bits})");
        }
    }
    text
}

/// The JSON.
#[derive(Serialize)]
struct Report<'a> {
    bundle: String,
    op: &'static str,
    op_version: u32,
    call: String,
    case: Option<&'a str>,
    seed: Option<u64>,
    recorded: Option<Recorded<'a>>,
    answers: Vec<Line<'a>>,
    /// `None` when there is one backend.
    bits_equal: Option<bool>,
    first_difference: Option<&'a Mismatch>,
}

#[derive(Serialize)]
struct Recorded<'a> {
    backend: Option<&'a str>,
    problem: Option<&'a str>,
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    identity: &'a Identity,
    #[serde(flatten)]
    outcome: &'a Outcome,
    /// Of the check from which the call is, where that is about more than this call.
    check: Option<&'a Outcome>,
    as_recorded: Option<bool>,
}

impl<'a> Report<'a> {
    fn new(
        args: &ReplayArgs,
        bundle: &'a Bundle,
        answers: &'a [Answer],
        difference: Option<Option<&'a Mismatch>>,
    ) -> Self {
        let recorded = Recorded {
            backend: bundle.found.as_ref().map(|found| found.backend.as_str()),
            problem: bundle.problem.as_deref(),
        };
        let line = |answer: &'a Answer| {
            let Answer { identity, outcome, check, as_recorded, .. } = answer;
            Line { identity, outcome, check: check.as_ref(), as_recorded: *as_recorded }
        };
        Self {
            bundle: args.bundle.display().to_string(),
            op: bundle.call.op.name,
            op_version: bundle.call.op.version,
            call: bundle.call.to_string(),
            case: bundle.case.as_deref(),
            seed: bundle.seed,
            recorded: (recorded.backend.is_some() || recorded.problem.is_some()).then_some(recorded),
            answers: answers.iter().map(line).collect(),
            bits_equal: difference.map(|difference| difference.is_none()),
            first_difference: difference.flatten(),
        }
    }
}
