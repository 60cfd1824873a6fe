//! A plugin that fails leaves the process, and the backends of others, as they were. What takes the process with it is in
//! `core/cli/tests/cli/containment.rs`; the table of all faults is `tests/plugins/README.md`.

#![forbid(unsafe_code)]

mod c_compiler;
mod c_plugin;

use std::path::PathBuf;
use std::process::Command;

use c_compiler::repository;
use c_plugin::plugin;
use deepinfer_ops::args::{ConvertKvIndex, RmsNorm, Rstd};
use deepinfer_ops::{Device, Dispatch, Format, OpError, Tensor};
use deepinfer_runtime::load;

/// A library that Cargo has built beside this test.
fn built(name: &str) -> PathBuf {
    std::env::current_exe().expect("this program").with_file_name(format!("lib{name}.so"))
}

fn floats(device: &dyn Device, shape: &[usize], values: &[f32]) -> Tensor {
    let memory = device.allocate(Tensor::bytes_of(Format::F32, shape)).unwrap();
    let tensor = Tensor::plain(&memory, 0, Format::F32, shape);
    device.upload(&tensor, &values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>()).unwrap();
    tensor
}

/// Runs `rms_norm` of one row, which is its weight afterwards.
fn norm(device: &dyn Device) -> Result<Vec<f32>, OpError> {
    let (x, weight) = (floats(device, &[1, 2], &[1.0, 1.0]), floats(device, &[2], &[3.0, 4.0]));
    let out = floats(device, &[1, 2], &[0.0, 0.0]);
    device.dispatch(&RmsNorm { x: &x, weight: &weight, eps: 0.0, out: &out })?;
    let mut bytes = [0; 8];
    device.download(&out, &mut bytes)?;
    let (values, _) = bytes.as_chunks::<4>();
    Ok(values.iter().map(|&v| f32::from_ne_bytes(v)).collect())
}

/// The processor's backend works in this process.
#[track_caller]
fn the_processor_works() {
    assert_eq!(norm(&*deepinfer_tests::device()).unwrap(), [3.0, 4.0]);
}

#[test]
fn a_refused_plugin_leaves_the_process_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    for (source, switches, sentence) in [
        ("no_entry.c", &[][..], "exports no deepinfer_backend_entry"),
        ("major9.c", &[], "speaks version 9.4"),
        ("refuses.c", &[], "the licence server is on holiday"),
        ("host_backend.c", &["-DBREAK_SILENT"], "it gave no reason"),
        ("host_backend.c", &["-DBREAK_NO_RUN"], "has no run function"),
    ] {
        let file = format!("libdeepinfer_{}.so", sentence.replace(' ', "_"));
        let Some(path) = plugin(folder.path(), source, &file, switches) else { return };
        let error = load(&path, "").unwrap_err().to_string();
        assert!(error.contains(sentence), "{error}");
        the_processor_works();
    }
}

#[test]
fn a_panic_in_the_entry_is_a_refusal() {
    let error = load(&built("panics_in_entry"), "").unwrap_err().to_string();
    assert!(error.contains("the plugin panics refused to start: panic: a bug of the entry ("), "{error}");
    the_processor_works();
}

#[test]
fn a_panic_in_a_function_poisons_that_backend_alone() {
    // A file of its own, since the other test has started the library already.
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("libcopy.so");
    std::fs::copy(built("panics_in_entry"), &copy).unwrap();
    let backend = load(&copy, "later=1").unwrap();
    let error = backend.device_count().unwrap_err();
    let sentence = "panic in device_count: a bug of the search for devices (tests/plugins/panics_in_entry/lib.rs:";
    assert!(error.to_string().starts_with(sentence), "{error}");
    assert!(error.is_lasting());
    let error = backend.device_count().unwrap_err().to_string();
    let sentence = "panics is unusable after a panic in device_count: a bug of the search for devices (";
    assert!(error.starts_with(sentence) && error.ends_with("); restart the process"), "{error}");
    the_processor_works();
}

/// The plugin has the processor's backend in it, under the same name: two copies of the same code, one of them poisoned.
#[test]
fn a_panic_in_a_kernel_loses_that_device_alone() {
    let device = load(&built("panics_in_run"), "").unwrap().open(0).unwrap();
    let rstd = || {
        let (x, out) = (floats(&device, &[1, 2], &[2.0, 2.0]), floats(&device, &[1], &[0.0]));
        device.dispatch(&Rstd { x: &x, eps: 0.0, out: &out })
    };
    rstd().unwrap();
    let lost = norm(&device).unwrap_err();
    assert!(matches!(lost, OpError::Panicked { .. }), "{lost:?}");
    let sentence =
        "cpu/rms_norm: panic in rms_norm: a bug of the kernel, in rows of 2 (tests/plugins/panics_in_run/lib.rs:";
    assert!(lost.to_string().starts_with(sentence), "{lost}");
    // From now on it says so of everything, without asking the plugin again.
    assert_eq!(device.allocate(1).unwrap_err().to_string(), lost.to_string());
    the_processor_works();
}

#[test]
fn a_panic_in_a_plan_says_so() {
    // A file of its own, since another test poisons the library.
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("libcopy.so");
    std::fs::copy(built("panics_in_run"), &copy).unwrap();
    let device = load(&copy, "").unwrap().open(0).unwrap();
    let index = Tensor::plain(&device.allocate(4).unwrap(), 0, Format::I32, &[1, 1]);
    let error = device.dispatch(&ConvertKvIndex {
        positions: &index,
        row_request: &Tensor::plain(&index.memory(), 0, Format::I32, &[1]),
        block_table: &index,
        entries_per_page: 1,
        slots: &Tensor::plain(&device.allocate(4).unwrap(), 0, Format::I32, &[1, 1]),
    });
    let error = error.unwrap_err();
    assert!(matches!(error, OpError::Panicked { .. }), "{error:?}");
    let sentence =
        "cpu/convert_kv_index: panic in plan of convert_kv_index: a bug of the plan, for 1 rows, in pages of 1 (";
    assert!(error.to_string().starts_with(sentence), "{error}");
}

/// A plugin whose panics cannot be caught is not built at all.
#[test]
fn panic_abort_is_refused_by_the_compiler() {
    let target = tempfile::tempdir().unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let check = |strategy: &str| {
        let mut command = Command::new(&cargo);
        command.current_dir(repository()).args(["check", "--offline", "--locked", "-p", "deepinfer-panics-in-entry"]);
        command.args(["--config", &format!("profile.dev.panic=\"{strategy}\"")]).arg("--target-dir").arg(target.path());
        let output = command.output().expect("cargo runs");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (is_built, text) = check("abort");
    assert!(!is_built && text.contains("a plugin built with panic = \"abort\" cannot contain its panics"), "{text}");
    let (is_built, text) = check("unwind");
    assert!(is_built, "{text}");
}
