//! Running a case on a device.

use std::fmt;

use deepinfer_ops::{Device, OpError};
use deepinfer_oracle::{Call, Disagreement, HostTensor, Mismatch, Outputs, Value, first_difference};

use deepinfer_plugin_api::ArgInfo;
use deepinfer_runtime::{OpenDevice, conformance};

use crate::case::{Case, Check, FEW};
use crate::fault::Fault;
use crate::generate::{Calls, OpSpec, Rows, poisoned};
use crate::outcome::{Failure, Outcome};
use crate::place::{Around, Layout, Route, RunError, run, run_on_constants};
use crate::refuse::{self, Wrong};
use crate::rng::SplitMix64;
use crate::{concurrent, present, recorded};

/// A call that went wrong, and what the backend wrote, where it wrote something.
#[derive(Clone)]
pub struct Evidence {
    /// The call.
    pub call: Call,
    /// Its outputs.
    pub found: Option<Outputs>,
}

/// Why a call gave no outputs.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The backend declines this form of the op.
    #[error("the backend declines the call: {0}")]
    Unsupported(String),
    /// The backend does not take the call, or reports a fault.
    #[error("a valid call was refused: {0}")]
    Refused(OpError),
    /// There is no room for the arguments, or they cannot be copied.
    #[error("the arguments cannot be uploaded: {0}")]
    Upload(OpError),
}

/// Makes a call on a device, with its arguments one after the other in memory, and gives its outputs.
///
/// # Errors
/// The call gave none. A malformed one is refused before the backend sees it.
///
/// # Panics
/// If the call lacks an argument of its op.
pub fn run_call(device: &dyn Device, call: &Call) -> Result<Outputs, CallError> {
    run(device, call, Layout::Contiguous, Route::Trait).map_err(|error| match error {
        RunError::Op(OpError::Unsupported { reason, .. }) => CallError::Unsupported(reason),
        RunError::Op(error) => CallError::Refused(error),
        RunError::Upload(error) => CallError::Upload(error),
        RunError::Gap(name) | RunError::Outside(name, _) | RunError::Input(name) => {
            unreachable!("nothing around {name} is looked at")
        }
    })
}

/// Why a case does not pass.
pub(crate) enum Problem {
    /// The backend declines the call.
    Unsupported(String),
    /// Something is wrong.
    Wrong(Failure, Option<Box<Evidence>>),
}

impl From<String> for Problem {
    fn from(problem: String) -> Self {
        Self::Wrong(Failure::new(problem), None)
    }
}

impl Problem {
    /// A failure of a kind.
    pub(crate) fn named(fault: Fault, problem: impl Into<String>) -> Self {
        Self::Wrong(Failure::new(problem).of(fault), None)
    }

    /// The same, of a kind if it is that bits differ: only then has the check found what it looks for.
    pub(crate) fn if_bits_differ(self, fault: Fault) -> Self {
        match self {
            Self::Wrong(failure, evidence) if failure.worst.is_some() => Self::Wrong(failure.of(fault), evidence),
            other => other,
        }
    }

    /// The same, because of an error.
    pub(crate) fn because_of(self, error: &dyn fmt::Display) -> Self {
        match self {
            Self::Wrong(failure, evidence) => Self::Wrong(failure.because_of(error.to_string()), evidence),
            declined @ Self::Unsupported(_) => declined,
        }
    }

    /// Keeps a call with the failure that it made.
    pub(crate) fn of(self, call: &Call, found: Option<&Outputs>) -> Self {
        match self {
            Self::Wrong(failure, _) => {
                Self::Wrong(failure, Some(Box::new(Evidence { call: call.clone(), found: found.cloned() })))
            }
            declined @ Self::Unsupported(_) => declined,
        }
    }
}

/// Runs a case.
///
/// # Panics
/// If the op has no case of this check and number.
pub fn run_case(device: &OpenDevice, case: &Case) -> Outcome {
    run_case_with_evidence(device, case).0
}

