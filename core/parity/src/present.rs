//! What only C can present to an op: argument structs of any length at the edge of memory, values that nobody knows.

use deepinfer_oracle::{Call, Outputs};
use deepinfer_runtime::conformance::{Answer, Presented, expect_refusal, present};
use deepinfer_runtime::{OpenDevice, PluginError};

use crate::fault::Fault;
use crate::place::{Layout, PlacedCall};
use crate::run::{Problem, accepted, cannot_upload, problem_of, same_bits};

/// Presents a call and gives the answer, with what was written.
fn answer(device: &OpenDevice, call: &Call, how: Presented) -> Result<(Answer, Outputs), Problem> {
    let placed = PlacedCall::new(device, call, Layout::Contiguous).map_err(|error| cannot_upload(&error))?;
    let answer = placed.with(|raw| present(device, raw, how)).map_err(Problem::from)?;
    // A layer that refuses what is wrong on purpose breaks no rule; that it reports the backend is the outcome.
    if let Answer::Refused(_, error) = &answer
        && let Some(fault) = kind_of(error).filter(|fault| *fault != Fault::Layer)
    {
        let origin = if error.is_panic() { format!("{}: ", error.origin) } else { String::new() };
        return Err(Problem::named(fault, format!("{origin}{error}")).because_of(error).of(call, None));
    }
    // Of what lasts, the next call would report a consequence. What a layer has refused is told as a refusal.
    match &answer {
        Answer::Refused(function, error) if error.is_lasting() && kind_of(error).is_none() => {
            let text = format!("with {how}, the device is lost: {function}: {error}");
            return Err(Problem::named(Fault::DeviceLost, text).because_of(error).of(call, None));
        }
        Answer::Refused(_, error) if error.is_lasting() => return Ok((answer, Outputs::new())),
        _ => {}
    }
    let found = placed.read(device).map_err(|error| problem_of(error, call, ""))?;
    Ok((answer, found))
}

/// The kind that an error has by itself.
fn kind_of(error: &PluginError) -> Option<Fault> {
    Fault::of_error(error.is_panic(), &error.origin, &error.message)
}

/// Every length that a struct of an older, of this or of a newer core may have is taken, and nothing beyond it is touched.
/// An older core's arguments may be refused, where what is missing is not optional.
pub(crate) fn any_length_is_taken(device: &OpenDevice, call: &Call, number: usize) -> Result<(), Problem> {
    let how = Presented::lengths_of(call.op)[number];
    let (answer, found) = answer(device, call, how)?;
    match (answer, how) {
        (Answer::Ran, Presented::Args(bytes)) if bytes > call.op.args_size => {
            let (_, wanted) = self::answer(device, call, Presented::Args(call.op.args_size))?;
            same_bits(&format!("with {how}"), &found, &wanted)
                .map_err(|problem| problem.if_bits_differ(Fault::SizeEquality))
        }
        (Answer::Ran | Answer::Planned | Answer::Absent, _) => Ok(()),
        // Of a call that it declines at any length, the usual one brings the reason.
        (Answer::Declined, _) => Err(match accepted(device, call, Layout::Contiguous) {
            Err(declined @ Problem::Unsupported(_)) => declined,
            _ => Problem::Unsupported(format!("supports says no with {how}")),
        }),
        (Answer::Refused(_, error), Presented::Args(bytes)) if bytes < call.op.args_size => {
            expect_refusal(&how.to_string(), &error)
                .map_err(|problem| Problem::named(Fault::OverRead, problem).because_of(&error))
        }
        (Answer::Refused(_, error), _) if kind_of(&error).is_some() => {
            Err(Problem::named(Fault::Layer, error.to_string()))
        }
        (Answer::Refused(function, error), _) => Err(Problem::named(
            Fault::SizeEquality,
            format!(
                "with {how}, {function} refuses a valid call: {error}; struct_size says how much there is to read, and is \
                 not to be compared"
            ),
        )
        .because_of(&error)),
    }
}

/// What nobody knows is declined or refused, and nothing is broken. Flags and extensions may also be passed over.
pub(crate) fn unknown_values_are_refused(device: &OpenDevice, call: &Call, number: usize) -> Result<(), Problem> {
    let how = Presented::unknown_values_of(call.op)[number];
    let named = |problem: String| Problem::named(Fault::UnknownValue, problem);
    match answer(device, call, how)?.0 {
        Answer::Declined | Answer::Absent | Answer::Planned => Ok(()),
        Answer::Refused(_, error) => {
            expect_refusal(&how.to_string(), &error).map_err(|problem| named(problem).because_of(&error))
        }
        Answer::Ran if matches!(how, Presented::Flags | Presented::Extension) => Ok(()),
        Answer::Ran => Err(named(format!("{how} is taken as if it were known"))),
    }
}
