//! Ten seeded bugs of a backend in C (`tests/plugins/liar.c`): `deepinfer parity` finds each by its name, alone or with the
//! validation layer over the backend, and finds nothing where nothing is.

use serde_json::Value;
use tempfile::TempDir;

use crate::accelerators::compile;
use crate::command::{command, deepinfer, finish};
use crate::containment::built;

const SEEDS: [&str; 3] = ["0", "1", "2"];

/// Bugs by the option that turns them on; what has them; the levels at which they show.
const BUGS: [(&str, &str, &str); 10] = [
    ("ragged-edge", "rms_norm", "L2"),
    ("nan-swallowed", "rms_norm", "L2"),
    ("batch-dependent", "rms_norm", "L2,L4"),
    ("tie-break", "topk_select", "L2"),
    ("stale-workspace", "rstd", "L2,L4"),
    ("stream-race", "rstd", "L4"),
    ("lying-supports", "rstd", "L0"),
    ("out-of-bounds", "gather", "L2"),
    ("size-equality", "gather", "L0"),
    ("event-wait", "stream", "L1"),
];

/// Bugs that the layer finds by itself, and the options with which it does.
const BUGS_FOR_THE_LAYER: [(&str, &str, &str); 3] = [
    ("out-of-bounds", "gather", "validate:poison"),
    ("stale-workspace", "rstd", "validate:poison,shadow=1/1"),
    ("lying-supports", "rstd", "validate:on=error"),
];

/// The compiled liar; `None` on a machine without a C compiler.
struct Liar(TempDir);

impl Liar {
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        compile("liar.c", &folder.path().join("libdeepinfer_liar.so")).then_some(Self(folder))
    }

    fn backend(&self, bug: &str) -> String {
        format!("{}?fault={bug}", self.0.path().join("libdeepinfer_liar.so").display())
    }

    /// What is found of a bug: exit code, and the findings as (kind, op, sentence).
    fn found(&self, bug: &str, args: &[&str]) -> (Option<i32>, Vec<(String, String, String)>) {
        found(&self.backend(bug), args)
    }
}

fn found(backend: &str, args: &[&str]) -> (Option<i32>, Vec<(String, String, String)>) {
    let mut all = vec!["parity", "--backend", backend, "--profile", "none", "--timeout", "120", "--report", "-"];
    all.extend(args);
    let run = deepinfer(&all);
    let report: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {run:?}"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let findings = report["findings"].as_array().unwrap().iter();
    (run.code, findings.map(|f| (text(&f["fault"]), text(&f["op"]), text(&f["sentence"]))).collect())
}

#[test]
fn each_bug_is_found_by_its_name() {
    let Some(liar) = Liar::new() else { return };
    for (bug, op, levels) in BUGS {
        for seed in SEEDS {
            let (code, findings) = liar.found(bug, &["--ops", op, "--level", levels, "--seed", seed]);
            assert_eq!(code, Some(1), "{bug}, seed {seed}: {findings:?}");
            // Its name, and no other.
            let names: Vec<(&str, &str)> = findings.iter().map(|(kind, op, _)| (kind.as_str(), op.as_str())).collect();
            assert_eq!(names, [(bug, op)], "seed {seed}: {findings:?}");
        }
    }
}

#[test]
fn the_layer_finds_what_it_sees_by_itself() {
    let Some(liar) = Liar::new() else { return };
    for (bug, op, layers) in BUGS_FOR_THE_LAYER {
        for seed in SEEDS {
            // Level 2 without the checks that would find it anyway.
            let args = ["--ops", op, "--level", "L2", "--case", "value/*", "--cases", "16", "--seed", seed];
            let (code, findings) = liar.found(bug, &[&args[..], &["--layers", layers]].concat());
            assert_eq!(code, Some(1), "{bug}, seed {seed}");
            assert!(findings.iter().all(|(kind, _, _)| kind == bug) && !findings.is_empty(), "{bug}: {findings:?}");
            assert!(findings[0].2.contains("the backend broke a rule"), "{bug}: {findings:?}");
        }
    }
}

#[test]
fn a_conclusion_is_the_same_under_the_layer() {
    let Some(liar) = Liar::new() else { return };
    for (bug, kind, words) in [
        ("nan-swallowed", "nan-swallowed", "all of them have a NaN among their values"),
        ("last-row", "ragged-edge", "all of them have an odd number of rows"),
        ("many-rows", "wrong-result", "all of them have more than one row"),
    ] {
        for layers in ["", "validate:shadow=1/1", "validate:shadow=1/1,on=error,bundles=none"] {
            let args = ["--ops", "rms_norm", "--level", "L0,L2", "--layers", layers];
            let (code, findings) = liar.found(bug, &args);
            assert_eq!(code, Some(1), "{bug}, {layers}");
            let [(found, _, sentence)] = &findings[..] else { panic!("{bug}, {layers}: {findings:?}") };
            assert!(found == kind && sentence.contains(words), "{bug}, {layers}: {findings:?}");
        }
    }
}

