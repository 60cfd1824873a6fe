//! Which implementation of an op runs: pins, requirements, and implementations that do not keep their word.

mod c_compiler;
mod c_plugin;
mod probes;

use std::path::PathBuf;
use std::process::Command;

use deepinfer_ops::args::{RmsNorm, Rstd};
use deepinfer_ops::{Device, Dispatch, Format, OpError, Tensor};
use deepinfer_runtime::{LoadedBackend, OpenDevice, OpenError, OpenOptions, Pin, load};
use deepinfer_tests::f32_bytes;
use probes::probe;
use tempfile::TempDir;

fn c_backend(source: &str) -> Option<(TempDir, PathBuf, &'static LoadedBackend)> {
    let folder = tempfile::tempdir().unwrap();
    let path = c_plugin::plugin(folder.path(), source, "libdeepinfer_c.so", &[])?;
    let backend = load(&path, "").unwrap();
    Some((folder, path, backend))
}

fn floats(device: &OpenDevice, shape: &[usize], values: &[f32]) -> Tensor {
    let memory = device.allocate(Tensor::bytes_of(Format::F32, shape)).unwrap();
    let tensor = Tensor::plain(&memory, 0, Format::F32, shape);
    device.upload(&tensor, &f32_bytes(values)).unwrap();
    tensor
}

/// `rstd` of one row of twos; the implementation `any` of `host_backend.c` gives -1, `short` takes up to 8 values.
fn rstd(device: &OpenDevice, columns: usize, eps: f32) -> Result<f32, OpError> {
    let (x, out) = (floats(device, &[1, columns], &vec![2.0; columns]), floats(device, &[1], &[0.0]));
    device.dispatch(&Rstd { x: &x, eps, out: &out })?;
    let mut bytes = [0; 4];
    device.download(&out, &mut bytes)?;
    Ok(f32::from_le_bytes(bytes))
}

fn pinned(op: &str, implementation: &str) -> OpenOptions {
    let pin = Pin { op: op.to_owned(), implementation: implementation.to_owned() };
    OpenOptions { pins: vec![pin], ..OpenOptions::default() }
}

fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

#[test]
fn a_pinned_implementation_is_the_only_candidate() {
    let Some((_folder, _path, backend)) = c_backend("host_backend.c") else { return };
    let free = backend.open_with(0, &OpenOptions::default()).unwrap();
    assert_eq!((rstd(&free, 8, 0.0).unwrap(), rstd(&free, 9, 0.0).unwrap()), (0.5, -1.0));

    let any = backend.open_with(0, &pinned("rstd", "any")).unwrap();
    assert_eq!(rstd(&any, 8, 0.0).unwrap(), -1.0);

    let short = backend.open_with(0, &pinned("rstd", "short")).unwrap();
    assert_eq!(rstd(&short, 8, 0.0).unwrap(), 0.5);
    let error = rstd(&short, 9, 0.0).unwrap_err();
    assert!(matches!(error, OpError::Unsupported { .. }), "{error:?}");
    assert_contains(&error.to_string(), &["c-host cannot run rstd: short: rows are longer than 8"]);
}

#[test]
fn pins_of_what_there_is_not_list_what_there_is() {
    let Some((_folder, _path, backend)) = c_backend("host_backend.c") else { return };
    let error = backend.open_with(0, &pinned("rstd", "long")).unwrap_err();
    assert!(matches!(error, OpenError::UnknownImplementation { .. }), "{error:?}");
    assert_contains(&error.to_string(), &["rstd=long", "DEEPINFER_OP_IMPL", "in the backend c-host are short, any"]);
    // Of rms_norm it has a version that this core does not call.
    for op in ["rms_norm", "no_such_op"] {
        let error = backend.open_with(0, &pinned(op, "x")).unwrap_err();
        assert!(matches!(error, OpenError::UnknownOp { .. }), "{error:?}");
        assert_contains(&error.to_string(), &[op, "c-host has no implementation", "implementations of gather, rstd"]);
    }
}

