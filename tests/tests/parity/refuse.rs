//! Wrong arguments: refused with a sentence that names the op and an argument, and the device works on.

use std::collections::BTreeMap;
use std::rc::Rc;

use deepinfer_ops::{Device, Format, OpError, OpInfo};
use deepinfer_plugin_api::ArgInfo;

use crate::Failures;
use crate::device::{Layout, Outcome, Route, run};
use crate::generate::{OpSpec, Rows, cases, specs};
use crate::host::{Case, HostTensor, Value};

/// A case with a few rows, every optional argument present where there is such a case.
pub(crate) fn base(spec: &OpSpec) -> Case {
    let enough_rows = |case: &Case| match spec.rows {
        Rows::Any(symbol) | Rows::Ascending(symbol) => case.extent(symbol) >= 2,
        Rows::OfExperts | Rows::Dependent => true,
    };
    let given = |case: &Case| case.args.values().filter(|value| !matches!(value, Value::Absent)).count();
    cases(spec).into_iter().filter(enough_rows).max_by_key(given).expect("a case with two rows")
}

/// The error must name the op and the argument.
fn is_refusal(result: Result<Outcome, OpError>, op: &str, names: &[&str]) -> Result<(), String> {
    match result {
        Ok(_) => Err("was accepted".to_owned()),
        Err(OpError::DeviceLost(text)) => Err(format!("lost the device: {text}")),
        Err(error) => {
            let text = error.to_string();
            let is_named = text.contains(op) && names.iter().any(|name| text.contains(name));
            if is_named { Ok(()) } else { Err(format!("the error names neither {op} nor {names:?}: {text}")) }
        }
    }
}

fn expect_refusal(device: &Rc<dyn Device>, case: &Case, what: &str, names: &[&str], failures: &mut Failures) {
    for route in [Route::Trait, Route::Kernel] {
        let result = is_refusal(run(device, case, Layout::Contiguous, route), case.op.name, names);
        failures.check(case, result.map_err(|text| format!("{what}, {route:?}: {text}")));
    }
}

#[test]
fn wrong_values_are_refused() {
    let device = deepinfer_tests::device();
    let mut failures = Failures::default();
    for spec in specs() {
        let base = base(spec);
        for (i, refusal) in spec.refusals.iter().enumerate() {
            let mut case = base.clone();
            (refusal.change)(&mut case);
            expect_refusal(&device, &case, &format!("refusal {i}"), refusal.names, &mut failures);
        }
        let after = run(&device, &base, Layout::Contiguous, Route::Trait);
        failures.check(&base, after.map(drop).map_err(|error| format!("after refusals: {error}")));
    }
    failures.finish();
}

#[test]
fn wrong_formats_ranks_and_extents_are_refused() {
    let device = deepinfer_tests::device();
    let mut failures = Failures::default();
    for spec in specs() {
        let base = base(spec);
        let counts = symbol_counts(base.op);
        for arg in base.op.args {
            for (what, wrong) in wrong_tensors(&base, arg, &counts) {
                let mut case = base.clone();
                case.set(arg.name, Value::Tensor(wrong));
                // An extent that two arguments share may be blamed on either.
                let names: Vec<&str> = base.op.args.iter().map(|arg| arg.name).collect();
                expect_refusal(&device, &case, &format!("{} with {what}", arg.name), &names, &mut failures);
            }
        }
    }
    failures.finish();
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
fn wrong_tensors(base: &Case, arg: &ArgInfo, counts: &BTreeMap<&'static str, usize>) -> Vec<(String, HostTensor)> {
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
            // More than a block of any case, so that a quotient that is rounded up changes as well.
            shape[dim] += 65;
            let longer = HostTensor::filled(tensor.format, &shape, 0);
            wrong.push((format!("a longer dimension {dim}"), longer));
        }
    }
    wrong
}
