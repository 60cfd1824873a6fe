//! Spans of a run, as a subscriber sees them.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use deepinfer_engine::telemetry::Spans;
use deepinfer_engine::{Engine, EngineConfig};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::device::{Mishap, unlucky};
use crate::runs::{COMPLETIONS, engine, engine_on, request, requests, small};

/// A span.
#[derive(Debug)]
struct Seen {
    /// Names from the outermost span on.
    path: String,
    level: Level,
    fields: BTreeMap<String, String>,
    entered: usize,
    closed: bool,
}

#[derive(Default)]
struct Watched {
    spans: Vec<Seen>,
    /// Places of open spans; numbers of spans are used again.
    open: HashMap<u64, usize>,
}

/// Remembers spans.
#[derive(Clone, Default)]
struct Watcher(Arc<Mutex<Watched>>);

impl Watcher {
    fn change(&self, id: &Id, change: impl FnOnce(&mut Seen)) {
        let mut watched = self.0.lock().expect("nobody panics here");
        let at = watched.open[&id.into_u64()];
        change(&mut watched.spans[at]);
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Watcher {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let names: Vec<&str> = context.span_scope(id).expect("a span").from_root().map(|span| span.name()).collect();
        let mut fields = BTreeMap::new();
        attributes.record(&mut Fields(&mut fields));
        let level = *attributes.metadata().level();
        let mut watched = self.0.lock().expect("nobody panics here");
        let at = watched.spans.len();
        watched.open.insert(id.into_u64(), at);
        watched.spans.push(Seen { path: names.join("/"), level, fields, entered: 0, closed: false });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        self.change(id, |seen| values.record(&mut Fields(&mut seen.fields)));
    }

    fn on_enter(&self, id: &Id, _: Context<'_, S>) {
        self.change(id, |seen| seen.entered += 1);
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        self.change(&id, |seen| seen.closed = true);
    }
}

struct Fields<'a>(&'a mut BTreeMap<String, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

/// Spans up to `level` of what `run` does with an engine, by their paths. All must have been closed.
fn spans(level: LevelFilter, mut engine: Engine, run: impl FnOnce(&mut Engine)) -> BTreeMap<String, Vec<Seen>> {
    let watcher = Watcher::default();
    let subscriber = tracing_subscriber::registry().with(watcher.clone().with_filter(level));
    tracing::subscriber::with_default(subscriber, || {
        assert_eq!(Spans::are_wanted(), level >= LevelFilter::INFO);
        engine.add_observer(Box::new(Spans::new()));
        run(&mut engine);
        drop(engine);
    });
    let mut by_path: BTreeMap<String, Vec<Seen>> = BTreeMap::new();
    for seen in std::mem::take(&mut watcher.0.lock().expect("nobody panics here").spans) {
        assert!(seen.closed, "{seen:?}");
        by_path.entry(seen.path.clone()).or_default().push(seen);
    }
    by_path
}

fn number(seen: &Seen, field: &str) -> u64 {
    seen.fields[field].parse().unwrap_or_else(|_| panic!("{field} of {seen:?}"))
}

#[test]
fn a_run_gives_spans_of_requests_and_steps() {
    for async_scheduling in [true, false] {
        let mut steps = 0;
        let engine = engine(EngineConfig { async_scheduling, ..small() });
        let spans = spans(LevelFilter::TRACE, engine, |engine| {
            engine.run_all(requests());
            steps = engine.stats().steps;
        });
        let requests = &spans["request"];
        assert_eq!(requests.len(), COMPLETIONS);
        for request in requests {
            assert_eq!(request.level, Level::INFO);
            assert_eq!(request.fields["finish_reason"], "Length");
            assert_eq!(request.fields["output_tokens"], request.fields["max_tokens"]);
        }
        assert!(requests.iter().any(|r| r.fields["name"] == r#""d \"quoted\"\n""#), "names cannot break lines");
        for stage in ["request/queue", "request/prefill", "request/decode"] {
            assert_eq!(spans[stage].len(), COMPLETIONS, "{stage}");
            assert!(spans[stage].iter().all(|span| span.level == Level::DEBUG));
        }
        let chunks = &spans["request/prefill/prefill_chunk"];
        let rows: u64 = chunks.iter().map(|chunk| number(chunk, "rows")).sum();
        let of_steps: u64 =
            spans["step"].iter().filter_map(|s| s.fields.get("prefill_rows")?.parse::<u64>().ok()).sum();
        assert_eq!(rows, of_steps);

        // The last one may be of a step that there was nothing for.
        let planned = spans["step"].iter().filter(|step| step.fields.contains_key("requests"));
        assert_eq!(planned.count() as u64, steps);
        for phase in ["launch", "wait", "update", "sample"] {
            let phases = &spans[&format!("step/{phase}")];
            assert_eq!(phases.len() as u64, steps, "{phase}");
            assert!(phases.iter().all(|span| span.entered == 1 && span.level == Level::TRACE), "{phase}");
        }
    }
}

#[test]
fn preemptions_and_faults_show() {
    let engine = engine_on(unlucky(Mishap::Refused(8..9)), small());
    let spans = spans(LevelFilter::DEBUG, engine, |engine| {
        let id = engine.submit(request("a", 20, 40)).expect("a valid request");
        for _ in 0..4 {
            engine.step();
        }
        assert!(engine.preempt(id));
        while engine.has_work() {
            engine.step();
        }
    });
    for stage in ["request/queue", "request/prefill", "request/decode"] {
        assert_eq!(spans[stage].len(), 2, "{stage}");
    }
    let faults = |path: &str| {
        spans[path].iter().filter(|s| s.fields.get("error").is_some_and(|e| e.contains("not today"))).count()
    };
    assert_eq!((faults("step"), faults("request")), (1, 1));
    assert!(!spans.keys().any(|path| path.starts_with("step/")), "phases are of a lower level");
}

#[test]
fn an_engine_that_goes_away_closes_its_spans() {
    let spans = spans(LevelFilter::TRACE, engine(small()), |engine| {
        for request in requests() {
            engine.submit(request).expect("a valid request");
        }
        engine.step();
        engine.step();
        assert!(tracing::Span::current().is_none(), "the caller is in no span of the engine");
    });
    assert_eq!(spans["request"].len(), COMPLETIONS);
    assert!(spans["request"].iter().all(|request| !request.fields.contains_key("finish_reason")));
}