/// Runs in a process of its own, below, since the variable is read once.
#[test]
#[ignore = "part of the_variable_pins_for_the_whole_process"]
fn child_with_the_variable() {
    let Some((_folder, _path, backend)) = c_backend("host_backend.c") else { return };
    match backend.open(0) {
        Ok(device) => println!("rstd is {}", rstd(&device, 8, 0.0).unwrap()),
        Err(error) => println!("refused: {error}"),
    }
}

#[test]
fn the_variable_pins_for_the_whole_process() {
    if c_compiler::compiler(c_compiler::Language::C11).is_none() {
        return;
    }
    for (value, part) in [
        ("rstd=any", "rstd is -1"),
        ("", "rstd is 0.5"),
        ("rstd=long", "refused: rstd=long is pinned"),
        ("rstd", "refused: \"rstd\" pins no implementations: \"rstd\" is not of the form op=implementation"),
    ] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_with_the_variable", "--ignored", "--nocapture"])
            .env("DEEPINFER_OP_IMPL", value)
            .output()
            .unwrap();
        assert_contains(&String::from_utf8_lossy(&output.stdout), &[part]);
    }
}

#[test]
fn a_requirement_is_passed_on_and_rules_out_what_does_not_declare_it() {
    let Some((_folder, path, backend)) = c_backend("graph.c") else { return };
    let declared: Vec<_> = backend
        .ops()
        .iter()
        .map(|op| (op.name(), op.is_deterministic(), op.is_capturable(), op.is_batch_invariant()))
        .collect();
    assert_eq!(
        declared,
        [("gather", true, true, false), ("rstd", false, false, false), ("rms_norm", true, true, false)]
    );

    // rstd is deterministic by its plans.
    let options = OpenOptions { require_deterministic: true, ..OpenOptions::default() };
    let device = backend.open_with(0, &options).unwrap();
    assert_eq!(rstd(&device, 4, 0.0).unwrap(), 0.5);
    let (x, weight, out) =
        (floats(&device, &[1, 2], &[1., 2.]), floats(&device, &[2], &[0.; 2]), floats(&device, &[1, 2], &[0.; 2]));
    device.dispatch(&RmsNorm { x: &x, weight: &weight, eps: 0.0, out: &out }).unwrap();
    assert_eq!(probe(&path, "probe_last_flags"), 1);

    // Nothing declares batch invariance; rstd might, for a call.
    let options = OpenOptions { require_batch_invariant: true, ..options };
    let error = backend.open_with(0, &options).unwrap_err();
    assert!(matches!(&error, OpenError::Undeclared { ops, .. } if ops == &["gather", "rms_norm"]), "{error:?}");
    assert_contains(
        &error.to_string(),
        &["graph cannot be opened as deterministic and batch-invariant", "gather, rms_norm"],
    );
}

#[test]
fn plans_that_do_not_declare_what_is_required_are_passed_over() {
    let Some((_folder, path, backend)) = c_backend("planned.c") else { return };
    let options = OpenOptions { require_batch_invariant: true, ..OpenOptions::default() };
    let device = backend.open_with(0, &options).unwrap();
    // `fast` declares it for calls of one row alone, `slow` for all.
    assert_eq!((rstd(&device, 4, 0.0).unwrap(), probe(&path, "probe_fast_runs")), (0.5, 1));
    let (x, out) = (floats(&device, &[2, 4], &[2.0; 8]), floats(&device, &[2], &[0.0; 2]));
    device.dispatch(&Rstd { x: &x, eps: 0.0, out: &out }).unwrap();
    assert_eq!((probe(&path, "probe_fast_runs"), probe(&path, "probe_slow_runs")), (1, 1));

    let fast = OpenOptions { require_batch_invariant: true, ..pinned("rstd", "fast") };
    let device = backend.open_with(0, &fast).unwrap();
    let error = device.dispatch(&Rstd { x: &x, eps: 0.0, out: &out }).unwrap_err();
    assert!(matches!(error, OpError::Unsupported { .. }), "{error:?}");
    assert_contains(&error.to_string(), &["fast: it does not declare that it is batch-invariant"]);
    drop((device, x, out));
    assert_eq!(probe(&path, "probe_live_plans"), 2, "of the first device; those that were passed over are gone");
}