/// Runs a case and gives, where it fails, the call that did. Calls that are wrong on purpose are no evidence.
///
/// # Panics
/// As [`run_case`].
pub fn run_case_with_evidence(device: &OpenDevice, case: &Case) -> (Outcome, Option<Evidence>) {
    let (spec, call) = (case.spec(), || case.call().0);
    let bits = |result: Result<(), Problem>, fault| match result {
        Ok(()) => Ok(None),
        Err(problem) => Err(problem.if_bits_differ(fault)),
    };
    let share = match case.check {
        Check::StructSize => present::any_length_is_taken(device, &call(), case.number).map(|()| None),
        Check::UnknownValue => present::unknown_values_are_refused(device, &call(), case.number).map(|()| None),
        Check::Honesty => honest(device, &call()).map(|()| None),
        Check::Value | Check::Large => agrees(device, &call()).map(Some),
        Check::Poison => agrees(device, &poisoned(&call(), 0xA5)).map(Some),
        Check::Empty => empty_is_right(device, spec.rows, &call()).map(|()| None),
        Check::Refusal | Check::Malformed => refuses(device, spec, case).map(|()| None),
        Check::Bounds => stays_within(device, &call()).map(|()| None),
        Check::Strided => bits(strides_change_no_bit(device, &call()), Fault::Strides),
        Check::Twice => bits(twice_the_same(device, &call()), Fault::NotDeterministic),
        Check::Workspace => bits(workspace_does_not_matter(device, &call()), Fault::StaleWorkspace),
        Check::Rows => {
            let rng = SplitMix64(case.number as u64);
            let many = if case.number < FEW { MANY } else { 0 };
            bits(rows_are_independent(device, spec.rows, &call(), many, rng), Fault::BatchDependent)
        }
        Check::Streams => bits(concurrent::streams_do_not_mix(device, &case.pair()), Fault::StreamRace),
        Check::Replay => bits(recorded::replay_gives_the_same(device, spec.rows, &call()), Fault::Replay),
    };
    match share {
        Ok(share) => (Outcome::Passed { share }, None),
        Err(Problem::Unsupported(reason)) => (Outcome::Unsupported { reason }, None),
        Err(Problem::Wrong(failure, evidence)) => (Outcome::Failed(failure), evidence.map(|evidence| *evidence)),
    }
}

/// Runs a call that must be accepted, unless the backend lacks this form of the op.
pub(crate) fn accepted(device: &dyn Device, call: &Call, layout: Layout) -> Result<Outputs, Problem> {
    let rows = if layout == Layout::Strided { "with gaps between its rows " } else { "" };
    run(device, call, layout, Route::Trait).map_err(|error| problem_of(error, call, rows))
}

/// Why a call that must be accepted gave nothing. `how` says what is special about it.
pub(crate) fn problem_of(error: RunError, call: &Call, how: &str) -> Problem {
    let by_itself = match &error {
        RunError::Op(error) | RunError::Upload(error) => by_itself(error),
        _ => None,
    };
    if let Some(problem) = by_itself {
        return problem.of(call, None);
    }
    let problem = match error {
        RunError::Op(OpError::Unsupported { reason, .. }) => return Problem::Unsupported(reason),
        RunError::Op(error @ OpError::Dishonest { .. }) => Problem::named(Fault::LyingSupports, error.to_string()),
        RunError::Op(error) => {
            Problem::named(Fault::RefusesValid, format!("a valid call {how}was refused: {error}")).because_of(&error)
        }
        RunError::Upload(error) => cannot_upload(&error),
        RunError::Gap(name) => {
            Problem::named(Fault::OutOfBounds, format!("the gaps between the rows of {name} were written"))
        }
        RunError::Outside(name, at) => {
            Problem::named(Fault::OutOfBounds, format!("{at} of {name} was written, which belongs to no argument"))
        }
        RunError::Input(name) => {
            Problem::named(Fault::InputWritten, format!("{name} was written, which the op may only read"))
        }
    };
    problem.of(call, None)
}

pub(crate) fn cannot_upload(error: &OpError) -> Problem {
    by_itself(error).unwrap_or_else(|| {
        Problem::named(Fault::SetUp, format!("the arguments cannot be uploaded: {error}")).because_of(error)
    })
}

/// The problem that an error is whatever was called: a panic of the backend, the loss of the device, or what a layer over it
/// reports.
pub(crate) fn by_itself(error: &OpError) -> Option<Problem> {
    let (fault, text) = match error {
        OpError::DeviceLost(_) => (Some(Fault::DeviceLost), error.to_string()),
        OpError::Panicked { origin, message } => (Fault::of_error(true, origin, message), error.to_string()),
        OpError::Backend { origin, message } => (Fault::of_error(false, origin, message), message.clone()),
        _ => return None,
    };
    fault.map(|fault| Problem::named(fault, text).because_of(error))
}

