//! Wrong arguments: refused with a sentence that names the op and an argument, and the device works on.

use std::collections::BTreeMap;

use deepinfer_ops::{Device, Format, OpError, OpInfo};
use deepinfer_oracle::{Call, HostTensor, Value};
use deepinfer_plugin_api::ArgInfo;

use crate::generate::OpSpec;
use crate::place::{Layout, Route, RunError, run};

/// A call that must be refused.
pub(crate) struct Wrong {
    pub(crate) call: Call,
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
        Wrong { call, what: format!("wrong value {number}"), names: refusal.names.to_vec() }
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
            wrong.push(Wrong { call, what: format!("{} with {what}", arg.name), names: names.clone() });
        }
    }
    wrong
}

/// The call must be refused whichever checks stand before the kernel.
pub(crate) fn expect_refusal(device: &dyn Device, wrong: &Wrong) -> Result<(), String> {
    for route in [Route::Trait, Route::Kernel] {
        let result = run(device, &wrong.call, Layout::Contiguous, route).map(drop);
        let by = if route == Route::Trait { "" } else { ", without the checks of the op trait" };
        is_refusal(result, wrong).map_err(|text| format!("{}{by}: {text}", wrong.what))?;
    }
    Ok(())
}

/// The error must name the op and the argument. A backend may also decline the form of the call.
fn is_refusal(result: Result<(), RunError>, wrong: &Wrong) -> Result<(), String> {
    let op = wrong.call.op.name;
    match result {
        Ok(()) => Err("it was accepted".to_owned()),
        Err(RunError::Gap(name) | RunError::Outside(name, _)) => Err(format!("it wrote outside of {name}")),
        Err(RunError::Upload(error)) => Err(format!("the arguments cannot be uploaded: {error}")),
        Err(RunError::Op(OpError::DeviceLost(text))) => Err(format!("it lost the device: {text}")),
        Err(RunError::Op(OpError::Unsupported { .. })) => Ok(()),
        Err(RunError::Op(error)) => {
            let text = error.to_string();
            let is_named = text.contains(op) && wrong.names.iter().any(|name| text.contains(name));
            if is_named { Ok(()) } else { Err(format!("the error names neither {op} nor {:?}: {text}", wrong.names)) }
        }
    }
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
