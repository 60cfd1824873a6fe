//! Choosing a backend by name, by path and by preference, and what the refusals say.

mod c_compiler;
mod c_plugin;

use std::path::{Path, PathBuf};
use std::process::Command;

use c_plugin::plugin;
use deepinfer_ops::args::RmsNorm;
use deepinfer_ops::{Device, Dispatch, Format, Tensor};
use deepinfer_runtime::{
    BackendDetails, BackendReport, BackendState, Candidate, Runtime, SearchPath, SelectError, Selection,
};
use tempfile::TempDir;

/// A folder with a backend, a second one without device, a file of text, and a file that is no plugin by its name.
fn folder(name: &str) -> Option<TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("libdeepinfer_{}.so", name.replace('-', "_"));
    plugin(folder.path(), "host_backend.c", &file, &[&format!("-DNAME=\"{name}\"")])?;
    plugin(folder.path(), "host_backend.c", "libdeepinfer_dark.so", &["-DNAME=\"dark\"", "-DNO_DEVICE"])?;
    std::fs::write(folder.path().join("libdeepinfer_broken.so"), "text\n").unwrap();
    std::fs::write(folder.path().join("notes.so"), "text\n").unwrap();
    Some(folder)
}

fn runtime(folder: &Path) -> Runtime {
    Runtime::new(SearchPath::of([folder.to_owned()]))
}

fn select(runtime: &Runtime, text: &str) -> Result<(String, u32), SelectError> {
    runtime.select(&Selection::parse(text)?).map(|(backend, device)| (backend.name().to_owned(), device))
}

fn details(report: &BackendReport) -> &BackendDetails {
    match &report.state {
        BackendState::Loaded(details) => details,
        other => panic!("{other:?}"),
    }
}

fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

#[test]
fn a_name_finds_its_backend_whatever_else_lies_in_the_folder() {
    let Some(folder) = folder("c-named") else { return };
    let runtime = runtime(folder.path());
    assert_eq!(select(&runtime, "c-named").unwrap(), ("c-named".to_owned(), 0));
    assert_eq!(select(&runtime, "c-named:1").unwrap(), ("c-named".to_owned(), 1));
    let error = select(&runtime, "c-named:2").unwrap_err();
    assert_contains(&error.to_string(), &["libdeepinfer_c_named.so", "has no device 2; it has 2"]);
}

#[test]
fn a_name_is_also_found_in_a_file_that_is_called_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_) = plugin(folder.path(), "host_backend.c", "libdeepinfer_x.so", &["-DNAME=\"c-inside\""]) else {
        return;
    };
    assert_eq!(select(&runtime(folder.path()), "c-inside").unwrap().0, "c-inside");
}

#[test]
fn an_unknown_name_lists_every_candidate_with_what_it_is() {
    let Some(folder) = folder("c-listed") else { return };
    let error = select(&runtime(folder.path()), "tpu").unwrap_err();
    assert!(matches!(error, SelectError::UnknownName { .. }), "{error:?}");
    assert_contains(
        &error.to_string(),
        &[
            "no accelerator backend \"tpu\"",
            "libdeepinfer_broken.so: it cannot be loaded as a shared library",
            "libdeepinfer_c_listed.so: this is the backend c-listed",
            "libdeepinfer_dark.so: this is the backend dark",
        ],
    );
    assert!(!error.to_string().contains("notes.so"));

    let empty = tempfile::tempdir().unwrap();
    let error = select(&runtime(empty.path()), "cpu").unwrap_err().to_string();
    assert_contains(&error, &["\"cpu\"", "no plugin", empty.path().to_str().unwrap()]);
}

#[test]
fn an_explicit_choice_is_never_replaced() {
    let Some(folder) = folder("c-other") else { return };
    let runtime = runtime(folder.path());
    let error = select(&runtime, "dark").unwrap_err();
    assert!(matches!(error, SelectError::NoDevice { .. }), "{error:?}");
    assert_contains(&error.to_string(), &["dark has no device: the cable is not plugged in"]);
    let error = select(&runtime, folder.path().join("notes.so").to_str().unwrap()).unwrap_err();
    assert_contains(&error.to_string(), &["notes.so", "cannot be loaded as a shared library"]);
}

#[test]
fn a_path_is_taken_as_it_is() {
    let Some(folder) = folder("c-by-path") else { return };
    let path = folder.path().join("libdeepinfer_c_by_path.so");
    let elsewhere = tempfile::tempdir().unwrap();
    let chosen = select(&runtime(elsewhere.path()), &format!("{}:1", path.display()));
    assert_eq!(chosen.unwrap(), ("c-by-path".to_owned(), 1));
}