/// Nothing around the tensors is written, and no result depends on it.
fn stays_within(device: &dyn Device, call: &Call) -> Result<(), Problem> {
    let with = |around| accepted(device, call, Layout::Guarded(around));
    let wanted = with(Around::Usual)?;
    let found = with(Around::Other)?;
    let Err(problem) = same_bits("with what lies around the tensors", &found, &wanted) else { return Ok(()) };
    // An op that never gives the same bits has not read anything for that.
    same_bits("from one call to the next", &with(Around::Usual)?, &wanted)
        .map_err(|problem| problem.if_bits_differ(Fault::NotDeterministic).of(call, Some(&found)))?;
    let tensors = call.op.args.iter().map(|arg| arg.name);
    for name in tensors.filter(|name| matches!(call.args.get(name), Some(Value::Tensor(_) | Value::List(_)))) {
        let found = with(Around::OtherOf(name))?;
        same_bits(&format!("with what lies around {name}"), &found, &wanted)
            .map_err(|problem| problem.if_bits_differ(Fault::OverRead).of(call, Some(&found)))?;
    }
    Err(problem.if_bits_differ(Fault::OverRead).of(call, Some(&found)))
}

/// A call is not declined when it is run, whatever else becomes of it, if only the device survives it.
fn honest(device: &dyn Device, call: &Call) -> Result<(), Problem> {
    match run(device, call, Layout::Contiguous, Route::Kernel) {
        Err(error @ RunError::Op(OpError::Dishonest { .. } | OpError::Unsupported { .. } | OpError::DeviceLost(_))) => {
            Err(problem_of(error, call, ""))
        }
        _ => Ok(()),
    }
}

/// The largest error, as a share of what is allowed.
fn agrees(device: &dyn Device, call: &Call) -> Result<f64, Problem> {
    let found = run_on_constants(device, call).map_err(|error| problem_of(error, call, ""))?;
    call.judge(&found).map_err(|disagreement| {
        let problem = match disagreement {
            Disagreement::Beyond(mismatch) => differs("the result is not that of the oracle", mismatch),
            other => other.to_string().into(),
        };
        problem.of(call, Some(&found))
    })
}

fn differs(problem: &str, mismatch: Box<Mismatch>) -> Problem {
    Problem::Wrong(Failure { worst: Some(mismatch), ..Failure::new(problem) }, None)
}

/// The bits of both must be equal. What a NaN carries through an addition is not defined.
pub(crate) fn same_bits(when: &str, found: &Outputs, wanted: &Outputs) -> Result<(), Problem> {
    for (name, wanted) in wanted {
        let found = &found[name];
        if !found.same_but_nan(wanted) {
            let mismatch = Mismatch { argument: (*name).to_owned(), ..first_difference(wanted, found, true) };
            return Err(differs(&format!("the bits change {when}"), Box::new(mismatch)));
        }
    }
    Ok(())
}

fn strides_change_no_bit(device: &dyn Device, call: &Call) -> Result<(), Problem> {
    let contiguous = accepted(device, call, Layout::Contiguous)?;
    let strided = accepted(device, call, Layout::Strided)?;
    same_bits("when rows lie apart", &strided, &contiguous).map_err(|problem| problem.of(call, Some(&strided)))
}

fn twice_the_same(device: &dyn Device, call: &Call) -> Result<(), Problem> {
    let first = accepted(device, call, Layout::Contiguous)?;
    let second = accepted(device, call, Layout::Contiguous)?;
    same_bits("from one call to the next", &second, &first).map_err(|problem| problem.of(call, Some(&second)))
}

/// What an op of this stream leaves in the workspace is no matter of the next one: nor are zeros, nor NaNs.
fn workspace_does_not_matter(device: &OpenDevice, call: &Call) -> Result<(), Problem> {
    if !conformance::has_plan(device, call.op) {
        // It gets no workspace. What changes then is the matter of other checks.
        return accepted(device, call, Layout::Contiguous).map(drop);
    }
    let fill = |byte| conformance::fill_workspace(device, byte).map_err(|e| Problem::from(e.to_string()));
    // The first call makes the workspace.
    accepted(device, call, Layout::Contiguous)?;
    fill(0)?;
    let cleared = accepted(device, call, Layout::Contiguous)?;
    for byte in [0xFF, 0x3C] {
        fill(byte)?;
        let found = accepted(device, call, Layout::Contiguous)?;
        let when = format!("when the workspace is full of {byte:#04x} instead of zeros");
        same_bits(&when, &found, &cleared).map_err(|problem| problem.of(call, Some(&found)))?;
    }
    Ok(())
}

