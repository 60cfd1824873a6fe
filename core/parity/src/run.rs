//! Running a case on a device.

use deepinfer_ops::{Device, OpError};
use deepinfer_oracle::{Call, HostTensor, Mismatch, Value, compare, first_difference, oracle_of};
use deepinfer_plugin_api::Role;

use crate::case::{Case, Check};
use crate::generate::{Calls, OpSpec, Rows, poisoned};
use crate::outcome::{Failure, Outcome};
use crate::place::{Layout, Route, RunError, Written, run};
use crate::refuse::{self, Wrong};
use crate::rng::SplitMix64;

/// Why a case does not pass.
enum Problem {
    /// The backend declines the call.
    Unsupported(String),
    /// Something is wrong.
    Wrong(Failure),
}

impl From<String> for Problem {
    fn from(problem: String) -> Self {
        Self::Wrong(Failure { problem, worst: None })
    }
}

/// Runs a case.
///
/// # Panics
/// If the op has no case of this check and number.
pub fn run_case(device: &dyn Device, case: &Case) -> Outcome {
    let spec = case.spec();
    let share = match case.check {
        Check::Value => agrees(device, &case.call().0).map(Some),
        Check::Poison => agrees(device, &poisoned(&case.call().0, 0xA5)).map(Some),
        Check::Empty => accepted(device, &case.call().0, Layout::Contiguous).map(|_| None),
        Check::Refusal | Check::Malformed => refuses(device, spec, case).map(|()| None),
        Check::Strided => strides_change_no_bit(device, &case.call().0).map(|()| None),
        Check::Twice => twice_the_same(device, &case.call().0).map(|()| None),
        Check::Rows => {
            let rng = SplitMix64(case.number as u64);
            rows_are_independent(device, spec.rows, &case.call().0, rng).map(|()| None)
        }
    };
    match share {
        Ok(share) => Outcome::Passed { share },
        Err(Problem::Unsupported(reason)) => Outcome::Unsupported { reason },
        Err(Problem::Wrong(failure)) => Outcome::Failed(failure),
    }
}

/// Runs a call that must be accepted, unless the backend lacks this form of the op.
fn accepted(device: &dyn Device, call: &Call, layout: Layout) -> Result<Written, Problem> {
    let rows = if layout == Layout::Strided { "with gaps between its rows " } else { "" };
    run(device, call, layout, Route::Trait).map_err(|error| match error {
        RunError::Op(OpError::Unsupported { reason, .. }) => Problem::Unsupported(reason),
        RunError::Op(error) => format!("a valid call {rows}was refused: {error}").into(),
        RunError::Upload(error) => format!("the arguments cannot be uploaded: {error}").into(),
        RunError::Gap(name) => format!("the gaps between the rows of {name} were written").into(),
    })
}

/// The largest error, as a share of what is allowed.
fn agrees(device: &dyn Device, call: &Call) -> Result<f64, Problem> {
    let found = accepted(device, call, Layout::Contiguous)?;
    let oracle = oracle_of(call.op.name).unwrap_or_else(|| panic!("{} has no oracle", call.op.name));
    let wants = oracle(call);
    let written = call.op.args.iter().filter(|arg| arg.role != Role::In);
    let mut worst = 0f64;
    for arg in written.filter(|arg| call.optional(arg.name).is_some()) {
        let want = wants.iter().find(|(name, _)| *name == arg.name);
        let (_, want) = want.unwrap_or_else(|| panic!("the oracle of {} gives no {}", call.op.name, arg.name));
        let share = compare(arg.name, want, &found[arg.name], call.tensor(arg.name))
            .map_err(|mismatch| differs("the result is not that of the oracle", mismatch))?;
        worst = worst.max(share);
    }
    Ok(worst)
}

fn differs(problem: &str, mismatch: Box<Mismatch>) -> Problem {
    Problem::Wrong(Failure { problem: problem.to_owned(), worst: Some(mismatch) })
}

/// The bits of both must be equal. What a NaN carries through an addition is not defined.
fn same_bits(when: &str, found: &Written, wanted: &Written) -> Result<(), Problem> {
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
    same_bits("when rows lie apart", &strided, &contiguous)
}

fn twice_the_same(device: &dyn Device, call: &Call) -> Result<(), Problem> {
    let first = accepted(device, call, Layout::Contiguous)?;
    let second = accepted(device, call, Layout::Contiguous)?;
    same_bits("from one call to the next", &second, &first)
}

/// The wrong call is refused, and the right one that it derives from still runs.
fn refuses(device: &dyn Device, spec: &'static OpSpec, case: &Case) -> Result<(), Problem> {
    let base = Calls::new(spec, case.seed).base();
    let mut wrong: Vec<Wrong> = match case.check {
        Check::Refusal => refuse::wrong_values(spec, &base),
        _ => refuse::wrong_tensors(&base),
    };
    refuse::expect_refusal(device, &wrong.swap_remove(case.number))?;
    match accepted(device, &base, Layout::Contiguous) {
        Err(Problem::Wrong(failure)) => Err(format!("after the refusal, {failure}").into()),
        other => other.map(drop),
    }
}

fn rows_are_independent(device: &dyn Device, rows: Rows, call: &Call, mut rng: SplitMix64) -> Result<(), Problem> {
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
    for chosen in choices {
        let mut fewer = call.select(symbol, &chosen);
        if matches!(rows, Rows::OfExperts) {
            let start = call.tensor("expert_start").ints();
            let below = |first: &i64| chosen.iter().filter(|&&row| (row as i64) < *first).count() as i32;
            let start: Vec<i32> = start.iter().map(below).collect();
            fewer.set("expert_start", Value::Tensor(HostTensor::i32(&[start.len()], &start)));
        }
        let found = accepted(device, &fewer, Layout::Contiguous)?;
        for arg in call.op.args {
            let Some(dim) = arg.shape.iter().position(|extent| *extent == symbol) else { continue };
            let (Some(found), Some(all)) = (found.get(arg.name), all.get(arg.name)) else { continue };
            let wanted = all.select(dim, &chosen);
            if !found.same_but_nan(&wanted) {
                let mismatch = Mismatch { argument: arg.name.to_owned(), ..first_difference(&wanted, found, true) };
                let company = format!("of the rows {chosen:?} the bits are others than among all {count}");
                return Err(differs(&company, Box::new(mismatch)));
            }
        }
    }
    Ok(())
}
