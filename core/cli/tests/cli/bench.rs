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
