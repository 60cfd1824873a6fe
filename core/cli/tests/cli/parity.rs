//! `deepinfer parity`, on the processor and on a backend in C that lies (`tests/plugins/liar.c`).

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::accelerators::compile;
use crate::command::{Run, deepinfer};

/// Op of the liar that has the faults.
const FAULTY: &str = "convert_kv_index";
/// Op of the liar that is always right.
const SOUND: &str = "restore_candidate_indices_inplace";

/// The compiled liar.
struct Liar {
    folder: TempDir,
}

impl Liar {
    /// `None` on a machine without a C compiler.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        compile("liar.c", &folder.path().join("libdeepinfer_liar.so")).then_some(Self { folder })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn backend(&self, fault: &str) -> String {
        format!("{}?fault={fault}", self.file("libdeepinfer_liar.so").display())
    }

    /// Tests it with one fault; no op is required.
    fn tested(&self, fault: &str, args: &[&str]) -> Run {
        self.tested_for("none", fault, args)
    }

    /// As [`Liar::tested`], with the ops of a profile required.
    fn tested_for(&self, profile: &str, fault: &str, args: &[&str]) -> Run {
        let backend = self.backend(fault);
        // Long where nothing hangs: the machine may be busy.
        let timeout = if fault == "hang" { "4" } else { "120" };
        let mut all =
            vec!["parity", "--backend", &backend, "--cases", "12", "--timeout", timeout, "--profile", profile];
        all.extend(args);
        deepinfer(&all)
    }

    /// The report as JSON of a test at some levels.
    fn report(&self, fault: &str, level: &str) -> Report {
        let run = self.tested(fault, &["--level", level, "--report", "-"]);
        let json = serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {run:?}"));
        Report { run, json }
    }
}

struct Report {
    run: Run,
    json: Value,
}

impl Report {
    /// Cases and failures of an op.
    fn counts(&self, op: &str) -> (u64, u64) {
        let found = self.json["ops"].as_array().unwrap().iter().find(|entry| entry["op"] == op);
        let found = found.unwrap_or_else(|| panic!("no {op} in {}", self.json));
        (found["cases"].as_u64().unwrap(), found["failures"].as_u64().unwrap())
    }

    /// What is said of a failed case.
    #[track_caller]
    fn problem(&self, name: &str) -> String {
        let failed = self.json["failed"].as_array().unwrap();
        let names: Vec<&Value> = failed.iter().map(|line| &line["name"]).collect();
        let line =
            failed.iter().find(|line| line["name"] == name).unwrap_or_else(|| panic!("{name} is not in {names:?}"));
        line["problem"].as_str().unwrap().to_owned()
    }
}

