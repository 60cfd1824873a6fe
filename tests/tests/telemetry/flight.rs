//! Dumps of the flight recorder.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use deepinfer_engine::telemetry::{Recorder, Telemetry, TelemetryConfig};
use deepinfer_engine::{Engine, EngineConfig, FinishReason};
use serde_json::Value;
use tempfile::TempDir;

use crate::device::{Mishap, unlucky};
use crate::runs::{OUTPUT_TOKENS, engine, engine_on, request, requests, small, with_n};

/// An engine with a recorder whose dumps go to a directory of its own.
fn recorded(mut engine: Engine) -> (Engine, Telemetry, TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let telemetry = record(&mut engine, directory.path());
    (engine, telemetry, directory)
}

fn record(engine: &mut Engine, directory: &Path) -> Telemetry {
    let config = TelemetryConfig { dumps: directory.to_owned(), ..TelemetryConfig::default() };
    let recorder = Recorder::new(config).expect("a recorder");
    let telemetry = recorder.telemetry();
    engine.add_observer(Box::new(recorder));
    telemetry
}

struct Dump {
    header: Value,
    requests: Vec<Value>,
    steps: Vec<Value>,
}

fn read(path: &Path) -> Dump {
    let text = fs::read_to_string(path).expect("the dump");
    let mut lines = text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON"));
    let header: Value = lines.next().expect("a header");
    let (requests, steps): (Vec<Value>, Vec<Value>) = lines.partition(|line| line.get("request").is_some());
    assert_eq!(header["deepinfer_flight"], 1);
    assert_eq!(header["pid"], std::process::id());
    assert_eq!((header["requests"].clone(), header["steps"].clone()), (requests.len().into(), steps.len().into()));
    Dump { header, requests, steps }
}

fn dumps(directory: &TempDir) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(directory).expect("the directory").map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

/// The only dump there.
fn only_dump(directory: &TempDir) -> Dump {
    let paths = dumps(directory);
    assert_eq!(paths.len(), 1, "{paths:?}");
    read(&paths[0])
}

fn sum(steps: &[Value], field: &str) -> u64 {
    steps.iter().map(|step| step[field].as_u64().expect("a number")).sum()
}

#[test]
fn a_dump_has_every_step_with_its_rows() {
    for async_scheduling in [true, false] {
        let (mut engine, telemetry, directory) = recorded(engine(EngineConfig { async_scheduling, ..small() }));
        engine.run_all(requests());
        let dump = read(&telemetry.dump("because I ask").expect("a dump"));
        assert_eq!(dump.header["reason"], "because I ask");
        assert!(dump.header.get("phase").is_none(), "nothing is going on");
        assert_eq!(dump.requests.len(), 0, "all have ended");
        let (steps, stats) = (dump.steps, engine.stats());
        let numbers: Vec<u64> = steps.iter().map(|step| step["step"].as_u64().expect("a number")).collect();
        assert_eq!(numbers, (1..=stats.steps).collect::<Vec<_>>());
        assert!(steps.iter().all(|step| step["state"] == "completed"));
        assert!(steps.is_sorted_by_key(|step| step["at_us"].as_u64()));
        assert_eq!(sum(&steps, "tokens"), OUTPUT_TOKENS as u64);
        let metrics = telemetry.metrics();
        assert_eq!(sum(&steps, "prefill_rows"), metrics.prompt_tokens);
        for step in &steps {
            let rows = step["rows"].as_array().expect("rows");
            let count = |phase: &str| -> u64 {
                let of_phase = rows.iter().filter(|rows| rows["phase"] == phase);
                of_phase.map(|rows| rows["rows"].as_u64().expect("a number")).sum()
            };
            assert_eq!(
                (step["prefill_rows"].as_u64(), step["decode_rows"].as_u64()),
                (Some(count("prefill")), Some(count("decode")))
            );
            let samples = rows.iter().filter(|rows| rows["samples"] == true).count();
            assert_eq!(step["sample_rows"], samples);
            assert_eq!(step["preempted"].as_array().map(Vec::len), Some(0));
        }
        // The first request's rows follow one another, from the first token to the last but one.
        let mut next = 0;
        for rows in steps.iter().flat_map(|step| step["rows"].as_array().expect("rows")).filter(|rows| rows["id"] == 0)
        {
            assert_eq!(rows["start"], next);
            next += rows["rows"].as_u64().expect("a number");
            assert_eq!(rows["samples"] == true, next >= 150);
        }
        assert_eq!(next, 150 + 5 - 1);
        // Each phase has its time, and they are not longer than everything.
        let until = dump.header["at_us"].as_u64().expect("a time");
        let times = ["schedule_us", "launch_us", "sample_us", "wait_us", "update_us"].map(|name| sum(&steps, name));
        assert!(times.iter().sum::<u64>() <= until, "{times:?} of {until}");
        assert!(times[1] > 0, "{times:?}");
        assert_eq!(dumps(&directory).len(), 1);
    }
}

