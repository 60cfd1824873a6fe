//! `deepinfer parity --bundles` and `deepinfer replay`, on the processor and on a backend in C that lies
//! (`tests/plugins/liar.c`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::accelerators::compile;
use crate::command::{Run, deepinfer};

/// Op of the liar that has the faults.
const FAULTY: &str = "convert_kv_index";

/// The compiled liar, and bundles of what it did wrong.
struct Liar {
    folder: TempDir,
}

impl Liar {
    /// `None` on a machine without a C compiler.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        compile("liar.c", &folder.path().join("libdeepinfer_liar.so")).then_some(Self { folder })
    }

    fn backend(&self, fault: &str) -> String {
        format!("{}?fault={fault}", self.folder.path().join("libdeepinfer_liar.so").display())
    }

    /// Where bundles of runs with a fault are kept.
    fn bundles(&self, fault: &str) -> PathBuf {
        self.folder.path().join(format!("bundles of {fault}"))
    }

    fn tested(&self, fault: &str, args: &[&str]) -> Run {
        let (backend, bundles) = (self.backend(fault), self.bundles(fault));
        let fixed = ["parity", "--profile", "none", "--ops", FAULTY, "--timeout", "120", "--backend", &backend];
        let all = [&fixed[..], &["--bundles", bundles.to_str().unwrap()], args].concat();
        deepinfer(&all)
    }

    /// The bundle of the case `CHECK.N` that fails with a fault.
    fn bundle(&self, fault: &str, case: &str) -> PathBuf {
        let run = self.tested(fault, &["--case", &case.replace('.', "/")]);
        assert_eq!(run.code, Some(1), "{run:?}");
        let path = self.bundles(fault).join(format!("{FAULTY}.{case}.seed-0.dibundle.safetensors"));
        assert!(path.exists(), "{} is not there: {run:?}", path.display());
        path
    }
}

fn replay(bundle: &Path, backend: &str, args: &[&str]) -> Run {
    // Long where nothing hangs: the machine may be busy.
    let timeout = if backend.ends_with("=hang") { "2" } else { "120" };
    let fixed = ["replay", bundle.to_str().unwrap(), "--timeout", timeout, "--backend", backend];
    deepinfer(&[&fixed[..], args].concat())
}

fn json(run: &Run) -> Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {run:?}"))
}