#[test]
fn the_processor_conforms() {
    let run = deepinfer(&["parity", "--backend", "cpu", "--cases", "3", "--timeout", "120"]);
    let text = run.succeeded_quietly();
    for part in ["levels L0, L1, L2, L3, L4, L5, seed 0, profile v41-text", "miniature", "fused_sample", " cases pass"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    for part in ["FAILED", "FOUND", "not supported:", "MISSING"] {
        assert!(!text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_fault_is_the_failure_of_its_case_and_the_others_run() {
    let Some(liar) = Liar::new() else { return };
    // The first case of the faulty op has the 33 rows that bring the fault out.
    for (fault, wanted) in [
        ("wrong", "the result is not that of the oracle"),
        ("segfault", "killed by signal 11 (SIGSEGV)"),
        ("abort", "killed by signal 6 (SIGABRT)"),
        ("exit", "the process exited with code 0"),
        ("hang", "no answer within 4 s"),
        ("poisoned", "the device is lost: liar/convert_kv_index: the device fell off the bus"),
    ] {
        let report = liar.report(fault, "L2");
        assert_eq!(report.run.code, Some(1), "{fault}: {}", report.run.stderr);
        let problem = report.problem(&format!("{FAULTY}/value/0"));
        assert!(problem.contains(wanted), "{fault}: {problem}");
        let (cases, failures) = report.counts(SOUND);
        assert!(cases > 12 && failures == 0, "{fault}: {failures} of {cases}");
        let (cases, failures) = report.counts(FAULTY);
        assert!(cases > 12 && failures > 0, "{fault}: {failures} of {cases}");
    }
}

#[test]
fn without_a_fault_nothing_is_found_whatever_the_plugin_prints() {
    let Some(liar) = Liar::new() else { return };
    for fault in ["none", "print"] {
        let run = liar.tested(fault, &[]);
        let text = run.succeeded();
        assert!(!text.contains("FAILED") && text.contains("2 are not supported"), "{fault}: {text}");
        let why = "not supported, 2 cases of miniature: it lacks ops of v41-text\n";
        assert!(text.contains(why), "{fault}: {text}");
    }
    assert!(liar.tested("print", &["--level", "L2"]).stderr.contains("a word of the plugin"));
}

#[test]
fn faults_of_other_kinds_are_failures_of_other_checks() {
    let Some(liar) = Liar::new() else { return };
    let report = liar.report("careless", "L2");
    assert!(report.problem(&format!("{FAULTY}/refusal/3")).contains("accepted"));
    assert_eq!(report.counts(FAULTY).1, 1);

    let report = liar.report("company", "L4");
    assert!(report.problem(&format!("{FAULTY}/rows/1")).contains("the bits are others than among all"));
    assert_eq!(report.counts(SOUND).1, 0);

    let report = liar.report("leak", "L1,L2");
    assert!(report.problem("device/leaked threads").contains("threads before the device is opened"));
    assert_eq!((report.counts(FAULTY).1, report.counts(SOUND).1), (0, 0));
}

#[test]
fn a_backend_that_dies_while_it_loads_is_refused() {
    let Some(liar) = Liar::new() else { return };
    liar.tested("boot", &[]).refused(&["does not load", "while it was loaded, killed by signal 6 (SIGABRT)"]);
    deepinfer(&["parity", "--backend", "nowhere"]).refused(&["there is no accelerator backend \"nowhere\""]);
}

#[test]
fn nothing_passes_by_supporting_nothing() {
    let Some(liar) = Liar::new() else { return };
    let run = liar.tested_for("v41-text", "none", &["--level", "L0"]);
    assert_eq!(run.code, Some(1));
    assert!(run.stdout.contains("MISSING ops of v41-text: linear, grouped_linear"), "{}", run.stdout);
    // The op is there, but takes no call.
    let run = liar.tested_for("v41-text", "decline", &["--ops", FAULTY]);
    assert_eq!(run.code, Some(1));
    assert!(run.stdout.contains(&format!("MISSING ops of v41-text: {FAULTY}\n")), "{}", run.stdout);
    let run = liar.tested("decline", &["--ops", FAULTY]);
    let (_, why) = run.succeeded().split_once("\nnot supported, ").unwrap_or_else(|| panic!("{}", run.stdout));
    let (count, why) = why.split_once(&format!(" cases of {FAULTY}: ")).unwrap_or_else(|| panic!("{why}"));
    assert!(count.parse::<usize>().unwrap() > 12 && why.starts_with("c: not today\nnot supported: "), "{}", run.stdout);
}

#[test]
fn expected_failures() {
    let Some(liar) = Liar::new() else { return };
    let list = liar.file("known.txt");
    let tested = |text: &str, fault: &str| {
        fs::write(&list, text).unwrap();
        liar.tested(fault, &["--level", "L2", "--case", "value/*", "--expect-failures", list.to_str().unwrap()])
    };
    let known = format!("# of the ragged edge\n{FAULTY}/value/* # the last row is off by one\n");
    let run = tested(&known, "wrong");
    assert!(run.succeeded().contains("fail as expected"), "{}", run.stdout);

    let run = tested(&known, "none");
    assert_eq!(run.code, Some(1));
    assert!(run.stdout.contains("PASSED unexpectedly, line 2: convert_kv_index/value/*"), "{}", run.stdout);

    // Another failure than those that are expected.
    let run = tested(&format!("{FAULTY}/value/0 # one of them"), "wrong");
    assert_eq!(run.code, Some(1));
    assert!(run.stdout.contains(&format!("FAILED {FAULTY}/value/8")), "{}", run.stdout);

    tested("convert_kv_index", "none").refused(&["known.txt", "line 1", "a reason is missing"]);
    tested("convert_kv_idnex # typo", "none").refused(&["line 1", "no op is called \"convert_kv_idnex\""]);
}

#[test]
fn a_failure_says_how_to_run_it_alone() {
    let Some(liar) = Liar::new() else { return };
    let report = liar.report("wrong", "L2");
    let rerun = report.json["failed"][0]["rerun"].as_str().unwrap();
    let wanted = format!(
        "deepinfer parity --backend '{}' --ops {FAULTY} --case value/0 --seed 0 --cases 12 --profile none --timeout 120",
        liar.backend("wrong")
    );
    assert_eq!(rerun, wanted);
    let args: Vec<String> = rerun.split(' ').skip(1).map(|word| word.trim_matches('\'').to_owned()).collect();
    let run = deepinfer(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.contains("of 1 cases 0 pass, 1 fail"), "{}", run.stderr);
    let parts = [
        "slots[32, 32] is",
        "(0x",
        "expected",
        "positions=I32[33, 33]",
        "content Plain",
        "seed 0",
        "no error is allowed",
    ];
    for part in parts {
        assert!(run.stdout.contains(part), "{part}: {}", run.stdout);
    }
}

#[test]
fn cases_are_listed_and_named_as_they_are_printed() {
    let listed = |args: &[&str]| {
        let run = deepinfer(&[&["parity", "--backend", "cpu", "--profile", "none", "--list"], args].concat());
        run.succeeded_quietly().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let both = listed(&["--ops", "rstd,gat*", "--level", "L2", "--cases", "2"]);
    assert!(both.iter().any(|name| name == "rstd/value/1") && both.iter().any(|name| name == "gather/value/0"));
    assert!(both.iter().all(|name| name.starts_with("rstd/") || name.starts_with("gather/")), "{both:?}");
    for case in ["rstd/value/1", "load/op-table", "device/leaked threads"] {
        assert_eq!(listed(&["--case", case]), [case]);
    }
    assert_eq!(listed(&["--case", "value/1", "--ops", "rstd"]), ["rstd/value/1"]);
    assert_eq!(listed(&["--case", "*/value/1", "--ops", "rstd,gather"]).len(), 2);
}

#[test]
fn wrong_arguments() {
    let refused = |args: &[&str], parts: &[&str]| {
        let mut all = vec!["parity", "--backend", "cpu"];
        all.extend(args);
        deepinfer(&all).refused(parts);
    };
    refused(&["--ops", "rsdt"], &["\"rsdt\" fits none of", "rstd"]);
    refused(&["--ops", "rstd,rsdt"], &["\"rsdt\" fits none of"]);
    refused(&["--ops", "rstd", "--case", "value/100000"], &["no case is left to run"]);
    refused(&["--layers", "validate:poison=1,poison"], &["validate:poison=1,poison", "given twice"]);
    refused(&["--level", "L7"], &["\"L7\" is no level"]);
    refused(&["--profile", "v42"], &["--profile \"v42\" is not in the catalogue"]);
    refused(&["--timeout", "0"], &["--timeout", "from 1 to"]);
    refused(&["--report", "/nowhere/report.json"], &["cannot write /nowhere/report.json"]);
    deepinfer(&["parity", "--backend", "auto"]).refused(&["name or a path"]);
    deepinfer(&["parity-worker"]).refused(&["started by `deepinfer parity`, not by hand"]);
}

#[test]
fn reports_as_documents() {
    let Some(liar) = Liar::new() else { return };
    let [junit, html] = ["parity.xml", "parity.html"].map(|name| liar.file(name));
    let paths = [&junit, &html].map(|path| path.to_str().unwrap());
    let run = liar.tested("wrong", &["--level", "L0..L2", "--junit", paths[0], "--html", paths[1]]);
    assert_eq!(run.code, Some(1));

    let xml = fs::read_to_string(junit).unwrap();
    let elements = elements(&xml);
    let count = |name: &str| elements.iter().filter(|element| *element == name).count();
    let failed = run.stdout.matches("FAILED ").count();
    assert!(count("testsuite") > 5 && count("testcase") > 70, "{xml}");
    assert_eq!((count("testsuites"), count("failure")), (1, failed));
    assert!(xml.contains("<testcase classname=\"convert_kv_index\" name=\"value/0\""));

    let page = fs::read_to_string(html).unwrap();
    for part in ["<!doctype html>", "Largest error", "convert_kv_index/value/0", "slots[32, 32]"] {
        assert!(page.contains(part), "{part}");
    }
    // Nothing is fetched from elsewhere.
    for part in ["http", "src=", "<link", "<script", "url("] {
        assert!(!page.contains(part), "{part}");
    }
}

/// Names of the elements of an XML document.
///
/// # Panics
/// If it is not well-formed, as far as reports go: elements that nest, attributes in double quotes, known entities.
#[track_caller]
fn elements(xml: &str) -> Vec<String> {
    let mut rest = xml.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>").expect("a declaration");
    let (mut open, mut names) = (Vec::new(), Vec::new());
    while let Some((text, tag)) = rest.split_once('<') {
        assert_text(text);
        let mut quoted = false;
        let end = tag.find(|c: char| {
            quoted ^= c == '"';
            c == '>' && !quoted
        });
        let (tag, after) = tag.split_at(end.expect("a tag ends"));
        rest = &after[1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name));
            continue;
        }
        let inner = tag.trim_end_matches('/');
        let (name, attributes) = inner.split_once(' ').unwrap_or((inner, ""));
        let parts: Vec<&str> = attributes.split('"').collect();
        for pair in parts.chunks(2).filter(|pair| pair.len() == 2) {
            assert!(pair[0].ends_with('=') && !pair[1].contains('<'), "{tag}");
            assert_text(pair[1]);
        }
        assert_eq!(parts.len() % 2, 1, "{tag}");
        names.push(name.to_owned());
        if !tag.ends_with('/') {
            open.push(name.to_owned());
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?}");
    names
}

#[track_caller]
fn assert_text(text: &str) {
    for (at, _) in text.match_indices('&') {
        let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
        assert!(known.iter().any(|entity| text[at..].starts_with(entity)), "{text}");
    }
    assert!(text.chars().all(|c| !c.is_control() || c == '\n'), "{text}");
}