#[test]
fn options_reach_the_plugin_that_is_named_and_no_other() {
    let Some(folder) = folder("c-options") else { return };
    let runtime = runtime(folder.path());
    let error = select(&runtime, "c-options?speed=high").unwrap_err().to_string();
    assert_contains(&error, &["c-options refused to start: the only option is mode"]);
    // One sentence: the others are not what was meant. They were loaded without the options, which they would have refused.
    assert_eq!(error.lines().count(), 1, "{error}");
    let error = select(&runtime, "tpu?speed=high").unwrap_err().to_string();
    assert_contains(&error, &["libdeepinfer_dark.so: this is the backend dark"]);

    let Some(again) = self::folder("c-moded") else { return };
    assert_eq!(select(&self::runtime(again.path()), "c-moded?mode=sim").unwrap().0, "c-moded");
}

#[test]
fn options_that_a_backend_refuses_are_one_sentence() {
    // In this process the backend runs already, with the options of other tests; so this asks a copy of the file.
    let runtime = Runtime::new(SearchPath::from_environment());
    let candidates = runtime.search().candidates();
    let built = candidates.iter().map(Candidate::path);
    let built = built.into_iter().find(|path| path.ends_with("libdeepinfer_cpu_reference.so")).unwrap();
    for (options, reason) in [
        ("threads=0", "threads is \"0\", but must be a number from 1 to 1024"),
        ("x=y", "option \"x=y\" is unknown; there are threads=N and async=SEED"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(built, folder.path().join("libdeepinfer_cpu_reference.so")).unwrap();
        std::fs::write(folder.path().join("libdeepinfer_broken.so"), "text\n").unwrap();
        let error = select(&self::runtime(folder.path()), &format!("cpu?{options}")).unwrap_err();
        assert!(matches!(error, SelectError::Refused { .. }), "{error:?}");
        let error = error.to_string();
        assert_contains(&error, &["the accelerator backend \"cpu\" cannot be used", "refused to start", reason]);
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn absurd_counts_of_devices_are_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let file = "libdeepinfer_c_many.so";
    let Some(_) = plugin(folder.path(), "host_backend.c", file, &["-DNAME=\"c-many\"", "-DDEVICES=0xFFFFFFFFu"]) else {
        return;
    };
    let runtime = runtime(folder.path());
    let sentence = "the plugin reports 4294967295 devices, but at most 4096 are believed";
    assert_contains(&select(&runtime, "c-many").unwrap_err().to_string(), &[file, "c-many has no device", sentence]);
    let report = runtime.report(&Selection::default());
    let BackendDetails { no_device, devices, .. } = details(&report[0]);
    assert_eq!((no_device.as_deref(), devices.len()), (Some(sentence), 0));
}

#[test]
fn a_report_is_json_whatever_the_paths_and_prints_no_control_characters() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let odd = folder.path().join(std::ffi::OsStr::from_bytes(b"n\xFF"));
    std::fs::create_dir(&odd).unwrap();
    std::fs::write(odd.join("lib\x1b[31m\ndeepinfer_x.so"), "text\n").unwrap();
    let runtime = runtime(&odd);
    let report = runtime.report(&Selection::default());
    let json = serde_json::to_value(&report).unwrap();
    assert!(json[0]["path"].as_str().unwrap().ends_with("/n\u{FFFD}/lib\x1b[31m\ndeepinfer_x.so"), "{json}");
    let text = report[0].to_string();
    assert_contains(&text, &["lib\\u{1b}[31m\\ndeepinfer_x.so"]);
    assert_eq!((text.contains('\x1b'), text.lines().count()), (false, 1), "{text:?}");
    let error = select(&runtime, "tpu").unwrap_err().to_string();
    assert_eq!((error.contains('\x1b'), error.lines().count()), (false, 2), "{error:?}");
}

#[test]
fn auto_and_open_want_every_op_of_the_model() {
    let Some(folder) = folder("c-partial") else { return };
    let runtime = runtime(folder.path());
    let error = runtime.open(&Selection::default()).unwrap_err();
    assert!(matches!(error, SelectError::NoneUsable { .. }), "{error:?}");
    assert_contains(
        &error.to_string(),
        &[
            "libdeepinfer_broken.so: it cannot be loaded",
            "c-partial does not implement",
            "sparse_attention",
            "dark has no device: the cable is not plugged in",
        ],
    );
    let error = runtime.open(&Selection::parse("c-partial").unwrap()).unwrap_err();
    assert_contains(&error.to_string(), &["c-partial cannot run the model", "sparse_attention"]);
}

#[test]
fn the_report_describes_good_and_bad_candidates() {
    let Some(folder) = folder("c-reported") else { return };
    let report = runtime(folder.path()).report(&Selection::default());
    let of = |file: &str| report.iter().find(|r| r.path.ends_with(file)).unwrap();
    assert_eq!(report.len(), 3);
    let BackendDetails { name, devices, ops, missing_ops, profiles, .. } = details(of("libdeepinfer_c_reported.so"));
    assert_eq!((name.as_str(), devices.len(), devices[1].info.name.as_str()), ("c-reported", 2, "host memory"));
    assert_eq!((profiles[0].name.as_str(), &profiles[0].missing), ("v41-text", missing_ops));
    assert!(ops.iter().any(|op| (op.name.as_str(), op.implementation.as_str()) == ("rstd", "short")));
    assert!(missing_ops.contains(&"linear".to_owned()) && !missing_ops.contains(&"gather".to_owned()));
    assert_eq!(details(of("libdeepinfer_dark.so")).no_device.as_deref(), Some("the cable is not plugged in"));
    assert!(matches!(of("libdeepinfer_broken.so").state, BackendState::Refused { .. }));

    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json[0]["state"], "refused");
    assert_eq!(json[1]["devices"][0]["memory_bytes"], 1 << 30);
    assert!(report[1].to_string().contains("device 0: host memory (c11, 1.0 GiB)"), "{}", report[1]);
}

