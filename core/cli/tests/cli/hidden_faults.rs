//! Faults of a backend in C (`tests/plugins/liar.c`) that a right result hides, and faults that would show under many wrong
//! names: each is found by its own, and by no other.

use serde_json::Value;
use tempfile::TempDir;

use crate::accelerators::{compile, compile_with};
use crate::command::{command, deepinfer, finish};

/// The option that turns a fault on; what is tested; kind and subject of the one finding; words of its sentence.
type Fault = (&'static str, &'static [&'static str], (&'static str, &'static str), &'static str);

const FAULTS: [Fault; 8] = [
    (
        "unknown-option",
        &["--ops", "load", "--case", "unknown-option"],
        ("unknown-value", "load"),
        "parity-unknown-option=1 was accepted",
    ),
    ("unknown-id", &["--ops", "load", "--level", "L0"], ("rule", "load"), "op 999 (polish) is not in the catalogue"),
    ("input-written", &["--ops", "gather"], ("input-written", "gather"), "index was written"),
    ("wrote-when-refused", &["--ops", "gather"], ("wrote-when-refused", "gather"), "refused after out was written"),
    ("unchecked", &["--ops", "gather", "--case", "malformed/*"], ("accepts-wrong", "gather"), "past the checks"),
    ("over-read", &["--ops", "rms_norm"], ("over-read", "rms_norm"), "with what lies around weight"),
    ("memory-leak", &["--ops", "memory"], ("rule", "memory"), "128 MiB were taken and given back in 8 rounds"),
    ("unaligned", &["--level", "L1,L2"], ("rule", "memory"), "cases of other subjects cannot be set up"),
];

/// The compiled liar; `None` on a machine without a C compiler.
struct Liar(TempDir);

/// The one finding of a run: kind, subject and sentence; and the whole report.
type Found = (String, String, String, Value);

impl Liar {
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        compile("liar.c", &folder.path().join("libdeepinfer_liar.so")).then_some(Self(folder))
    }

    #[track_caller]
    fn found(&self, fault: &str, args: &[&str]) -> Found {
        let backend = format!("{}?fault={fault}", self.0.path().join("libdeepinfer_liar.so").display());
        let timeout = if fault == "hang" { "4" } else { "120" };
        let fixed = ["parity", "--backend", &backend, "--profile", "none", "--timeout", timeout, "--report", "-"];
        let run = deepinfer(&[&fixed[..], args].concat());
        assert_eq!(run.code, Some(1), "{fault}: {run:?}");
        let report: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {run:?}"));
        let [found] = &report["findings"].as_array().unwrap()[..] else {
            panic!("{fault}: {}", report["findings"]);
        };
        let [kind, subject, sentence] = ["fault", "op", "sentence"].map(|key| found[key].as_str().unwrap().to_owned());
        (kind, subject, sentence, report)
    }
}

#[test]
fn each_is_found_by_its_name() {
    let Some(liar) = Liar::new() else { return };
    for (fault, args, wanted, words) in FAULTS {
        let (kind, subject, sentence, _) = liar.found(fault, &[&["--cases", "12"], args].concat());
        assert_eq!((kind.as_str(), subject.as_str()), wanted, "{fault}: {sentence}");
        assert!(sentence.contains(words), "{fault}: {sentence}");
    }
}

/// Two threads that compute at once, and not late on threads of their streams.
#[test]
fn a_buffer_that_streams_share_is_found() {
    let Some(liar) = Liar::new() else { return };
    for seed in ["0", "1", "2"] {
        let args = ["--ops", "rstd", "--level", "L4", "--case", "streams/*", "--seed", seed];
        let (kind, subject, sentence, _) = liar.found("static-scratch", &args);
        assert_eq!((kind.as_str(), subject.as_str()), ("stream-race", "rstd"), "seed {seed}: {sentence}");
    }
}

