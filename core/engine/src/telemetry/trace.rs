//! A trace in the Trace Event Format of Chrome, which Perfetto and `chrome://tracing` open.
//!
//! One track shows the phases of the engine's turns, one each step from its planning to its results, one each completion of
//! a request; counters show how many run and wait and how full the cache is. The file is an array, written piece by piece:
//! its readers take one without its end, so that a run that was killed leaves a trace of all but its last moments.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use deepinfer_scheduler::{Phase, RequestId, Stats, StepId, StepPlan};

use crate::output::Completion;
use crate::request::Request;
use crate::telemetry::lifecycle::{Chunk, Stage};
use crate::telemetry::metrics::kv_cache_usage;
use crate::telemetry::observer::StepPhase;

/// Bytes that are kept before they are written, in whole events.
const BUFFER_BYTES: usize = 64 << 10;
/// Longest time for which events are kept.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// The track of the engine's phases.
const ENGINE_TRACK: u32 = 1;

/// Writes a trace. Times are counted from when it was begun and must not go back.
pub(crate) struct Trace {
    out: Box<dyn Write + Send>,
    text: String,
    process: u32,
    last_flush: Duration,
    /// Whether a turn, and in it a phase, is open.
    in_turn: bool,
    counters: Option<(usize, usize, f64)>,
    /// Steps in flight.
    steps: Vec<StepId>,
    failed: bool,
}