#[test]
fn requests_that_have_not_ended_are_listed() {
    let (mut engine, telemetry, _directory) = recorded(engine(small()));
    engine.submit(with_n(request("c\n", 70, 4), 3)).expect("a valid request");
    let id = engine.submit(request("a", 150, 5)).expect("a valid request");
    engine.step();
    engine.preempt(id);
    engine.step();
    let dump = read(&telemetry.dump("").expect("a dump"));
    let requests: Vec<(&str, u64, u64)> = dump
        .requests
        .iter()
        .map(|r| (r["name"].as_str().unwrap(), r["n"].as_u64().unwrap(), r["prompt_tokens"].as_u64().unwrap()))
        .collect();
    assert_eq!(requests, [("c\n", 3, 70), ("a", 1, 150)]);
    assert_eq!(dump.steps.last().expect("a step")["state"], "planned");
}

#[test]
fn no_more_than_the_last_steps_are_remembered() {
    let (mut engine, telemetry, _directory) = recorded(engine(small()));
    engine.run_all(vec![request("a", 4, 300)]);
    let steps = read(&telemetry.dump("").expect("a dump")).steps;
    let last = engine.stats().steps;
    assert!(last >= 300);
    let numbers: Vec<u64> = steps.iter().map(|step| step["step"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, (last - 255..=last).collect::<Vec<_>>());
    // Records that are filled again hold nothing of their last step.
    for step in &steps {
        assert_eq!(step["rows"].as_array().map(Vec::len), Some(1), "{step}");
    }
}

#[test]
fn a_step_that_fails_is_dumped_before_its_requests_end() {
    for async_scheduling in [true, false] {
        let config = EngineConfig { async_scheduling, ..small() };
        let (mut engine, telemetry, directory) = recorded(engine_on(unlucky(Mishap::Refused(3..4)), config));
        let outputs = engine.run_all(vec![request("a", 20, 9), request("b", 30, 9)]);
        assert!(outputs.iter().all(|output| output.outputs[0].finish_reason == FinishReason::Error));
        let dump = only_dump(&directory);
        let failed: Vec<&Value> = dump.steps.iter().filter(|step| step["state"] == "failed").collect();
        assert_eq!(failed.len(), 1);
        let error = failed[0]["error"].as_str().expect("an error");
        assert!(error.contains("not today"), "{error}");
        let reason = dump.header["reason"].as_str().expect("a reason");
        assert!(
            reason.contains(error) && reason.starts_with(&format!("step {} failed", failed[0]["step"])),
            "{reason}"
        );
        assert_eq!(dump.requests.len(), 2);
        assert_eq!(telemetry.metrics().failed_steps_total, 1);
    }
}

#[test]
fn a_device_that_always_fails_does_not_fill_the_disk() {
    let (mut engine, telemetry, directory) = recorded(engine_on(unlucky(Mishap::Refused(0..100)), small()));
    for _ in 0..12 {
        engine.run_all(vec![request("a", 3, 2)]);
    }
    assert_eq!(telemetry.metrics().failed_steps_total, 12);
    assert_eq!(dumps(&directory).len(), 8);
    // Who asks gets one all the same.
    telemetry.dump("asked for").expect("a dump");
    assert_eq!(dumps(&directory).len(), 9);
}

#[test]
fn a_panic_in_a_step_is_dumped() {
    let (engine, _, directory) = recorded(engine_on(unlucky(Mishap::Panic(2)), small()));
    let run = move || {
        let mut engine = engine;
        engine.run_all(vec![request("a", 20, 9)]);
    };
    catch_unwind(AssertUnwindSafe(run)).expect_err("the device panics");
    let dump = only_dump(&directory);
    assert_eq!(dump.header["reason"], "the engine ended in the middle of its work");
    assert_eq!(dump.header["phase"]["name"], "sample");
    assert_eq!(dump.header["phase"]["step"], 3);
    assert_eq!(dump.requests.len(), 1);
}

#[test]
fn an_engine_that_ends_between_its_turns_leaves_no_dump() {
    let (mut engine, _, directory) = recorded(engine(small()));
    engine.submit(request("a", 20, 9)).expect("a valid request");
    engine.step();
    drop(engine);
    assert_eq!(dumps(&directory).len(), 0);
}

#[test]
fn an_engine_that_hangs_can_be_dumped() {
    let (waiting, waits) = channel();
    let (end_wait, go_on) = channel();
    let (send_telemetry, receive_telemetry) = channel();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_owned();
    let thread = std::thread::spawn(move || {
        let mut engine = engine_on(unlucky(Mishap::Late(4, Some((waiting, go_on)))), small());
        send_telemetry.send(record(&mut engine, &path)).expect("the test waits for it");
        engine.run_all(vec![request("a", 20, 9)])
    });
    let telemetry = receive_telemetry.recv().expect("an engine");
    waits.recv().expect("the engine waits for a step");
    let dump = read(&telemetry.dump("it hangs").expect("a dump"));
    assert_eq!(dump.header["phase"]["name"], "wait");
    assert_eq!(dump.header["phase"]["step"], 5);
    let stuck = dump.steps.iter().find(|step| step["step"] == 5).expect("the step");
    assert_eq!(stuck["state"], "planned");
    end_wait.send(()).expect("the engine waits");
    let outputs = thread.join().expect("the engine's thread");
    assert_eq!(outputs[0].outputs[0].steps.len(), 9);
}
