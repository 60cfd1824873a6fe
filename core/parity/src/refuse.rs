//! Wrong arguments: refused with a sentence that names the op and an argument, and the device works on.

use std::collections::BTreeMap;

use deepinfer_ops::{Format, OpError, OpInfo};
use deepinfer_oracle::{Call, HostTensor, Value};
use deepinfer_plugin_api::{ArgInfo, Refusal};
use deepinfer_runtime::OpenDevice;
use deepinfer_runtime::conformance::{self, Answer};

use crate::fault::Fault;
use crate::generate::OpSpec;
use crate::outcome::Failure;
use crate::place::{Arguments, Layout, PlacedCall, Route, RunError, run};
use crate::run::{Problem, by_itself, cannot_upload};

/// A call that must be refused.
pub(crate) struct Wrong {
    pub(crate) call: Call,
    /// The tensor that is wrong, if one is.
    tensor: Option<&'static str>,
    /// What is wrong with it.
    what: String,
    /// Arguments of which the error must name one.
    names: Vec<&'static str>,
}

/// The wrong values that an op knows of, in a call that is otherwise right.
pub(crate) fn wrong_values(spec: &OpSpec, base: &Call) -> Vec<Wrong> {
    // The catalogue says in the same order what is wrong.
    let wrong = |(refusal, said): (&crate::generate::Refusal, &Refusal)| {
        let mut call = base.clone();
        (refusal.change)(&mut call);
        let what = format!(
            "{}: {} ({})",
            said.args.join(", "),
            said.when,
            changes(base, &call, refusal.names, said.when).join(", ")
        );
        Wrong { call, tensor: None, what, names: refusal.names.to_vec() }
    };
    spec.refusals.iter().zip(base.op.refuses).map(wrong).collect()
}

/// What a wrong call has in place of the right one: of the arguments that are to blame, or else of all; and the extents that
/// the sentence about it names.
fn changes(base: &Call, wrong: &Call, names: &[&str], sentence: &str) -> Vec<String> {
    let mut changes: Vec<(&str, String)> = Vec::new();
    let mut extents: BTreeMap<&str, usize> = BTreeMap::new();
    for arg in base.op.args {
        match (base.value(arg.name), wrong.value(arg.name)) {
            (Value::Tensor(right), Value::Tensor(odd)) => {
                let dims = arg.shape.iter().copied().zip(odd.shape.iter().zip(&right.shape));
                for (extent, (odd, right)) in dims {
                    if odd != right || !extents.contains_key(extent) {
                        extents.insert(extent, *odd);
                    }
                }
                changes.extend(change_of(arg.name, right, odd).map(|change| (arg.name, change)));
            }
            (Value::Absent, Value::Absent) | (Value::List(_), Value::List(_)) => {}
            (_, Value::Absent) => changes.push((arg.name, format!("no {}", arg.name))),
            (Value::Absent, _) => changes.push((arg.name, format!("{} present", arg.name))),
            (right, odd) => {
                let [right, odd] = [right, odd].map(scalar);
                changes.extend((right != odd).then(|| (arg.name, format!("{}={odd}", arg.name))));
            }
        }
    }
    if changes.iter().any(|(name, _)| names.contains(name)) {
        changes.retain(|(name, _)| names.contains(name));
    }
    let words = sentence.split(|c: char| !c.is_alphanumeric() && c != '_');
    let named = words.filter_map(|word| extents.get(word).map(|extent| format!("{word}={extent}")));
    let mut all: Vec<String> = changes.into_iter().map(|(_, change)| change).collect();
    named.for_each(|extent| all.extend((!all.contains(&extent)).then_some(extent)));
    all
}

fn scalar(value: &Value) -> String {
    match value {
        Value::U32(v) => v.to_string(),
        Value::I32(v) => v.to_string(),
        Value::F32(v) => v.to_string(),
        Value::Tensor(_) | Value::List(_) | Value::Absent => String::new(),
    }
}

/// The first difference of two tensors, in words.
fn change_of(name: &str, right: &HostTensor, odd: &HostTensor) -> Option<String> {
    if right.shape != odd.shape {
        return Some(format!("{name} of shape {:?}", odd.shape));
    }
    if right.format != odd.format {
        return Some(format!("{name} in {}", odd.format));
    }
    right.element_bytes()?;
    let at = (0..odd.len()).find(|&i| right.element(i) != odd.element(i))?;
    let value = match odd.format {
        Format::I32 | Format::I64 | Format::U8 => odd.ints()[at].to_string(),
        _ => odd.values()[at].to_string(),
    };
    let mut index = vec![0; odd.shape.len()];
    let mut rest = at;
    for (place, extent) in index.iter_mut().zip(&odd.shape).rev() {
        (*place, rest) = (rest % extent, rest / extent);
    }
    Some(format!("{name}{index:?}={value}"))
}