impl Trace {
    /// Begins a trace of this process.
    ///
    /// # Errors
    /// Nothing can be written.
    pub(crate) fn begin(out: Box<dyn Write + Send>) -> io::Result<Self> {
        let mut trace = Self {
            out,
            text: String::with_capacity(2 * BUFFER_BYTES),
            process: std::process::id(),
            last_flush: Duration::ZERO,
            in_turn: false,
            counters: None,
            steps: Vec::new(),
            failed: false,
        };
        let process = trace.process;
        let name = |what: &str, name: &str| {
            format!(r#"{{"ph":"M","pid":{process},"tid":{ENGINE_TRACK},"name":"{what}","args":{{"name":"{name}"}}}}"#)
        };
        trace.text.push_str("[\n");
        trace.text.push_str(&name("process_name", "deepinfer"));
        trace.text.push_str(",\n");
        trace.text.push_str(&name("thread_name", "engine"));
        trace.out.write_all(trace.text.as_bytes())?;
        trace.out.flush()?;
        trace.text.clear();
        Ok(trace)
    }

    /// A phase begins, and with the first one a turn.
    pub(crate) fn phase(&mut self, now: Duration, phase: StepPhase, step: StepId) {
        if self.in_turn {
            self.end_slice(now);
        } else {
            self.in_turn = true;
            self.begin_slice(now, "turn", "");
        }
        self.begin_slice(now, phase.name(), &format!(r#""step":{}"#, step.0));
    }

    /// The turn ends, and its last phase.
    pub(crate) fn turn_ended(&mut self, now: Duration, stats: &Stats) {
        if std::mem::take(&mut self.in_turn) {
            self.end_slice(now);
            self.end_slice(now);
        }
        self.count(now, stats);
    }

    /// A step has rows.
    pub(crate) fn scheduled(&mut self, now: Duration, plan: &StepPlan, stats: &Stats) {
        let rows = |phase| plan.requests().iter().filter(|r| r.phase == phase).map(|r| r.rows).sum::<usize>();
        let args = format!(
            r#""step":{},"requests":{},"prefill_rows":{},"decode_rows":{},"sampled":{},"preempted":{}"#,
            plan.step().0,
            plan.requests().len(),
            rows(Phase::Prefill),
            rows(Phase::Decode),
            plan.sample_rows(),
            plan.preempted().len(),
        );
        self.steps.push(plan.step());
        self.nestable(now, 'b', "step", plan.step().0, "step", &args);
        self.count(now, stats);
    }

    /// A step is over.
    pub(crate) fn step_ended(&mut self, now: Duration, step: StepId, error: Option<&str>) {
        let args = error.map(|error| format!(r#""error":{}"#, quoted(error))).unwrap_or_default();
        self.steps.retain(|&other| other != step);
        self.nestable(now, 'e', "step", step.0, "step", &args);
    }

    /// Completion `index` of a request begins; returns the name of its track.
    pub(crate) fn request_began(
        &mut self,
        now: Duration,
        id: RequestId,
        request: &Request,
        index: usize,
        limit: usize,
    ) -> Box<str> {
        let name = match request.params.n {
            1 => format!("request {}", request.id),
            _ => format!("request {} #{index}", request.id),
        };
        let args = format!(r#""prompt_tokens":{},"max_tokens":{limit}"#, request.prompt_token_ids.len());
        self.nestable(now, 'b', "request", id.0, &name, &args);
        name.into()
    }

    /// A stage of a completion begins.
    pub(crate) fn stage_began(&mut self, now: Duration, id: RequestId, stage: Stage) {
        let args = match stage {
            Stage::Chunk(Chunk { step, start, rows }) => {
                format!(r#""step":{},"start":{start},"rows":{rows}"#, step.0)
            }
            _ => String::new(),
        };
        self.nestable(now, 'b', "request", id.0, stage.name(), &args);
    }

    /// It ends.
    pub(crate) fn stage_ended(&mut self, now: Duration, id: RequestId, stage: Stage) {
        self.nestable(now, 'e', "request", id.0, stage.name(), "");
    }

    /// A completion ends.
    pub(crate) fn request_ended(&mut self, now: Duration, id: RequestId, name: &str, completion: Option<&Completion>) {
        let args = completion.map(|completion| {
            let reason = format!("{:?}", completion.finish_reason).to_lowercase();
            let error = completion.error.as_ref().map(|e| format!(r#","error":{}"#, quoted(&e.to_string())));
            let tokens = completion.steps.len();
            format!(r#""finish_reason":"{reason}","output_tokens":{tokens}{}"#, error.unwrap_or_default())
        });
        self.nestable(now, 'e', "request", id.0, name, &args.unwrap_or_default());
    }

    /// Writes what is due, in whole events; all of it before a pause, whose end nobody knows. What cannot be written ends the
    /// trace, with a warning.
    pub(crate) fn flush_if_due(&mut self, now: Duration, before_pause: bool) {
        if before_pause || self.text.len() >= BUFFER_BYTES || now >= self.last_flush + FLUSH_INTERVAL {
            self.last_flush = now;
            self.flush();
        }
    }

    /// Ends what is open, and the array.
    pub(crate) fn end(&mut self, now: Duration) {
        if std::mem::take(&mut self.in_turn) {
            self.end_slice(now);
            self.end_slice(now);
        }
        for step in std::mem::take(&mut self.steps) {
            self.nestable(now, 'e', "step", step.0, "step", "");
        }
        self.text.push_str("\n]\n");
        self.flush();
        // Nothing comes after the end.
        self.failed = true;
    }

    fn flush(&mut self) {
        if !self.failed && !self.text.is_empty() {
            let written = self.out.write_all(self.text.as_bytes()).and_then(|()| self.out.flush());
            if let Err(error) = written {
                self.failed = true;
                tracing::warn!("the trace ends here: it cannot be written: {error}");
            }
        }
        self.text.clear();
    }

    fn begin_slice(&mut self, now: Duration, name: &str, args: &str) {
        let (process, ts) = (self.process, Microseconds(now));
        self.event(format_args!(
            r#"{{"ph":"B","pid":{process},"tid":{ENGINE_TRACK},"ts":{ts},"name":"{name}","args":{{{args}}}}}"#
        ));
    }

    fn end_slice(&mut self, now: Duration) {
        let (process, ts) = (self.process, Microseconds(now));
        self.event(format_args!(r#"{{"ph":"E","pid":{process},"tid":{ENGINE_TRACK},"ts":{ts}}}"#));
    }

    /// An event of a track of its own, the one of `category` and `id`.
    fn nestable(&mut self, now: Duration, kind: char, category: &str, id: u64, name: &str, args: &str) {
        let (process, ts, name) = (self.process, Microseconds(now), quoted(name));
        self.event(format_args!(
            r#"{{"ph":"{kind}","cat":"{category}","id":"{id}","pid":{process},"tid":{ENGINE_TRACK},"ts":{ts},"name":{name},"args":{{{args}}}}}"#
        ));
    }

    /// Shows how many run and wait and how full the cache is, if that has changed.
    pub(crate) fn count(&mut self, now: Duration, stats: &Stats) {
        let counters = (stats.running, stats.waiting, kv_cache_usage(stats));
        if self.counters == Some(counters) {
            return;
        }
        self.counters = Some(counters);
        let (running, waiting, usage) = counters;
        let (process, ts) = (self.process, Microseconds(now));
        for (name, value) in [
            ("num_requests_running", running as f64),
            ("num_requests_waiting", waiting as f64),
            ("kv_cache_usage_perc", usage),
        ] {
            self.event(format_args!(
                r#"{{"ph":"C","pid":{process},"tid":{ENGINE_TRACK},"ts":{ts},"name":"{name}","args":{{"value":{value}}}}}"#
            ));
        }
    }

    fn event(&mut self, event: std::fmt::Arguments<'_>) {
        self.text.push_str(",\n");
        self.text.write_fmt(event).expect("a string takes everything");
    }
}

/// Text as a JSON string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Time as the format has it: microseconds, with three decimals.
struct Microseconds(Duration);

impl std::fmt::Display for Microseconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0.as_micros(), self.0.subsec_nanos() % 1000)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Remembers what each call wrote, and fails from the call `full` on.
    #[derive(Clone)]
    struct Calls {
        written: Arc<Mutex<Vec<String>>>,
        full: usize,
    }

    impl Write for Calls {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut written = self.written.lock().expect("nobody panics here");
            let is_full = written.len() >= self.full;
            written.push(String::from_utf8(bytes.to_vec()).expect("text"));
            if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(bytes.len()) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn trace(full: usize) -> (Trace, Arc<Mutex<Vec<String>>>) {
        let calls = Calls { written: Arc::default(), full };
        let written = calls.written.clone();
        (Trace::begin(Box::new(calls)).expect("the first call succeeds"), written)
    }

    fn turn(trace: &mut Trace, at: Duration) {
        trace.phase(at, StepPhase::Schedule, StepId(1));
        trace.turn_ended(at, &Stats::default());
        trace.flush_if_due(at, false);
    }

    #[test]
    fn whole_events_are_written_once_a_second_and_when_there_are_many() {
        let (mut trace, written) = trace(usize::MAX);
        let calls = || written.lock().expect("nobody panics here").len();
        assert_eq!(calls(), 1, "the beginning");
        for at in [0, 400, 999] {
            turn(&mut trace, Duration::from_millis(at));
        }
        assert_eq!(calls(), 1, "nothing is due");
        turn(&mut trace, Duration::from_millis(1000));
        assert_eq!(calls(), 2);
        for _ in 0..2000 {
            turn(&mut trace, Duration::from_millis(1500));
        }
        let before = calls();
        assert!(before > 5, "{before} calls");
        trace.phase(Duration::from_millis(1501), StepPhase::Schedule, StepId(2));
        trace.turn_ended(Duration::from_millis(1501), &Stats::default());
        trace.flush_if_due(Duration::from_millis(1501), true);
        assert_eq!(calls(), before + 1, "nothing is kept during a pause");
        let mut so_far = String::new();
        for text in written.lock().expect("nobody panics here").iter() {
            so_far += text;
            // Readers take an array without its end; this test closes it.
            serde_json::from_str::<Vec<serde_json::Value>>(&format!("{so_far}]")).expect("events are whole");
        }
    }

    #[test]
    fn a_file_that_is_full_ends_the_trace_and_not_the_run() {
        let (mut trace, written) = trace(1);
        for at in 1..10 {
            turn(&mut trace, Duration::from_secs(at));
        }
        trace.end(Duration::from_secs(10));
        assert_eq!(written.lock().expect("nobody panics here").len(), 2, "the beginning, and what failed");
    }

    #[test]
    fn times_are_microseconds_with_nanoseconds_behind_the_point() {
        for (nanos, text) in [(0, "0.000"), (5, "0.005"), (1_234_567, "1234.567"), (2_000_000_010, "2000000.010")] {
            assert_eq!(Microseconds(Duration::from_nanos(nanos)).to_string(), text);
        }
    }
}
