//! The trace of a run, read as its viewers read it.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use deepinfer_engine::telemetry::{Recorder, TelemetryConfig};
use deepinfer_engine::{Engine, EngineConfig};
use serde_json::Value;

use crate::device::{Mishap, unlucky};
use crate::runs::{COMPLETIONS, engine, engine_on, request, requests, small};

/// A file in memory.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panics here").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("nobody panics here").clone()).expect("text")
    }
}

fn traced(mut engine: Engine) -> (Engine, Shared) {
    let file = Shared::default();
    let dumps = tempfile::tempdir().expect("a directory");
    let config = TelemetryConfig {
        trace: Some(Box::new(file.clone())),
        dumps: dumps.path().to_owned(),
        ..TelemetryConfig::default()
    };
    engine.add_observer(Box::new(Recorder::new(config).expect("a recorder")));
    (engine, file)
}

/// A slice of a track.
#[derive(Debug, Clone)]
struct Slice {
    name: String,
    args: Value,
    end_args: Value,
    begin: f64,
    end: f64,
    depth: usize,
}

/// Slices by track, in the order in which they begin. Checks that events come in order and that slices nest and end.
fn tracks(events: &[Value]) -> BTreeMap<String, Vec<Slice>> {
    let mut tracks: BTreeMap<String, (f64, Vec<usize>, Vec<Slice>)> = BTreeMap::new();
    let mut last = 0.0;
    for event in events {
        let kind = event["ph"].as_str().expect("a kind");
        assert_eq!(event["pid"], u64::from(std::process::id()), "{event}");
        let track = match kind {
            "B" | "E" => "engine".to_owned(),
            "b" | "e" => format!("{} {}", event["cat"].as_str().expect("a category"), event["id"]),
            "M" => continue,
            "C" => format!("counter {}", event["name"]),
            _ => panic!("{event}"),
        };
        let at = event["ts"].as_f64().expect("a time");
        assert!(at >= last, "{event} goes back from {last}");
        last = at;
        let (_, open, slices) = tracks.entry(track).or_default();
        match kind {
            "B" | "b" => {
                let name = event["name"].as_str().expect("a name").to_owned();
                let args = event["args"].clone();
                let depth = open.len();
                open.push(slices.len());
                slices.push(Slice { name, args, end_args: Value::Null, begin: at, end: f64::NAN, depth });
            }
            "E" | "e" => {
                let slice = &mut slices[open.pop().expect("what ends has begun")];
                if kind == "e" {
                    assert_eq!(event["name"], slice.name.as_str(), "slices nest");
                }
                (slice.end, slice.end_args) = (at, event["args"].clone());
            }
            _ => assert!(event["args"]["value"].is_number(), "{event}"),
        }
    }
    tracks
        .into_iter()
        .map(|(track, (_, open, slices))| {
            assert!(open.is_empty(), "{track} does not end: {slices:?}");
            (track, slices)
        })
        .collect()
}

