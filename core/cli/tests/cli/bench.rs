//! `deepinfer bench`: figures of every kind. How large they are is nobody's business here.

use serde_json::Value;

use crate::command::{deepinfer, repository};

/// The report of a bench, and its figures by name.
#[track_caller]
fn bench(args: &[&str]) -> (Value, Vec<(String, f64)>) {
    let args = [&["bench"], args, &["--json"]].concat();
    let report: Value = serde_json::from_str(deepinfer(&args).succeeded()).expect("a report in JSON");
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    assert_eq!(report["machine"]["build"], build);
    let figures = report["figures"].as_array().expect("figures").iter().map(|figure| {
        let [least, median, most] = ["least", "median", "most"].map(|key| figure[key].as_f64().expect("a number"));
        assert!(0.0 < least && least <= median && median <= most, "{figure}");
        (figure["what"].as_str().expect("a name").to_owned(), median)
    });
    let figures = figures.collect();
    (report, figures)
}

fn names(figures: &[(String, f64)]) -> Vec<&str> {
    figures.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn throughput_compares_company_with_none() {
    let sizes = ["--requests", "3", "--input-len", "4", "--output-len", "3", "--rounds", "1", "--concurrency", "3,2"];
    let (report, figures) = bench(&[&["throughput"][..], &sizes].concat());
    let wanted = ["1 at a time", "2 at a time", "3 at a time", "2 at a time, against 1", "3 at a time, against 1"];
    assert_eq!(names(&figures), wanted);
    assert!((figures[4].1 - figures[2].1 / figures[0].1).abs() < 1e-9 * figures[4].1, "{figures:?}");
    assert_eq!((&report["bench"], &report["backend"]), (&"throughput".into(), &"cpu".into()));
}

#[test]
fn latency_tells_the_first_token_from_the_others() {
    let (_, figures) = bench(&["latency", "--input-len", "2,40", "--output-len", "3", "--rounds", "2"]);
    let wanted = [
        "first token after 2 tokens",
        "first token after 40 tokens",
        "each further token after 2 tokens",
        "each further token after 40 tokens",
    ];
    assert_eq!(names(&figures), wanted);
}

#[test]
fn sched_measures_every_phase_of_the_miniature_and_of_the_released_model() {
    let few = ["--sequences", "1,3", "--steps", "3", "--rounds", "2"];
    let (_, miniature) = bench(&[&["sched"][..], &few].concat());
    let phases = ["turn", "schedule", "launch", "wait", "update", "sample"];
    assert_eq!(miniature.len(), 2 * phases.len());
    for ((name, _), phase) in miniature.iter().zip(phases.iter().cycle()) {
        assert!(name.contains(phase), "{name}: {phase}");
    }
    let released = repository("tests/fixtures/config.v41-flash.json");
    let (_, released) = bench(&[&["sched", "--config", released.to_str().unwrap()][..], &few].concat());
    let ops = |figures: &[(String, f64)]| -> u64 {
        let turn = figures[0].0.strip_suffix(" ops").expect("ops of a turn");
        turn.rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a number")
    };
    assert!(ops(&released) > 2 * ops(&miniature), "{} and {}", ops(&released), ops(&miniature));
}

#[test]
fn sampler_leaves_out_what_a_vocabulary_is_too_large_for() {
    let (_, figures) = bench(&["sampler", "--rows", "2", "--vocabulary", "100", "--rounds", "1"]);
    assert_eq!(figures.len(), 17, "{figures:?}");
    let (_, figures) = bench(&["sampler", "--rows", "1", "--vocabulary", "131073", "--rounds", "1"]);
    assert!(names(&figures).iter().all(|name| !name.contains("top_p")), "{figures:?}");
}

#[test]
fn a_table_has_a_line_for_the_machine_and_one_for_each_figure() {
    let run = deepinfer(&["bench", "sampler", "--rows", "1", "--vocabulary", "64", "--rounds", "1"]);
    let lines: Vec<&str> = run.succeeded().lines().collect();
    assert_eq!(lines.len(), 3 + 17, "{lines:?}");
    assert!(lines[0].starts_with("sampler: 1 rows of 64 logits") && lines[1].contains("backend cpu"), "{lines:?}");
    assert_eq!(run.stderr.contains("this is a debug build"), cfg!(debug_assertions), "{}", run.stderr);
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    let too_long = ["bench", "latency", "--input-len", "1000000", "--output-len", "2"];
    deepinfer(&too_long).refused(&["1000000 tokens of a prompt and 2 of an output are 1000002", "a context of"]);
    deepinfer(&["bench", "sched", "--config", "/nonexistent.json"]).refused(&["/nonexistent.json"]);
}

/// The lines of `bench ops` on small tensors: the head of the report, and one for each case.
#[track_caller]
fn ops(args: &[&str]) -> Vec<String> {
    let small = ["bench", "ops", "--scale", "64", "--rotate", "0", "--repeats", "1"];
    deepinfer(&[&small, args].concat()).succeeded().lines().map(str::to_owned).collect()
}

#[test]
fn ops_takes_every_case_on_every_backend() {
    let lines = ops(&[]);
    let listed = deepinfer(&["bench", "ops", "--scale", "64", "--list"]);
    let (cases, summary) = (listed.succeeded().lines().count(), lines.last().expect("a summary"));
    assert!(cases > 80, "{cases}");
    assert_eq!(lines.len(), 3 + cases + 1, "{lines:?}");
    assert!(lines[0].contains("backend cpu") && lines[1].contains("GB/s read and written"), "{lines:?}");
    // What a backend refuses is no case: the arguments are valid by the catalogue.
    assert!(summary.starts_with(&format!("{cases} of {cases} cases measured")), "{lines:?}");
}

#[test]
fn every_op_of_the_profile_has_a_case_of_full_size() {
    let listed = deepinfer(&["bench", "ops", "--list"]);
    let names = listed.succeeded();
    let has = |op: &str| names.lines().any(|name| name.starts_with(&format!("{op}/")));
    let lacking: Vec<&str> = deepinfer_parity::ops().filter(|op| !has(op)).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
    for name in ["linear/fp8 n5120 k5120 m1", "topk_select/512 of 64x65536", "sparse_attention/b128 h64 d512 k640"] {
        assert!(names.lines().any(|listed| listed == name), "{name}: {names}");
    }
    let mut unique: Vec<&str> = names.lines().collect();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), names.lines().count(), "names are unique");
}