/// Wrong formats, ranks and extents of every argument, in a call that is otherwise right.
pub(crate) fn wrong_tensors(base: &Call) -> Vec<Wrong> {
    // An extent that two arguments share may be blamed on either.
    let names: Vec<&'static str> = base.op.args.iter().map(|arg| arg.name).collect();
    let counts = symbol_counts(base.op);
    let mut wrong = Vec::new();
    for arg in base.op.args {
        for (what, tensor) in variants(base, arg, &counts) {
            let mut call = base.clone();
            call.set(arg.name, Value::Tensor(tensor));
            let what = format!("{} with {what}", arg.name);
            wrong.push(Wrong { call, tensor: Some(arg.name), what, names: names.clone() });
        }
    }
    wrong
}

/// The call must be refused, whichever checks of the core stand before the kernel, and nothing may be written. `base` is the
/// right call that it derives from.
pub(crate) fn expect_refusal(device: &OpenDevice, base: &Call, wrong: &Wrong) -> Result<(), Problem> {
    let result = run(device, &wrong.call, Layout::Contiguous, Route::Trait).map(drop);
    if let Err(RunError::Upload(error)) = &result {
        return Err(cannot_upload(error));
    }
    expect(result, wrong)?;
    match wrong.tensor {
        None => refused_by_kernel(device, wrong),
        Some(name) => refused_by_plugin(device, base, wrong, name),
    }
}

/// A value that shapes cannot check: only the plugin sees that it is wrong.
fn refused_by_kernel(device: &OpenDevice, wrong: &Wrong) -> Result<(), Problem> {
    let placed = PlacedCall::new(device, &wrong.call, Layout::Contiguous).map_err(|error| cannot_upload(&error))?;
    match placed.dispatch(device, Route::Kernel) {
        // Work that runs later may find it when some of its output is written.
        Ok(()) => expect(placed.read(device).map(drop), wrong),
        Err(error) => {
            expect(Err(RunError::Op(error)), wrong)?;
            nothing_is_written(device, &placed, wrong)
        }
    }
}

/// A tensor that the core's checks keep from every plugin; a plugin must refuse it by itself, since layers and other programs
/// call it, too.
fn refused_by_plugin(device: &OpenDevice, base: &Call, wrong: &Wrong, name: &'static str) -> Result<(), Problem> {
    let place = |call| PlacedCall::new(device, call, Layout::Contiguous).map_err(|error| cannot_upload(&error));
    let (right, odd) = (place(base)?, place(&wrong.call)?);
    let answer = right.with(|call| conformance::present_instead(device, call, name, odd.tensor(name)));
    let said = |problem: String| {
        let what = format!("{}, past the checks of the core: {problem}", wrong.what);
        Problem::named(Fault::AcceptsWrong, what)
    };
    match answer.map_err(Problem::from)? {
        Answer::Ran => return Err(said("it was accepted".to_owned())),
        Answer::Refused(_, error) if error.is_panic() => {
            let text = format!("{}: {}: {error}", wrong.what, error.origin);
            return Err(Problem::named(Fault::Panic, text));
        }
        Answer::Refused(function, error) if error.is_panic() => {
            let text = format!("{}, past the checks of the core, {function}: {}", wrong.what, error.message);
            return Err(Problem::named(Fault::Panic, text));
        }
        Answer::Refused(_, error) if error.is_lasting() => {
            return Err(said(format!("it broke the device: {error}")).because_of(&error));
        }
        Answer::Refused(_, error) => names_it(&format!("{}: {}", error.origin, error.message), wrong)
            .map_err(|problem| said(problem).because_of(&error))?,
        Answer::Declined | Answer::Planned | Answer::Absent => {}
    }
    nothing_is_written(device, &right, wrong)?;
    nothing_is_written(device, &odd, wrong)
}

/// What is refused has written nothing, so that the call can be made elsewhere.
fn nothing_is_written(device: &OpenDevice, placed: &PlacedCall<'_>, wrong: &Wrong) -> Result<(), Problem> {
    let unread = |error: OpError| by_itself(&error).unwrap_or_else(|| Problem::from(error.to_string()));
    let changed = placed.first_changed(device, |_| true).map_err(unread)?;
    changed.map_or(Ok(()), |name| {
        let problem = format!("{}: it was refused after {name} was written", wrong.what);
        Err(Problem::named(Fault::WroteWhenRefused, problem))
    })
}