#[test]
fn a_run_under_the_layer_leaves_nothing_behind_and_prints_its_findings_once() {
    let Some(liar) = Liar::new() else { return };
    let temporary = tempfile::tempdir().unwrap();
    let backend = liar.backend("many-rows");
    let args = ["parity", "--backend", &backend, "--profile", "none", "--ops", "rms_norm", "--case", "value/*"];
    let mut command = command(&[&args[..], &["--layers", "validate:shadow=1/1"]].concat());
    let run = finish(command.env("TMPDIR", temporary.path()));
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "bundles of the layer");
    assert!(!run.stderr.contains("the backend broke a rule"), "{}", run.stderr);
    assert!(!run.stdout.contains("deepinfer replay"), "{}", run.stdout);
}

#[test]
fn a_panic_is_found_by_that_name_with_and_without_the_layer() {
    let plugin = built("panics_in_run");
    for layers in ["", "validate:poison", "validate:poison,on=error"] {
        for (op, sentence) in [
            ("rms_norm", "in rms_norm/value/0, a bug of the kernel, in rows of "),
            (
                "convert_kv_index",
                "in convert_kv_index/value/0, panic in plan of convert_kv_index: a bug of the plan, for ",
            ),
        ] {
            let args = ["--ops", op, "--cases", "3", "--layers", layers];
            let (code, findings) = found(plugin.to_str().unwrap(), &args);
            assert_eq!(code, Some(1), "{op}, {layers}");
            let [(kind, _, said)] = &findings[..] else { panic!("{op}, {layers}: {findings:?}") };
            assert_eq!(kind, "panic", "{layers}: {findings:?}");
            assert!(said.contains(sentence) && said.contains("lib.rs:"), "{layers}: {said}");
        }
    }
}

#[test]
fn an_op_of_the_vendor_is_not_tested_and_must_have_a_name_of_its_own() {
    let Some(liar) = Liar::new() else { return };
    let own = liar.backend("own-op");
    let not_for = "the plugin has it, but parity has no cases for a vendor's own op";
    let run = deepinfer(&["parity", "--backend", &own, "--profile", "none", "--ops", "polish"]);
    run.refused(&["--ops \"polish\" fits polish", not_for]);
    deepinfer(&["parity", "--backend", &own, "--ops", "polosh"]).refused(&["fits none of"]);
    let table = ["--profile", "none", "--level", "L0", "--case", "op-table"];
    let run = deepinfer(&[&["parity", "--backend", &own][..], &table].concat());
    assert!(run.succeeded().contains(&format!("not tested: polish: {not_for}")), "{run:?}");

    let misnamed = liar.backend("misnamed");
    let run = deepinfer(&[&["parity", "--backend", &misnamed][..], &table].concat());
    assert!(run.stdout.contains("the own op 0x80000001 is called rstd, which is an op of the catalogue"), "{run:?}");
    let (library, options) = misnamed.split_once('?').unwrap();
    let run = deepinfer(&["plugin", "inspect", library, "--options", options]);
    assert!(run.succeeded().contains("an own op with the name of one of the catalogue: rename it"), "{run:?}");
}

#[test]
fn a_wrong_value_that_is_accepted_is_told() {
    let Some(liar) = Liar::new() else { return };
    let (_, findings) = liar.found("careless", &["--ops", "convert_kv_index", "--case", "refusal/*"]);
    let [(kind, _, sentence)] = &findings[..] else { panic!("{findings:?}") };
    assert!(kind == "accepts-wrong" && sentence.contains("positions[0, 0]=2147483647"), "{sentence}");
}

#[test]
fn nothing_is_found_where_nothing_is() {
    let Some(liar) = Liar::new() else { return };
    for seed in SEEDS {
        for layers in ["", "validate:poison"] {
            let (code, findings) = liar.found("none", &["--cases", "12", "--seed", seed, "--layers", layers]);
            assert_eq!((code, findings), (Some(0), Vec::new()), "seed {seed}, layers {layers:?}");
        }
    }
}

#[test]
fn nothing_is_found_of_a_processor_that_works_beside_the_caller() {
    for (seed, ops) in SEEDS.into_iter().zip(["*s*", "*o*", "*r*"]) {
        let (code, findings) = found("cpu?async=1", &["--cases", "2", "--seed", seed, "--ops", ops]);
        assert_eq!((code, findings), (Some(0), Vec::new()), "seed {seed}, ops {ops}");
    }
}

#[test]
fn a_struct_that_is_written_beyond_its_end_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libdeepinfer_c_host.so");
    if !compile("host_backend.c", &library) {
        return;
    }
    // It fills DiDeviceInfo without a look at how much of it there is.
    let (code, findings) = found(library.to_str().unwrap(), &["--ops", "load", "--case", "*-lengths"]);
    assert_eq!(code, Some(1));
    let [(kind, op, sentence)] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!((kind.as_str(), op.as_str()), ("over-read", "load"));
    assert!(sentence.contains("killed by signal 11 (SIGSEGV)"), "{sentence}");
}
