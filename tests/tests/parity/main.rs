//! Parity of a backend with the op catalogue: every op, on cases made from the catalogue, against oracles in f64.
//!
//! The backend under test is that of `DEEPINFER_ACCELERATOR`, or cpu-reference. A failure prints the case with its
//! shapes, formats and scalars; cases are the same in every run.

#![forbid(unsafe_code)]

mod device;
mod generate;
mod host;
mod oracle;
mod refuse;
mod rng;

use std::rc::Rc;

use deepinfer_ops::Device;
use deepinfer_plugin_api::Role;
use deepinfer_plugin_api::generated::OPS;

use device::{CALLABLE, Layout, Outcome, Route, run};
use generate::{OpSpec, Rows, cases, poisoned, specs};
use host::{Case, HostTensor, Value};
use rng::SplitMix64;

/// Collects what went wrong, so that one run shows all of it.
#[derive(Default)]
struct Failures {
    texts: Vec<String>,
    checks: usize,
}

impl Failures {
    fn check(&mut self, case: &Case, result: Result<(), String>) {
        self.checks += 1;
        if let Err(text) = result {
            self.texts.push(format!("{case}: {text}"));
        }
    }

    fn finish(self) {
        assert!(self.checks > 0, "nothing was checked");
        let shown: Vec<&str> = self.texts.iter().take(20).map(String::as_str).collect();
        assert!(shown.is_empty(), "{} of {} failed:\n{}", self.texts.len(), self.checks, shown.join("\n"));
    }
}

/// Runs a case that must be accepted.
fn accepted(device: &Rc<dyn Device>, case: &Case, layout: Layout) -> Result<Outcome, String> {
    run(device, case, layout, Route::Trait).map_err(|error| format!("{layout:?}: refused: {error}"))
}

/// The bits of both must be equal. What a NaN carries through an addition is not defined.
fn same_bits(what: &str, found: &Outcome, wanted: &Outcome) -> Result<(), String> {
    let differing = wanted.iter().find(|(name, tensor)| !found[*name].same_but_nan(tensor));
    differing.map_or(Ok(()), |(name, _)| Err(format!("{name} has other bits {what}")))
}

#[test]
fn every_op_of_the_catalogue_is_covered() {
    for op in OPS {
        assert!(
            specs().any(|spec| spec.name == op.name) && CALLABLE.contains(&op.name),
            "{} has no parity test: add its cases to tests/tests/parity/generate, its oracle to tests/tests/parity/oracle \
             and its call to `calls!` in tests/tests/parity/device.rs",
            op.name
        );
    }
    assert_eq!(specs().count(), OPS.len(), "an op has two entries, or one that is not in the catalogue");
}

#[test]
fn every_op_gives_what_its_oracle_gives() {
    let device = deepinfer_tests::device();
    let mut failures = Failures::default();
    for spec in specs() {
        for case in cases(spec) {
            failures.check(&case, agrees(&device, spec, &case));
        }
    }
    failures.finish();
}

fn agrees(device: &Rc<dyn Device>, spec: &OpSpec, case: &Case) -> Result<(), String> {
    let found = accepted(device, case, Layout::Contiguous)?;
    let wants = (spec.oracle)(case);
    let written = case.op.args.iter().filter(|arg| arg.role != Role::In);
    for arg in written.filter(|arg| case.optional(arg.name).is_some()) {
        let want = wants.iter().find(|(name, _)| *name == arg.name);
        let (_, want) = want.unwrap_or_else(|| panic!("the oracle of {} gives no {}", case.op.name, arg.name));
        oracle::compare(want, &found[arg.name], case.tensor(arg.name))
            .map_err(|text| format!("{}: {text}", arg.name))?;
    }
    Ok(())
}

#[test]
fn strides_change_no_bit() {
    let device = deepinfer_tests::device();
    let mut failures = Failures::default();
    for case in specs().flat_map(cases) {
        let result = accepted(&device, &case, Layout::Contiguous).and_then(|contiguous| {
            let strided = accepted(&device, &case, Layout::Strided)?;
            same_bits("when its rows lie apart", &strided, &contiguous)
        });
        failures.check(&case, result);
    }
    failures.finish();
}

#[test]
fn empty_tensors_run() {
    let device = deepinfer_tests::device();
    let mut failures = Failures::default();
    for spec in specs() {
        let base = refuse::base(spec);
        for symbol in spec.empty {
            let case = base.select(symbol, &[]);
            assert_eq!(case.extent(symbol), 0);
            failures.check(&case, accepted(&device, &case, Layout::Contiguous).map(drop));
        }
    }
    failures.finish();
}

/// The oracles are met whatever is in the memory of outputs before: with 0xFF a float left out is NaN and an integer -1,
/// with 0xA5 neither.
#[test]
fn outputs_are_written_whole() {
    let device = deepinfer_tests::device();
    let mut failures = Failures::default();
    for spec in specs() {
        for case in cases(spec) {
            let case = poisoned(&case, 0xA5);
            failures.check(&case, agrees(&device, spec, &case));
        }
    }
    failures.finish();
}

#[test]
fn a_row_alone_has_the_bits_that_it_has_among_others() {
    let device = deepinfer_tests::device();
    let mut failures = Failures::default();
    for spec in specs() {
        for (i, case) in cases(spec).iter().enumerate() {
            failures.check(case, rows_are_independent(&device, spec.rows, case, SplitMix64(i as u64)));
        }
    }
    failures.finish();
}

fn rows_are_independent(device: &Rc<dyn Device>, rows: Rows, case: &Case, mut rng: SplitMix64) -> Result<(), String> {
    let (symbol, count) = match rows {
        Rows::Any(symbol) | Rows::Ascending(symbol) => (symbol, case.extent(symbol)),
        Rows::OfExperts => ("M", case.extent("M")),
        Rows::Dependent => return Ok(()),
    };
    let all = accepted(device, case, Layout::Contiguous)?;
    let mut choices = vec![Vec::new()];
    if count > 0 {
        choices.extend([vec![0], vec![count - 1], vec![rng.below(count)]]);
        choices.push(if matches!(rows, Rows::Any(_)) { rng.permutation(count) } else { (count / 2..count).collect() });
    }
    for chosen in choices {
        let mut fewer = case.select(symbol, &chosen);
        if matches!(rows, Rows::OfExperts) {
            let start = case.tensor("expert_start").ints();
            let below = |first: &i64| chosen.iter().filter(|&&row| (row as i64) < *first).count() as i32;
            let start: Vec<i32> = start.iter().map(below).collect();
            fewer.set("expert_start", Value::Tensor(HostTensor::i32(&[start.len()], &start)));
        }
        let found = accepted(device, &fewer, Layout::Contiguous).map_err(|text| format!("rows {chosen:?}: {text}"))?;
        for arg in case.op.args {
            let Some(dim) = arg.shape.iter().position(|extent| *extent == symbol) else { continue };
            if let (Some(found), Some(all)) = (found.get(arg.name), all.get(arg.name))
                && !found.same_but_nan(&all.select(dim, &chosen))
            {
                return Err(format!("{} of the rows {chosen:?} has other bits than among all {count}", arg.name));
            }
        }
    }
    Ok(())
}