#[test]
fn ops_writes_figures_and_a_drawing() {
    let folder = tempfile::tempdir().unwrap();
    let [json, svg] = ["ops.json", "ops.svg"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let lines = ops(&["--ops", "linear,rms_norm", "--case", "*m1,rms_norm/*", "--json", &json, "--svg", &svg]);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let cases = report["cases"].as_array().expect("cases");
    assert_eq!(lines.len(), 4 + cases.len(), "{lines:?}");
    assert_eq!((&report["backend"], &report["scale"]), (&"cpu".into(), &64.into()));
    for case in cases {
        let figures = ["least_us", "median_us", "ninetieth_us", "bytes", "copy_share"];
        assert!(figures.iter().all(|key| case[key].as_f64().is_some_and(|value| value > 0.0)), "{case}");
    }
    // Bars are for full sizes.
    assert!(cases.iter().all(|case| case["bar"].is_null() && case["met"].is_null()), "{cases:?}");
    let drawing = std::fs::read_to_string(svg).unwrap();
    assert!(drawing.starts_with("<svg ") && drawing.ends_with("</svg>\n"), "{drawing}");
    for part in ["FLOP per byte", "copy ", "backend cpu", "rms_norm/"] {
        assert!(drawing.contains(part), "{part}: {drawing}");
    }
    let to_stdout = deepinfer(&["bench", "ops", "--scale", "64", "--rotate", "0", "--ops", "rstd", "--json", "-"]);
    let report: Value = serde_json::from_str(to_stdout.succeeded()).expect("nothing but JSON");
    assert!(report["copy"]["gb_per_s"].as_f64().is_some_and(|rate| rate > 0.0));
}

#[test]
fn ops_refuses_what_fits_no_case() {
    deepinfer(&["bench", "ops", "--ops", "lineal"]).refused(&["--ops lineal", "--list"]);
    deepinfer(&["bench", "ops", "--scale", "0"]).refused(&["--scale", "from 1 to"]);
    deepinfer(&["bench", "ops", "--backend", "nowhere", "--ops", "rstd"]).refused(&["nowhere"]);
    deepinfer(&["bench", "ops", "--ops", "rstd", "--json", "/nonexistent/x.json"]).refused(&["/nonexistent/x.json"]);
}