/// What the process sees on its search path; prints when it is the child of the test below.
#[test]
fn plugins_of_the_variable_come_first_and_those_beside_the_executable_follow() {
    const CHILD: &str = "DEEPINFER_TEST_LIST_CANDIDATES";
    if std::env::var_os(CHILD).is_some() {
        for path in SearchPath::from_environment().candidates() {
            println!("candidate {}", path.path().display());
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("libdeepinfer_first.so"), "").unwrap();
    let below = tempfile::tempdir_in(folder.path()).unwrap();
    std::fs::write(below.path().join("libdeepinfer_current.so"), "").unwrap();
    let list = |variable: &str| -> Vec<PathBuf> {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "--nocapture",
                "plugins_of_the_variable_come_first_and_those_beside_the_executable_follow",
            ])
            .env(CHILD, "1")
            .env("DEEPINFER_PLUGIN_PATH", variable)
            .current_dir(below.path())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().filter_map(|l| Some(l.split_once("candidate ")?.1.into())).collect()
    };
    let found = list(&format!("{}::.", folder.path().display()));
    assert_eq!(found[0], folder.path().join("libdeepinfer_first.so"));
    // Cargo has built the three backends beside this test, since the package depends on them.
    for name in ["libdeepinfer_ascend_950.so", "libdeepinfer_cpu_reference.so", "libdeepinfer_nvidia_sm100.so"] {
        assert_eq!(found.iter().filter(|p| p.ends_with(name)).count(), 1, "{name} in {found:?}");
    }
    let current = |paths: &[PathBuf]| paths.iter().any(|p| p.ends_with("libdeepinfer_current.so"));
    assert!(!current(&found) && !current(&list("")), "the current directory is never searched");
}

#[test]
fn the_vendor_plugins_load_everywhere_and_say_what_they_see() {
    let runtime = Runtime::new(SearchPath::from_environment());
    let vendors = [
        ("nvidia", "NVIDIA driver", "was built without its CUDA kernels"),
        ("ascend", "CANN", "was built without its Ascend kernels"),
    ];
    for (name, without_device, without_kernels) in vendors {
        match runtime.select(&Selection::parse(name).unwrap()) {
            // With a device it opens, or there was no compiler when it was built.
            Ok((backend, device)) => {
                if let Err(error) = backend.open(device) {
                    assert_contains(&error.to_string(), &[name, without_kernels]);
                }
            }
            Err(error) => assert_contains(&error.to_string(), &[name, "has no device", without_device]),
        }
    }
}

#[test]
fn auto_opens_the_reference_backend_and_an_op_runs_on_it() {
    let runtime = Runtime::new(SearchPath::from_environment());
    let device = runtime.open(&Selection::default()).unwrap();
    assert_eq!((device.backend(), device.info().is_cpu()), ("cpu", true));
    assert_eq!(runtime.open(&Selection::parse("cpu-reference").unwrap()).unwrap().backend(), "cpu");

    let tensor = |shape: &[usize], values: &[f32]| {
        let memory = device.allocate(Tensor::bytes_of(Format::F32, shape)).unwrap();
        let tensor = Tensor::plain(&memory, 0, Format::F32, shape);
        device.upload(&tensor, &values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>()).unwrap();
        tensor
    };
    let (x, weight, out) = (tensor(&[1, 2], &[3.0, 4.0]), tensor(&[2], &[1.0, 2.0]), tensor(&[1, 2], &[]));
    device.dispatch(&RmsNorm { x: &x, weight: &weight, eps: 0.0, out: &out }).unwrap();
    let mut bytes = [0; 8];
    device.download(&out, &mut bytes).unwrap();
    let values = bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_ne_bytes(b));
    let root_mean_square = 12.5_f64.sqrt();
    assert!(values.eq([(3.0 / root_mean_square) as f32, (8.0 / root_mean_square) as f32]));
}