#[test]
fn a_call_that_is_declined_when_it_runs_is_a_fault_of_the_backend() {
    let Some((_folder, path, backend)) = c_backend("graph.c") else { return };
    let device = backend.open_with(0, &OpenOptions::default()).unwrap();
    let error = rstd(&device, 4, -1.0).unwrap_err();
    assert!(matches!(&error, OpError::Dishonest { origin, .. } if origin == "graph/planned"), "{error:?}");
    assert_contains(
        &error.to_string(),
        &["graph/planned refuses a call of rstd that it accepted in supports: eps is negative"],
    );

    let (x, weight, out) =
        (floats(&device, &[1, 2], &[1., 2.]), floats(&device, &[2], &[0.; 2]), floats(&device, &[1, 2], &[0.; 2]));
    let call = RmsNorm { x: &x, weight: &weight, eps: -1.0, out: &out };
    let error = device.dispatch(&call).unwrap_err();
    assert!(matches!(error, OpError::Dishonest { .. }), "{error:?}");
    assert_contains(&error.to_string(), &["rms_norm that it must take, since it has neither supports nor plan"]);
    // What it says no to in time is merely not supported; and the device goes on.
    assert!(matches!(rstd(&device, 9, 0.0), Err(OpError::Unsupported { .. })));
    assert_eq!(rstd(&device, 4, 0.0).unwrap(), 0.5);
    assert_eq!(probe(&path, "probe_live_errors"), 0);
}

#[test]
fn an_argument_struct_may_be_longer_than_the_catalogues() {
    let Some((_folder, path, backend)) = c_backend("graph.c") else { return };
    let device = backend.open_with(0, &OpenOptions::default()).unwrap();
    let (x, weight, out) =
        (floats(&device, &[1, 2], &[1., 2.]), floats(&device, &[2], &[0.; 2]), floats(&device, &[1, 2], &[0.; 2]));
    let call = RmsNorm { x: &x, weight: &weight, eps: 0.0, out: &out };
    let size = deepinfer_plugin_api::op_by_name("rms_norm").unwrap().args_size;
    for extra in [0, 8, 24, 1000] {
        device.dispatch_padded(&call, extra).unwrap();
        assert_eq!(probe(&path, "probe_last_size"), (size + extra) as i32);
        assert_eq!(probe(&path, "probe_last_tail"), 0, "{extra}: what is behind is zero");
    }
    // Through supports and plan, too.
    let (x, out) = (floats(&device, &[1, 4], &[2.0; 4]), floats(&device, &[1], &[0.0]));
    device.dispatch_padded(&Rstd { x: &x, eps: 0.0, out: &out }, 16).unwrap();
    assert_eq!(rstd(&device, 4, 0.0).unwrap(), 0.5);
}

#[test]
fn a_plan_that_a_failed_call_has_left_is_not_destroyed() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = c_plugin::plugin(folder.path(), "planned.c", "libdeepinfer_late.so", &["-DDECLINES_LATE"]);
    let Some(path) = plugin else { return };
    let device = load(&path, "").unwrap().open(0).unwrap();
    let error = rstd(&device, 4, 0.0).unwrap_err();
    assert!(matches!(error, OpError::Unsupported { .. }), "{error:?}");
    assert_contains(&error.to_string(), &["fast: ", "slow: ", "declined after all"]);
    drop(device);
    assert_eq!(probe(&path, "probe_live_plans"), 0);
}
