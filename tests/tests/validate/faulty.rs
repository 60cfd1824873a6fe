//! Backends with one fault: the layer finds it under its name.

use std::path::Path;

use deepinfer_ops::traits::*;
use deepinfer_ops::{Device, Format, OpError, Tensor, args};
use deepinfer_runtime::OpenDevice;
use serde_json::Value;

use crate::c_plugin::plugin;
use crate::{findings, open};

/// The liar with a fault behind the layer; `None` without a compiler.
fn liar(folder: &Path, fault: &str, options: &str) -> Option<OpenDevice> {
    // A library starts once in a process, hence one for each fault.
    let path = plugin(folder, "liar.c", &format!("libdeepinfer_{}.so", fault.replace('-', "_")), &["-pthread"])?;
    let options = format!("{options},bundles={}", folder.join("bundles").display());
    Some(open(folder, &path, &format!("fault={fault}"), &options))
}

fn floats(device: &OpenDevice, shape: &[usize]) -> Tensor {
    let values = (0..shape.iter().product::<usize>()).map(|i| 1.0 + i as f32 / 7.0);
    let memory = device.allocate(Tensor::bytes_of(Format::F32, shape)).expect("memory");
    let tensor = Tensor::plain(&memory, 0, Format::F32, shape);
    device.upload(&tensor, &values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>()).expect("upload");
    tensor
}

/// That the call failed with the one finding of the report, of this rule, and what the sentence says.
#[track_caller]
fn assert_found(folder: &Path, outcome: Result<(), OpError>, rule: &str, parts: &[&str]) -> Value {
    let text = outcome.expect_err("a finding is an error").to_string();
    let found = findings(folder);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0]["rule"], &found[0]["by"]), (&rule.into(), &"backend".into()), "{text}");
    assert!(text.contains(found[0]["sentence"].as_str().expect("a sentence")), "{text}");
    parts.iter().for_each(|part| assert!(text.contains(part), "{part:?} is missing in: {text}"));
    found[0].clone()
}

#[test]
fn a_write_behind_an_output_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(device) = liar(folder.path(), "out-of-bounds", "poison") else { return };
    let table = floats(&device, &[2, 5]);
    let index = device.allocate(4).expect("memory");
    let index = Tensor::plain(&index, 0, Format::I32, &[1]);
    device.fill(&index, 0).expect("a fill");
    // In the middle of a larger allocation: no redzone is near.
    let memory = device.allocate(4096).expect("memory");
    let out = Tensor::plain(&memory, 2048, Format::F32, &[1, 1, 5]);
    let outcome = device.gather(&args::Gather { table: &table, index: &index, repeat: 1, out: &out });
    let parts = ["gather (c), call 1: out was exceeded", "0 bytes behind the end"];
    assert_found(folder.path(), outcome, "out-of-bounds", &parts);
}

#[test]
fn a_written_input_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(device) = liar(folder.path(), "input-written", "shadow=1/1") else { return };
    let (table, out) = (floats(&device, &[2, 5]), floats(&device, &[1, 1, 5]));
    let index = device.allocate(4).expect("memory");
    let index = Tensor::plain(&index, 0, Format::I32, &[1]);
    device.fill(&index, 0).expect("a fill");
    let outcome = device.gather(&args::Gather { table: &table, index: &index, repeat: 1, out: &out });
    let parts = ["gather (c), call 1: index was written", "0xff stands where 0x00 was"];
    assert_found(folder.path(), outcome, "input-written", &parts);
}

#[test]
fn a_wrong_value_at_an_edge_is_found_and_kept_in_a_bundle() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(device) = liar(folder.path(), "ragged-edge", "shadow=1/1") else { return };
    let (x, weight, out) = (floats(&device, &[2, 9]), floats(&device, &[9]), floats(&device, &[2, 9]));
    let outcome = device.rms_norm(&args::RmsNorm { x: &x, weight: &weight, eps: 1e-6, out: &out });
    let finding = assert_found(folder.path(), outcome, "value", &["rms_norm (c), call 1: out[", "deepinfer replay "]);
    let bundle = std::fs::read(finding["bundle"].as_str().expect("a path")).expect("the bundle");
    let bundle = deepinfer_oracle::Bundle::from_bytes(&bundle).expect("a bundle");
    let found = bundle.found.expect("what the backend gave");
    assert_eq!(bundle.call.judge(&found.outputs).expect_err("wrong").to_string(), bundle.problem.expect("a sentence"));
}

#[test]
fn a_workspace_that_is_taken_for_cleared_is_told_from_other_wrong_values() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(device) = liar(folder.path(), "stale-workspace", "shadow=1/1,poison") else { return };
    let (x, out) = (floats(&device, &[3, 8]), floats(&device, &[3]));
    let outcome = device.rstd(&args::Rstd { x: &x, eps: 1e-6, out: &out });
    assert_found(folder.path(), outcome, "stale-workspace", &["rstd (c), call 1: out[", "with a zeroed workspace"]);
}

#[test]
fn a_promise_of_supports_that_run_breaks_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(device) = liar(folder.path(), "lying-supports", "check") else { return };
    let out = floats(&device, &[3]);
    let memory = device.allocate(48).expect("memory");
    let x = Tensor::plain(&memory, 0, Format::Bf16, &[3, 8]);
    let outcome = device.rstd(&args::Rstd { x: &x, eps: 1e-6, out: &out });
    assert_found(folder.path(), outcome, "honesty", &["rstd (c), call 1: supports said yes, but run declined"]);
}

#[test]
fn a_right_backend_stays_silent() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(device) = liar(folder.path(), "none", "shadow=1/1,poison") else { return };
    let (x, weight, out) = (floats(&device, &[2, 9]), floats(&device, &[9]), floats(&device, &[2, 9]));
    let rstd = floats(&device, &[2]);
    for _ in 0..3 {
        device.rms_norm(&args::RmsNorm { x: &x, weight: &weight, eps: 1e-6, out: &out }).expect("rms_norm");
        device.rstd(&args::Rstd { x: &out, eps: 1e-6, out: &rstd }).expect("rstd");
    }
    drop((x, weight, out, rstd, device));
    assert_eq!(findings(folder.path()), Vec::<Value>::new());
}
