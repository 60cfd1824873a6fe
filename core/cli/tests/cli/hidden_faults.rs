//! Faults of a backend in C (`tests/plugins/liar.c`) that a right result hides, and faults that would show under many wrong
//! names: each is found by its own, and by no other.

use serde_json::Value;
use tempfile::TempDir;

use crate::accelerators::compile;
use crate::command::deepinfer;

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