/// The wrong call is refused, and the right one that it derives from still runs.
fn refuses(device: &OpenDevice, spec: &'static OpSpec, case: &Case) -> Result<(), Problem> {
    // A byte that no plugin writes first, so that it shows when one does.
    let poisoned = |call: &Call| poisoned(call, 0xA5);
    let base = poisoned(&Calls::new(spec, case.seed).base());
    let mut wrong: Vec<Wrong> = match case.check {
        Check::Refusal => refuse::wrong_values(spec, &base),
        _ => refuse::wrong_tensors(&base),
    };
    let mut wrong = wrong.swap_remove(case.number);
    wrong.call = poisoned(&wrong.call);
    refuse::expect_refusal(device, &base, &wrong)?;
    match accepted(device, &base, Layout::Contiguous) {
        Err(Problem::Wrong(failure, evidence)) => {
            let failure = Failure { problem: format!("after the refusal, {}", failure.problem), ..failure };
            Err(Problem::Wrong(failure, evidence))
        }
        other => other.map(drop),
    }
}

/// More rows than the blocks of a launch take in one turn: what a kernel does between two turns shows.
const MANY: usize = 1100;
/// Most elements that all rows of such a call have together: there are fewer of long ones.
const MOST: usize = 1 << 20;

/// The rows of a call over and over: `many` of them, or fewer where they are long. `None` where that is no other call.
fn over_and_over(call: &Call, symbol: &str, many: usize) -> Option<Vec<usize>> {
    let count = call.extent(symbol);
    let is_of_rows = |arg: &&ArgInfo| arg.shape.contains(&symbol);
    let elements = call.op.args.iter().filter(is_of_rows).map(|arg| match call.args.get(arg.name) {
        Some(Value::Tensor(tensor)) => tensor.len(),
        Some(Value::List(list)) => list.iter().map(HostTensor::len).sum(),
        _ => 0,
    });
    let per_row = elements.sum::<usize>().div_ceil(count.max(1));
    let rows = many.min(MOST / per_row.max(1));
    (count > 0 && rows > 2 * count).then(|| (0..rows).map(|row| row % count).collect())
}

/// An empty call gives what the oracle does, also of many rows.
fn empty_is_right(device: &dyn Device, rows: Rows, call: &Call) -> Result<(), Problem> {
    agrees(device, call)?;
    let Rows::Any(symbol) = rows else { return Ok(()) };
    over_and_over(call, symbol, MANY).map_or(Ok(()), |rows| agrees(device, &call.select(symbol, &rows)).map(drop))
}

fn rows_are_independent(
    device: &dyn Device,
    rows: Rows,
    call: &Call,
    many: usize,
    mut rng: SplitMix64,
) -> Result<(), Problem> {
    let (symbol, count) = match rows {
        Rows::Any(symbol) | Rows::Ascending(symbol) => (symbol, call.extent(symbol)),
        Rows::OfExperts => ("M", call.extent("M")),
        Rows::Dependent => return Ok(()),
    };
    let all = accepted(device, call, Layout::Contiguous)?;
    let mut choices = vec![Vec::new()];
    if count > 0 {
        choices.extend([vec![0], vec![count - 1], vec![rng.below(count)]]);
        choices.push(if matches!(rows, Rows::Any(_)) { rng.permutation(count) } else { (count / 2..count).collect() });
    }
    if matches!(rows, Rows::Any(_)) {
        choices.extend(over_and_over(call, symbol, many));
    }
    for chosen in choices {
        let mut fewer = call.select(symbol, &chosen);
        if matches!(rows, Rows::OfExperts) {
            let start = call.tensor("expert_start").ints();
            let below = |first: &i64| chosen.iter().filter(|&&row| (row as i64) < *first).count() as i32;
            let start: Vec<i32> = start.iter().map(below).collect();
            fewer.set("expert_start", Value::Tensor(HostTensor::i32(&[start.len()], &start)));
        }
        let written = accepted(device, &fewer, Layout::Contiguous)?;
        for arg in call.op.args {
            let Some(dim) = arg.shape.iter().position(|extent| *extent == symbol) else { continue };
            let (Some(found), Some(all)) = (written.get(arg.name), all.get(arg.name)) else { continue };
            let wanted = all.select(dim, &chosen);
            if !found.same_but_nan(&wanted) {
                let mismatch = Mismatch { argument: arg.name.to_owned(), ..first_difference(&wanted, found, true) };
                let company = match chosen.as_slice() {
                    long if long.len() > count => {
                        format!("of {} rows, the {count} over and over, the bits are others than of these", long.len())
                    }
                    chosen => format!("of the rows {chosen:?} the bits are others than among all {count}"),
                };
                return Err(differs(&company, Box::new(mismatch)).of(&fewer, Some(&written)));
            }
        }
    }
    Ok(())
}