#[test]
fn a_wrong_result_comes_again_and_the_processor_has_another() {
    let Some(liar) = Liar::new() else { return };
    let bundle = liar.bundle("wrong", "value.0");

    let run = replay(&bundle, &liar.backend("wrong"), &[]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let parts =
        ["from convert_kv_index/value/0, seed 0", "recorded of liar", "DIFFERS: the result is not", "slots[32, 32]"];
    for part in parts.iter().chain(&["the recorded bits come again"]) {
        assert!(run.stdout.contains(part), "{part}: {}", run.stdout);
    }
    assert!(run.stderr.contains("differs from the oracle"), "{}", run.stderr);

    let run = replay(&bundle, "cpu", &[]);
    let text = run.succeeded_quietly();
    assert!(text.contains("agrees with the oracle") && text.contains("the bits are not the recorded ones"), "{text}");
}

#[test]
fn two_backends_are_compared_by_bits() {
    let Some(liar) = Liar::new() else { return };
    let bundle = liar.bundle("wrong", "value.0");

    let run = replay(&bundle, "cpu", &["--against", &liar.backend("wrong"), "--json"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let report = json(&run);
    assert_eq!(report["op"], FAULTY);
    assert_eq!((&report["bits_equal"], &report["seed"]), (&Value::from(false), &Value::from(0)));
    assert_eq!(
        (&report["answers"][0]["outcome"], &report["answers"][1]["outcome"]),
        (&"passed".into(), &"failed".into())
    );
    assert_eq!(report["answers"][1]["as_recorded"], true);
    assert_eq!(report["first_difference"]["element"], 32 * 33 + 32);
    assert!(run.stderr.contains("the bits of cpu 0.1.0 and liar"), "{}", run.stderr);

    let run = replay(&bundle, &liar.backend("none"), &["--against", "cpu"]);
    assert!(run.succeeded_quietly().contains("the bits of both are equal"), "{}", run.stdout);
}

#[test]
fn a_call_that_ended_its_process_does_so_again_and_harms_nobody() {
    let Some(liar) = Liar::new() else { return };
    let bundle = liar.bundle("segfault", "value.0");
    let run = replay(&bundle, &liar.backend("segfault"), &["--json"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let report = json(&run);
    assert_eq!(report["answers"][0]["problem"], "killed by signal 11 (SIGSEGV)");
    assert_eq!(report["recorded"]["problem"], "killed by signal 11 (SIGSEGV)");
    assert_eq!((&report["recorded"]["backend"], &report["answers"][0]["as_recorded"]), (&Value::Null, &Value::Null));

    let run = replay(&bundle, &liar.backend("hang"), &[]);
    assert!(run.code == Some(1) && run.stdout.contains("DIFFERS: no answer within 2 s"), "{run:?}");
    let run = replay(&bundle, "cpu", &["--against", &liar.backend("segfault")]);
    assert!(run.code == Some(1) && run.stderr.contains("there are no bits to compare: liar"), "{run:?}");
}

#[test]
fn a_row_that_depends_on_its_company_is_kept_with_the_call_that_shows_it() {
    let Some(liar) = Liar::new() else { return };
    let bundle = liar.bundle("company", "rows.1");
    // The call of fewer rows: alone, its result is right. The check is made again, too.
    let run = replay(&bundle, &liar.backend("company"), &[]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let again = "convert_kv_index/rows/1 is about more than this one call; made again, it FAILS: of the rows ";
    assert!(run.stdout.contains(again), "{run:?}");
    assert!(run.stdout.contains("the recorded bits come again"), "{run:?}");
    assert!(run.stderr.contains("convert_kv_index/rows/1 fails again on liar"), "{run:?}");
    let run = replay(&bundle, "cpu", &["--json"]);
    run.succeeded_quietly();
    assert_eq!(json(&run)["answers"][0]["check"]["outcome"], "passed");
}

#[test]
fn reports_name_the_bundles_of_failures() {
    let Some(liar) = Liar::new() else { return };
    let folder = liar.folder.path();
    let paths = ["report.json", "junit.xml", "page.html"].map(|name| folder.join(name));
    let [report, junit, page] = paths.each_ref().map(|path| path.to_str().unwrap());
    let args = ["--cases", "6", "--level", "L2", "--report", report, "--junit", junit, "--html", page];
    let run = liar.tested("wrong", &args);
    assert_eq!(run.code, Some(1), "{run:?}");

    let json: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    let failed: Vec<&str> =
        json["failed"].as_array().unwrap().iter().map(|line| line["bundle"].as_str().unwrap()).collect();
    assert!(!failed.is_empty());
    let kept = fs::read_dir(liar.bundles("wrong")).unwrap().count();
    assert_eq!(kept, failed.len(), "one for each failure and none besides");
    let xml = fs::read_to_string(junit).unwrap();
    for bundle in failed {
        assert!(Path::new(bundle).is_absolute() && Path::new(bundle).exists(), "{bundle}");
        assert!(xml.contains(bundle) && run.stdout.contains(bundle), "{bundle}");
    }
    let html = fs::read_to_string(page).unwrap();
    let link = format!("href=\"bundles%20of%20wrong/{FAULTY}.value.0.seed-0.dibundle.safetensors\"");
    assert!(html.contains(&link), "{link}: {html}");

    // What a run finds right leaves no bundle, not even that of an earlier one.
    let stale = liar.bundles("wrong");
    let run = deepinfer(&[
        "parity",
        "--backend",
        "cpu",
        "--profile",
        "none",
        "--ops",
        FAULTY,
        "--case",
        "value/0",
        "--bundles",
        stale.to_str().unwrap(),
    ]);
    run.succeeded_quietly();
    assert_eq!(fs::read_dir(stale).unwrap().count(), kept - 1);
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let Some(liar) = Liar::new() else { return };
    let bundle = liar.bundle("wrong", "value.0");
    replay(&bundle, "nowhere", &[]).refused(&["there is no accelerator backend \"nowhere\""]);
    replay(&bundle, "auto", &[]).refused(&["name or a path"]);
    replay(&bundle, &liar.backend("boot"), &[]).refused(&["does not load", "signal 6 (SIGABRT)"]);
    replay(&bundle, &liar.backend("decline"), &[]).refused(&["declines the call", "not today"]);
    replay(Path::new("/nowhere/x"), "cpu", &[]).refused(&["cannot read /nowhere/x"]);

    let cut = liar.folder.path().join("cut");
    let bytes = fs::read(&bundle).unwrap();
    fs::write(&cut, &bytes[..bytes.len() - 1]).unwrap();
    replay(&cut, "cpu", &[]).refused(&["cut", "not a bundle"]);
    let model = crate::command::repository("models/deepseek-v41-mini/model.safetensors");
    replay(&model, "cpu", &[]).refused(&["model.safetensors", "no deepinfer_bundle"]);
}

#[test]
fn what_is_no_regular_file_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [&pipe, Path::new("/dev/zero"), folder.path()] {
        replay(path, "cpu", &[]).refused(&["is not a regular file"]);
    }
    let list = pipe.to_str().unwrap();
    deepinfer(&["parity", "--backend", "cpu", "--expect-failures", list]).refused(&["is not a regular file"]);
}
