//! Wrong arguments: refused with a sentence that names the op and an argument, and the device works on.

use std::collections::BTreeMap;

use deepinfer_ops::{Format, OpError, OpInfo};
use deepinfer_oracle::{Call, HostTensor, Value};
use deepinfer_plugin_api::ArgInfo;
use deepinfer_runtime::OpenDevice;
use deepinfer_runtime::conformance::{self, Answer};

use crate::fault::Fault;
use crate::generate::OpSpec;
use crate::place::{Layout, PlacedCall, Route, RunError, run};
use crate::run::{Problem, cannot_upload};

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
    let wrong = |(number, refusal): (usize, &crate::generate::Refusal)| {
        let mut call = base.clone();
        (refusal.change)(&mut call);
        Wrong { call, tensor: None, what: format!("wrong value {number}"), names: refusal.names.to_vec() }
    };
    spec.refusals.iter().enumerate().map(wrong).collect()
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
    let said =
        |by: &str, problem: String| Problem::named(Fault::AcceptsWrong, format!("{}{by}: {problem}", wrong.what));
    let result = run(device, &wrong.call, Layout::Contiguous, Route::Trait).map(drop);
    if let Err(RunError::Upload(error)) = &result {
        return Err(cannot_upload(error));
    }
    is_refusal(result, wrong).map_err(|problem| said("", problem))?;
    match wrong.tensor {
        None => refused_by_kernel(device, wrong),
        Some(name) => refused_by_plugin(device, base, wrong, name),
    }
}

/// A value that shapes cannot check: only the plugin sees that it is wrong.
fn refused_by_kernel(device: &OpenDevice, wrong: &Wrong) -> Result<(), Problem> {
    let placed = PlacedCall::new(device, &wrong.call, Layout::Contiguous).map_err(|error| cannot_upload(&error))?;
    let by = ", without the checks of the op trait";
    let said = |problem: String| Problem::named(Fault::AcceptsWrong, format!("{}{by}: {problem}", wrong.what));
    match placed.dispatch(device, Route::Kernel) {
        // Work that runs later may find it when some of its output is written.
        Ok(()) => is_refusal(placed.read(device).map(drop), wrong).map_err(said),
        Err(error) => {
            is_refusal(Err(RunError::Op(error)), wrong).map_err(said)?;
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
        Answer::Refused(_, error) if error.is_lasting() => return Err(said(format!("it broke the device: {error}"))),
        Answer::Refused(_, error) => names_it(&error.to_string(), wrong).map_err(said)?,
        Answer::Declined | Answer::Planned | Answer::Absent => {}
    }
    nothing_is_written(device, &right, wrong)?;
    nothing_is_written(device, &odd, wrong)
}

/// What is refused has written nothing, so that the call can be made elsewhere.
fn nothing_is_written(device: &OpenDevice, placed: &PlacedCall<'_>, wrong: &Wrong) -> Result<(), Problem> {
    let changed = placed.first_changed(device, |_| true).map_err(|error| Problem::from(error.to_string()))?;
    changed.map_or(Ok(()), |name| {
        let problem = format!("{}: it was refused after {name} was written", wrong.what);
        Err(Problem::named(Fault::WroteWhenRefused, problem))
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
    if is_named { Ok(()) } else { Err(format!("the error names neither {op} nor {:?}: {text}", wrong.names)) }
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
