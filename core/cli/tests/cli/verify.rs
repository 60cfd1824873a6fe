//! `deepinfer verify`: what it prints and writes, and processes of their own.

use serde_json::Value;

use crate::command::deepinfer;

#[test]
fn a_short_campaign_covers_and_counts() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("verify.json");
    let file = file.to_str().unwrap();
    let axes = "budget,async,prefix,preemption,pages,sampling,completions";
    let run = deepinfer(&["verify", "--rows", "600", "--seed", "6", "--axes", axes, "--report", file]);
    let text = run.succeeded_quietly();
    assert!(text.contains("\ndiffering: 0\n") && text.contains("\nprefix "), "{text}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!((&report["differing"], &report["finding"], &report["repeat"]), (&0.into(), &Value::Null, &Value::Null));
    let rows = report["rows"].as_u64().unwrap();
    assert!(rows >= 600, "{report}");
    // Each axis covers every row.
    for axis in ["companions", "budget", "memory", "prefix", "sampling"] {
        let covered = report["coverage"].as_array().unwrap().iter().filter(|coverage| coverage["axis"] == axis);
        assert_eq!(covered.map(|coverage| coverage["rows"].as_u64().unwrap()).sum::<u64>(), rows, "{axis}: {report}");
    }
}

#[test]
fn a_cell_runs_in_a_process_of_its_own() {
    let cell = "requests=1,3@2 budget=16 async=on process=child";
    let run = deepinfer(&["verify", "--seed", "11", "--cell", cell]);
    let text = run.succeeded_quietly();
    assert!(text.contains("child process") && text.contains("in 1 cells:"), "{text}");
    assert!(text.contains("\ndiffering: 0\n"), "{text}");
}

#[test]
fn what_is_no_axis_or_cell_is_refused() {
    let wrong = [
        (vec!["--axes", "budget,speculation"], "there is no axis \"speculation\"; the axes are companions"),
        (vec!["--cell", "requests=1 depth=2"], "\"depth=2\" is no part of a cell"),
        (vec!["--cell", "requests=1", "--axes", "async"], "cannot be used with"),
        (vec!["--rows", "0"], "it must be a whole number of at least 1"),
    ];
    for (args, part) in wrong {
        deepinfer(&[&["verify"], args.as_slice()].concat()).refused(&[part]);
    }
}
