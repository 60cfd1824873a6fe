//! What a run tells of itself besides results: a trace, figures in the log, dumps of the flight recorder.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::command::{command, deepinfer, deepinfer_reading, finish, json_lines};
use crate::containment::built;

const FLIGHT_VARIABLE: &str = "DEEPINFER_FLIGHT_RECORDER";

fn prompts(count: usize) -> String {
    (0..count)
        .map(|n| json!({"id": format!("line {n}"), "prompt": "Once", "seed": n, "max_tokens": 4}).to_string() + "\n")
        .collect()
}

/// Files in a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_trace_shows_every_request() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.json");
    fs::write(&path, "x".repeat(1 << 20)).unwrap();
    let plain = deepinfer_reading(&["generate", "--prompts", "-"], prompts(3).as_bytes());
    let args = ["generate", "--prompts", "-", "--trace", path.to_str().unwrap()];
    let traced = deepinfer_reading(&args, prompts(3).as_bytes());
    assert_eq!(traced.succeeded_quietly(), plain.succeeded_quietly(), "the results are the same");

    let events: Vec<Value> = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let mut open: BTreeMap<String, i64> = BTreeMap::new();
    for event in &events {
        let change = match event["ph"].as_str().unwrap() {
            "B" | "b" => 1,
            "E" | "e" => -1,
            _ => continue,
        };
        let count = open.entry(format!("{}{}", event["cat"], event["id"])).or_default();
        *count += change;
        assert!(*count >= 0, "{event} ends what has not begun");
    }
    assert!(open.values().all(|count| *count == 0), "{open:?}");
    for n in 0..3 {
        let name = format!("request line {n}");
        assert_eq!(events.iter().filter(|event| event["name"] == name.as_str()).count(), 2, "{name}");
    }
    assert!(events.iter().any(|event| event["name"] == "launch"));
}

#[test]
fn a_trace_replaces_nothing_that_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("in.jsonl"), prompts(1)).unwrap();
    fs::write(path("out.jsonl"), "earlier results").unwrap();
    fs::hard_link(path("in.jsonl"), path("link")).unwrap();
    for (trace, other) in [("in.jsonl", "in.jsonl"), ("link", "in.jsonl"), ("out.jsonl", "out.jsonl")] {
        let (prompts, output) = (path("in.jsonl"), path("out.jsonl"));
        deepinfer(&["generate", "--prompts", &prompts, "--output", &output, "--trace", &path(trace)])
            .refused(&["is the same file as", other]);
    }
    assert_eq!(fs::read_to_string(path("in.jsonl")).unwrap(), prompts(1));
    assert_eq!(fs::read_to_string(path("out.jsonl")).unwrap(), "earlier results");
    deepinfer(&["generate", "x", "--trace", "/nonexistent/trace.json"]).refused(&["/nonexistent/trace.json"]);
}

#[test]
fn figures_come_when_they_are_asked_for() {
    let args = ["generate", "Once upon a time", "--max-tokens", "4"];
    let quiet = deepinfer(&args);
    quiet.succeeded_quietly();
    let asked = deepinfer(&[&args[..], &["--stats-interval", "0"]].concat());
    let by_log = finish(command(&args).env("RUST_LOG", "deepinfer::stats=info"));
    for run in [asked, by_log] {
        assert_eq!(run.succeeded(), quiet.stdout);
        let lines: Vec<&str> = run.stderr.lines().collect();
        assert_eq!(lines.len(), 1, "{}", run.stderr);
        for part in [
            "prompt throughput: ",
            "generation throughput: ",
            "running: 0 reqs",
            "waiting: 0 reqs",
            "KV cache usage: 0.0%",
            "prefix cache hit rate: 0.0%",
        ] {
            assert!(lines[0].contains(part), "{part:?} is missing in {:?}", lines[0]);
        }
    }
    deepinfer(&[&args[..], &["--stats-interval", "-1"]].concat()).refused(&["--stats-interval", "from 0 to 86400"]);
}

#[test]
fn requests_are_spans_of_the_log() {
    let args = ["generate", "--prompts", "-"];
    let mut child = command(&args);
    child.env("RUST_LOG", "deepinfer_engine::telemetry=info");
    child.stdin(Stdio::from(fs::File::open(with_prompts(2).path()).unwrap()));
    let run = finish(&mut child);
    run.succeeded();
    for n in 0..2 {
        let name = format!("name=\"line {n}\"");
        let ends = run.stderr.lines().filter(|line| line.contains(&name) && line.contains("finish_reason=Length"));
        assert_eq!(ends.count(), 1, "{}", run.stderr);
    }
}

fn with_prompts(count: usize) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(prompts(count).as_bytes()).unwrap();
    file
}

#[test]
fn a_signal_dumps_the_last_steps_and_the_run_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = command(&["generate", "--prompts", "-"])
        .env(FLIGHT_VARIABLE, dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut results = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    for round in 1..=2 {
        stdin.write_all(prompts(1).as_bytes()).unwrap();
        let result = json_lines(&results.next().expect("a result").unwrap()).remove(0);
        assert_eq!(result["finish_reason"], "length", "{result}");
        let sent = Command::new("sh").args(["-c", &format!("kill -USR1 {}", child.id())]).status().unwrap();
        assert!(sent.success());
        let line = log.next().expect("the process goes on").unwrap();
        let (_, path) = line.split_once("SIGUSR1: the last steps are in ").unwrap_or_else(|| panic!("{line}"));
        assert!(Path::new(path).starts_with(dir.path()), "{path}");
        let dump = json_lines(&fs::read_to_string(path).unwrap());
        assert_eq!((&dump[0]["reason"], &dump[0]["pid"]), (&json!("SIGUSR1"), &json!(child.id())));
        let tokens: u64 = dump.iter().filter_map(|line| line["tokens"].as_u64()).sum();
        assert_eq!(tokens, 4 * round, "what ran so far is in the dump");
        assert_eq!(files(dir.path()).len() as u64, round);
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
    assert!(log.next().is_none() && results.next().is_none());
}

#[test]
fn a_step_that_fails_leaves_a_dump() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = built("panics_in_run");
    let mut failing = command(&["generate", "x", "--max-tokens", "1", "--accelerator", plugin.to_str().unwrap()]);
    let run = finish(failing.env(FLIGHT_VARIABLE, dir.path()));
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    let found = files(dir.path());
    assert_eq!(found.len(), 1, "{found:?}");
    let told = format!(
        "WARN deepinfer_engine::telemetry::recorder: step 1 failed: the last steps are in {}\n",
        found[0].display()
    );
    assert!(run.stderr.contains(&told), "{}", run.stderr);
    // The error is told once, as that of the command; the hook for panics has its own words.
    let lines = run.stderr.lines().filter(|line| line.contains("cpu/rms_norm: panic in rms_norm: a bug of the kernel"));
    assert_eq!(lines.count(), 1, "{}", run.stderr);
    let dump = json_lines(&fs::read_to_string(&found[0]).unwrap());
    let step = dump.last().unwrap();
    assert_eq!(step["state"], "failed");
    assert!(step["error"].as_str().unwrap().contains("a bug of the kernel"), "{step}");
    assert_eq!(dump[1]["name"], "0", "the request has not ended: {dump:?}");
}

#[test]
fn dumps_go_to_a_directory_that_is_there() {
    let variable = |value: &str| finish(command(&["generate", "x", "--max-tokens", "1"]).env(FLIGHT_VARIABLE, value));
    variable("/nonexistent/flights").refused(&[FLIGHT_VARIABLE, "/nonexistent/flights", "must name a directory"]);
    variable("").succeeded_quietly();
}