/// The call was refused as it should be. That a layer refuses it is as good; that it reports the backend is not.
fn expect(result: Result<(), RunError>, wrong: &Wrong) -> Result<(), Problem> {
    if let Err(RunError::Op(error)) = &result
        && let Some(Problem::Wrong(failure, evidence)) = by_itself(error)
        && !matches!(failure.fault, Some(Fault::Layer | Fault::DeviceLost))
    {
        let problem = format!("{}: {}", wrong.what, failure.problem);
        return Err(Problem::Wrong(Failure { problem, ..failure }, evidence));
    }
    let error = match &result {
        Err(RunError::Op(error) | RunError::Upload(error)) => Some(error.to_string()),
        _ => None,
    };
    is_refusal(result, wrong).map_err(|problem| {
        let problem = Problem::named(Fault::AcceptsWrong, format!("{}: {problem}", wrong.what));
        match error {
            Some(error) => problem.because_of(&error),
            None => problem,
        }
    })
}

/// The error must name the op and the argument. A backend may also decline the form of the call.
fn is_refusal(result: Result<(), RunError>, wrong: &Wrong) -> Result<(), String> {
    match result {
        Ok(()) => Err("it was accepted".to_owned()),
        Err(RunError::Gap(name) | RunError::Outside(name, _)) => Err(format!("it wrote outside of {name}")),
        Err(RunError::Input(name)) => Err(format!("it wrote {name}")),
        Err(RunError::Upload(error)) => Err(format!("the arguments cannot be uploaded: {error}")),
        Err(RunError::Op(OpError::DeviceLost(text))) => Err(format!("it lost the device: {text}")),
        Err(RunError::Op(OpError::Unsupported { .. })) => Ok(()),
        Err(RunError::Op(error)) => names_it(&error.to_string(), wrong),
    }
}

fn names_it(text: &str, wrong: &Wrong) -> Result<(), String> {
    let op = wrong.call.op.name;
    let is_named = text.contains(op) && wrong.names.iter().any(|name| text.contains(name));
    let names = || wrong.names.join(" or ");
    if is_named { Ok(()) } else { Err(format!("the error does not name {op} and {}: {text}", names())) }
}

/// Names in an extent of the catalogue.
fn symbols(extent: &str) -> impl Iterator<Item = &str> {
    extent
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|name| !name.is_empty() && name.parse::<usize>().is_err())
}

/// How many extents and scalars speak of each name.
fn symbol_counts(op: &'static OpInfo) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for name in op.args.iter().flat_map(|arg| arg.shape).flat_map(|extent| symbols(extent)) {
        *counts.entry(name).or_insert(0) += 1;
    }
    for arg in op.args {
        *counts.entry(arg.name).or_insert(0) += 1;
    }
    counts
}

/// Variants of a tensor argument that break the catalogue's rules.
fn variants(base: &Call, arg: &ArgInfo, counts: &BTreeMap<&'static str, usize>) -> Vec<(String, HostTensor)> {
    let Some(Value::Tensor(tensor)) = base.args.get(arg.name) else { return Vec::new() };
    let mut wrong = Vec::new();
    for format in Format::ALL {
        let is_alien = arg.formats & format.mask() == 0;
        let differs_from_like = !arg.like.is_empty() && format != base.tensor(arg.like).format;
        // A quantised tensor has two dimensions at least.
        if (is_alien || differs_from_like) && (format.scale().is_none() || tensor.shape.len() >= 2) {
            wrong.push((format!("format {format}"), HostTensor::filled(format, &tensor.shape, 0)));
        }
    }
    if tensor.format.scale().is_none() && tensor.shape.len() < 4 {
        let mut deeper = tensor.clone();
        deeper.shape.push(1);
        wrong.push(("one more dimension".to_owned(), deeper));
    }
    for (dim, extent) in arg.shape.iter().enumerate() {
        let is_bound = extent.parse::<usize>().is_ok() || symbols(extent).any(|name| counts[name] > 1);
        if is_bound {
            let mut shape = tensor.shape.clone();
            // More than a block of any call, so that a quotient that is rounded up changes as well.
            shape[dim] += 65;
            let longer = HostTensor::filled(tensor.format, &shape, 0);
            wrong.push((format!("a longer dimension {dim}"), longer));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Calls, specs};

    #[test]
    fn wrong_values_are_said_with_the_argument_and_the_value() {
        let said = |op: &str| -> Vec<String> {
            let spec = specs().find(|spec| spec.name == op).unwrap();
            wrong_values(spec, &Calls::new(spec, 0).base()).into_iter().map(|wrong| wrong.what).collect()
        };
        let gate = said("moe_gate");
        assert_eq!(gate[..2], ["scoring: above 2 (scoring=3)", "normalize: neither 0 nor 1 (normalize=2)"]);
        let Some((_, extents)) = gate[2].split_once("experts: K above E (experts of shape [") else {
            panic!("{gate:?}")
        };
        assert!(extents.contains(", K=") && extents.contains(", E="), "{gate:?}");
        assert!(said("engram_hash")[1].ends_with("=-1)"), "{:?}", said("engram_hash"));
        for spec in specs() {
            for what in said(spec.name) {
                assert!(!what.contains("()"), "{}: {what} says nothing of the change", spec.name);
            }
        }
    }
}