/// Whatever a case looks for: it is told under what has happened, in full once, and the op is given up soon.
#[test]
fn a_device_that_is_lost_is_one_and_the_rest_of_the_op_is_not_tried() {
    let Some(liar) = Liar::new() else { return };
    let args = ["--ops", "convert_kv_index,restore_candidate_indices_inplace,device"];
    let (kind, subject, sentence, report) = liar.found("poisoned", &args);
    assert_eq!((kind.as_str(), subject.as_str()), ("device-lost", "convert_kv_index"), "{sentence}");
    let error = "the device is lost: liar/convert_kv_index: the device fell off the bus";
    assert!(sentence.contains(&format!("in convert_kv_index/value/0, {error}")), "{sentence}");
    let names: Vec<&str> =
        report["failed"].as_array().unwrap().iter().map(|line| line["name"].as_str().unwrap()).collect();
    // Three in a row, and one usual call of each kind.
    let (first, usual) = names.split_at(3);
    assert!(first.iter().all(|name| name.starts_with("convert_kv_index/struct-size/")), "{names:?}");
    assert_eq!(usual, ["convert_kv_index/honesty/0", "convert_kv_index/value/0"], "{names:?}");
    let of = |op: &str, key: &str| {
        let found = report["ops"].as_array().unwrap().iter().find(|entry| entry["op"] == op).unwrap();
        found[key].as_u64().unwrap()
    };
    assert!(of("convert_kv_index", "not_tried") > 100, "{report}");
    assert_eq!(of("restore_candidate_indices_inplace", "failures"), 0, "{report}");

    let backend = format!("{}?fault=poisoned", liar.0.path().join("libdeepinfer_liar.so").display());
    let run = deepinfer(&["parity", "--backend", &backend, "--profile", "none", "--ops", "convert_kv_index"]);
    let failed: Vec<&str> = run.stdout.lines().filter(|line| line.starts_with("FAILED ")).collect();
    assert_eq!(failed, [format!("FAILED convert_kv_index/value/0: {error}")], "{}", run.stdout);
    for line in [
        "  and 4 more cases of convert_kv_index end with the same error\n",
        " cases of convert_kv_index: 3 cases of convert_kv_index in a row lost the device with the same error\n",
    ] {
        assert!(run.stdout.contains(line), "{line}: {}", run.stdout);
    }
}

/// What the user has set, and what a plugin calls invalid when its device opens, would be wrong in every case.
#[test]
fn settings_with_which_no_device_opens_are_told_once_and_nothing_runs() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = |name: &str, code: &str| {
        let path = folder.path().join(name);
        compile_with("host_backend.c", &path, &[&format!("-DOPEN_FAILS={code}")]).then(|| path.display().to_string())
    };
    let Some(invalid) = plugin("libdeepinfer_invalid.so", "DI_E_INVALID") else { return };
    let args = ["--ops", "rstd,gather,load", "--cases", "2", "--profile", "none"];
    let run = deepinfer(&[&["parity", "--backend", &invalid][..], &args].concat());
    run.refused(&["device 0 of the backend c-host cannot be opened: the clock is set to five"]);
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    let mut pinned = command(&[&["parity", "--backend", "cpu"][..], &args].concat());
    finish(pinned.env("DEEPINFER_OP_IMPL", "rstd=quick")).refused(&["rstd=quick is pinned (DEEPINFER_OP_IMPL)"]);

    // A fault of the backend is the failure of the cases that need the device.
    let internal = plugin("libdeepinfer_internal.so", "DI_E_INTERNAL").unwrap();
    let run = deepinfer(&[&["parity", "--backend", &internal][..], &args].concat());
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stdout.contains("FOUND set-up in "), "{}", run.stdout);
    let of_rstd: Vec<&str> = run.stdout.lines().filter(|line| line.starts_with("FAILED rstd/")).collect();
    assert_eq!(of_rstd.len(), 1, "{}", run.stdout);
}

#[test]
fn a_hang_is_one_and_what_is_not_tried_is_no_failure() {
    let Some(liar) = Liar::new() else { return };
    // A case of one hang; after three the rest is not tried.
    let args = ["--ops", "convert_kv_index", "--level", "L2,L4", "--cases", "12"];
    let (kind, subject, sentence, report) = liar.found("hang", &args);
    assert_eq!((kind.as_str(), subject.as_str()), ("hang", "convert_kv_index"), "{sentence}");
    assert!(sentence.contains("no answer within 4 s"), "{sentence}");
    let count = |key: &str| report[key].as_u64().unwrap();
    assert_eq!(count("failures"), 3, "{report}");
    assert!(count("not_tried") > 0, "{report}");
}