fn events(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn names(slices: &[Slice], depth: usize) -> Vec<&str> {
    slices.iter().filter(|slice| slice.depth == depth).map(|slice| slice.name.as_str()).collect()
}

#[test]
fn every_request_and_every_step_has_its_track() {
    for async_scheduling in [true, false] {
        let (mut engine, file) = traced(engine(EngineConfig { async_scheduling, ..small() }));
        engine.run_all(requests());
        let steps = engine.stats().steps;
        drop(engine);
        let events = events(&file.text());
        let tracks = tracks(&events);

        let of = |kind: &str| -> Vec<&Vec<Slice>> {
            tracks.iter().filter(|(track, _)| track.starts_with(kind)).map(|(_, slices)| slices).collect()
        };
        let requests = of("request");
        assert_eq!(requests.len(), COMPLETIONS);
        let mut found: Vec<(&str, usize)> = Vec::new();
        for slices in &requests {
            let whole = &slices[0];
            assert_eq!(names(slices, 1), ["queued", "prefill", "decode"], "{}", whole.name);
            let chunks: Vec<&Slice> = slices.iter().filter(|slice| slice.depth == 2).collect();
            assert!(chunks.iter().all(|chunk| chunk.name == "prefill chunk"));
            let rows: u64 = chunks.iter().map(|chunk| chunk.args["rows"].as_u64().expect("rows")).sum();
            let last = chunks.last().expect("a chunk");
            let end = last.args["start"].as_u64().expect("a start") + last.args["rows"].as_u64().expect("rows");
            assert_eq!(whole.args["prompt_tokens"], end, "{}", whole.name);
            assert!(rows == end || rows == 1, "a prompt runs once, except for its last token");
            assert_eq!(whole.end_args["finish_reason"], "length");
            assert_eq!(whole.end_args["output_tokens"], whole.args["max_tokens"]);
            found.push((&whole.name, chunks.len()));
        }
        let name = |name: &str| found.iter().filter(|(other, _)| *other == name).count();
        for expected in ["request a", "request b", "request d \"quoted\"\n", "request e", "request f"] {
            assert_eq!(name(expected), 1, "{expected:?}");
        }
        for index in 0..3 {
            assert_eq!(name(&format!("request c #{index}")), 1);
        }
        let longest = found.iter().find(|(name, _)| *name == "request e").expect("it is there");
        assert!(longest.1 >= 4, "200 tokens in chunks of at most 64: {}", longest.1);

        let of_steps = of("step");
        assert_eq!(of_steps.len() as u64, steps);
        let at_once = of_steps.iter().flat_map(|step| of_steps.iter().map(move |other| (&step[0], &other[0])));
        let overlaps = at_once.filter(|(a, b)| a.begin < b.begin && b.begin < a.end).count();
        assert_eq!(overlaps > 0, async_scheduling, "two steps are in flight with asynchronous scheduling, else one");

        let engine = &tracks["engine"];
        assert!(names(engine, 0).iter().all(|name| *name == "turn"));
        let phases = names(engine, 1);
        for phase in ["launch", "wait", "update", "sample"] {
            let times = phases.iter().filter(|name| **name == phase).count() as u64;
            assert_eq!(times, steps, "{phase}");
        }
        for counter in ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"] {
            let values: Vec<f64> = events
                .iter()
                .filter(|event| event["ph"] == "C" && event["name"] == counter)
                .map(|event| event["args"]["value"].as_f64().expect("a number"))
                .collect();
            assert!(values.iter().any(|value| *value > 0.0), "{counter}: {values:?}");
            assert_eq!(values.last(), Some(&0.0), "{counter}: {values:?}");
        }
    }
}

#[test]
fn a_preempted_request_goes_through_its_stages_again() {
    let (mut engine, file) = traced(engine(small()));
    let id = engine.submit(request("a", 20, 12)).expect("a valid request");
    for _ in 0..5 {
        engine.step();
    }
    assert!(engine.preempt(id));
    while engine.has_work() {
        engine.step();
    }
    drop(engine);
    let tracks = tracks(&events(&file.text()));
    let slices = tracks.iter().find(|(track, _)| track.starts_with("request")).expect("a request").1;
    assert_eq!(names(slices, 1), ["queued", "prefill", "decode", "queued", "prefill", "decode"]);
    let again = slices.iter().filter(|slice| slice.name == "prefill chunk").nth(1).expect("two chunks");
    assert!(again.args["rows"].as_u64() > Some(20), "the output so far runs again with the prompt: {again:?}");
}

#[test]
fn a_trace_that_was_cut_is_good_up_to_there() {
    let (mut engine, file) = traced(engine(small()));
    engine.run_all(vec![request("a", 20, 3)]);
    drop(engine);
    let whole = events(&file.text()).len();
    let text = file.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines[0], *lines.last().expect("lines")), ("[", "]"));
    for count in 1..=whole {
        let cut = lines[..=count].join("\n");
        let cut = cut.trim_end_matches(',');
        assert_eq!(events(&format!("{cut}]")).len(), count);
    }
}

#[test]
fn what_is_open_when_the_engine_goes_away_ends_there() {
    let (mut engine, file) = traced(engine(small()));
    for request in requests() {
        engine.submit(request).expect("a valid request");
    }
    for _ in 0..4 {
        engine.step();
    }
    drop(engine);
    let tracks = tracks(&events(&file.text()));
    assert_eq!(tracks.keys().filter(|track| track.starts_with("request")).count(), COMPLETIONS);
}

#[test]
fn faults_are_in_the_trace() {
    let (mut engine, file) = traced(engine_on(unlucky(Mishap::Refused(2..3)), small()));
    engine.run_all(vec![request("a", 20, 6)]);
    drop(engine);
    let tracks = tracks(&events(&file.text()));
    let errors = |kind: &str| -> Vec<String> {
        let slices = tracks.iter().filter(|(track, _)| track.starts_with(kind)).flat_map(|(_, slices)| slices);
        slices.filter_map(|slice| Some(slice.end_args["error"].as_str()?.to_owned())).collect()
    };
    for kind in ["step", "request"] {
        let errors = errors(kind);
        assert!(errors.len() == 1 && errors[0].contains("not today"), "{kind}: {errors:?}");
    }
}

#[test]
fn a_trace_that_cannot_be_begun_is_refused() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let config = TelemetryConfig { trace: Some(Box::new(Full)), ..TelemetryConfig::default() };
    let error = Recorder::new(config).err().expect("nothing can be written");
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}
