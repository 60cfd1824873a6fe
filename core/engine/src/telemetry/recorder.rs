//! The listener with a clock: it times what an engine tells and keeps it as metrics, trace, flight record and log lines.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use deepinfer_scheduler::{Outcome, Phase, RequestId, Stats, StepPlan};

use crate::output::Completion;
use crate::request::Request;
use crate::telemetry::dump::{self, DumpError};
use crate::telemetry::flight::FlightRecorder;
use crate::telemetry::lifecycle::{Lifecycles, Sink, Stage};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::observer::{Observation, StepObserver, StepPhase};
use crate::telemetry::stats_line::{STATS_TARGET, StatsLine};
use crate::telemetry::trace::Trace;

/// Most dumps that faults of one engine cause: they could come with every step.
const MOST_FAULT_DUMPS: u32 = 8;
/// Time between two lines of figures.
const STATS_INTERVAL: Duration = Duration::from_secs(10);

/// What a [`Recorder`] keeps, and where.
pub struct TelemetryConfig {
    /// Where a trace in the Trace Event Format goes, if anywhere.
    pub trace: Option<Box<dyn Write + Send>>,
    /// Time of work between two lines of figures in the log; `None` for one line at the end alone.
    pub stats_interval: Option<Duration>,
    /// Directory for dumps of the flight recorder.
    pub dumps: PathBuf,
}

impl Default for TelemetryConfig {
    /// No trace, a line every 10 s, dumps in the system's directory for temporary files.
    fn default() -> Self {
        Self { trace: None, stats_interval: Some(STATS_INTERVAL), dumps: std::env::temp_dir() }
    }
}

/// What a [`Recorder`] knows, for any thread and for as long as wanted.
#[derive(Clone)]
pub struct Telemetry(Arc<Shared>);

struct Shared {
    origin: Instant,
    dumps: PathBuf,
    /// Held for the time of a copy or an update, never while the engine works or waits: a dump can be had of an engine that
    /// hangs.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    metrics: Metrics,
    flight: FlightRecorder,
}

impl Telemetry {
    /// The numbers of the engine at this moment.
    pub fn metrics(&self) -> Metrics {
        self.known().metrics.clone()
    }

    /// Writes what the flight recorder remembers to a new file, and returns its path. `reason` is kept in it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn dump(&self, reason: &str) -> Result<PathBuf, DumpError> {
        let flight = self.known().flight.clone();
        let now = self.0.origin.elapsed();
        // A clock before 1970 is no reason to have no dump.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        dump::write_new(&self.0.dumps, |out| flight.write(out, reason, now, since_epoch))
    }

    /// As [`Telemetry::dump`]; the log says where it is, or why there is none.
    pub fn dump_and_tell(&self, reason: &str) {
        self.dump_for(reason, reason);
    }

    /// The same with a log line that begins with `what` instead of the reason.
    fn dump_for(&self, what: &str, reason: &str) {
        match self.dump(reason) {
            Ok(path) => tracing::warn!("{what}: the last steps are in {}", path.display()),
            Err(error) => tracing::warn!("{what}: {error}"),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Whoever panicked while holding it left numbers that may be one short.
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Listens to an engine; add it with [`Engine::add_observer`](crate::Engine::add_observer). When the engine goes away, the
/// trace is ended and the figures of all its work are logged; if it goes away in the middle of a step, the flight recorder is
/// dumped.
pub struct Recorder {
    telemetry: Telemetry,
    lifecycles: Lifecycles<Times>,
    trace: Option<Trace>,
    stats_line: StatsLine,
    phase: Option<(StepPhase, Duration)>,
    /// Whether what began with a phase has not come to the end of its turn.
    in_turn: bool,
    fault_dumps: u32,
}

/// When things happened to a completion.
struct Times {
    arrived: Duration,
    started: Option<Duration>,
    first_token: Option<Duration>,
    last_token: Duration,
    prompt_tokens: usize,
    limit: usize,
    /// Name of its track in the trace.
    track: Option<Box<str>>,
}

impl Recorder {
    /// A recorder whose clock starts now.
    ///
    /// # Errors
    /// The trace cannot be begun.
    pub fn new(config: TelemetryConfig) -> io::Result<Self> {
        let TelemetryConfig { trace, stats_interval, dumps } = config;
        let shared = Shared { origin: Instant::now(), dumps, known: Mutex::default() };
        Ok(Self {
            telemetry: Telemetry(Arc::new(shared)),
            lifecycles: Lifecycles::default(),
            trace: trace.map(Trace::begin).transpose()?,
            stats_line: StatsLine::new(stats_interval),
            phase: None,
            in_turn: false,
            fault_dumps: 0,
        })
    }

    /// What it knows, for others.
    pub fn telemetry(&self) -> Telemetry {
        self.telemetry.clone()
    }

    fn phase(&mut self, now: Duration, next: Option<StepPhase>, metrics: &mut Metrics) {
        if let Some((phase, since)) = self.phase.take() {
            let at = StepPhase::ALL.iter().position(|&other| other == phase).expect("it is one of all");
            metrics.scheduler_stage_seconds_total[at] += now - since;
        }
        self.phase = next.map(|phase| (phase, now));
    }

    fn completed(&self, plan: &StepPlan, outcomes: &[Outcome<'_>], metrics: &mut Metrics) {
        for (planned, outcome) in plan.requests().iter().zip(outcomes) {
            metrics.generation_tokens += outcome.tokens.len() as u64;
            if planned.phase == Phase::Prefill && self.lifecycles.is_live(planned) {
                metrics.prompt_tokens += planned.rows as u64;
            }
        }
    }

    /// All that happens under the lock.
    fn record(&mut self, now: Duration, what: &Observation<'_>, known: &mut Known) {
        let Known { metrics, flight } = known;
        if let Observation::Completed { plan, outcomes } = *what {
            self.completed(plan, outcomes, metrics);
        }
        self.lifecycles.observe(what, &mut Timed { now, metrics, trace: self.trace.as_mut() });
        match *what {
            Observation::Submitted { id, request, limit, stats } => {
                metrics.take_stats(&stats);
                flight.submitted(now, id, request, limit);
                metrics.request_params_n.record(request.params.n as f64);
            }
            Observation::Refused { .. } => metrics.admission_rejections += 1,
            Observation::Phase { phase, step } => {
                self.phase(now, Some(phase), metrics);
                flight.phase(now, Some((phase, step)));
            }
            Observation::Scheduled { plan, stats } => {
                flight.scheduled(now, plan, &stats);
                metrics.take_stats(&stats);
                metrics.iteration_tokens_total.record(plan.rows() as f64);
            }
            Observation::Completed { plan, outcomes } => flight.completed(plan.step(), outcomes),
            Observation::Failed { plan, error } => {
                metrics.failed_steps_total += 1;
                flight.failed(plan.step(), &error.to_string());
            }
            Observation::Ended { completion, stats, .. } => {
                metrics.take_stats(&stats);
                metrics.count_end(completion.finish_reason);
            }
            Observation::Finished { id, .. } => flight.finished(id),
            Observation::TurnEnded { stats } => {
                self.phase(now, None, metrics);
                flight.phase(now, None);
                metrics.take_stats(&stats);
            }
        }
    }

    /// What the trace shows besides requests.
    fn trace(&mut self, now: Duration, what: &Observation<'_>) {
        let Some(trace) = &mut self.trace else { return };
        match *what {
            Observation::Phase { phase, step } => trace.phase(now, phase, step),
            Observation::Submitted { ref stats, .. } | Observation::Ended { ref stats, .. } => trace.count(now, stats),
            Observation::Scheduled { plan, ref stats } => trace.scheduled(now, plan, stats),
            Observation::Completed { plan, .. } => trace.step_ended(now, plan.step(), None),
            Observation::Failed { plan, error } => trace.step_ended(now, plan.step(), Some(&error.to_string())),
            Observation::TurnEnded { ref stats } => {
                trace.turn_ended(now, stats);
                trace.flush_if_due(now, !has_work(stats));
            }
            _ => {}
        }
    }

    fn fault(&mut self, what: &str, reason: &str) {
        if self.fault_dumps < MOST_FAULT_DUMPS {
            self.fault_dumps += 1;
            self.telemetry.dump_for(what, reason);
        }
    }
}

impl StepObserver for Recorder {
    fn observe(&mut self, what: &Observation<'_>) {
        let telemetry = self.telemetry.clone();
        let now = telemetry.0.origin.elapsed();
        self.record(now, what, &mut telemetry.known());
        self.trace(now, what);
        match *what {
            Observation::Phase { .. } => {
                self.in_turn = true;
                self.stats_line.work_began(now);
            }
            Observation::Failed { plan, error } => {
                // The error is what its requests end with, and told there: the log says it no second time.
                let what = format!("step {} failed", plan.step().0);
                self.fault(&what, &format!("{what}: {error}"));
            }
            Observation::TurnEnded { stats } => {
                self.in_turn = false;
                let line = self.stats_line.turn_ended(now, has_work(&stats), &telemetry.known().metrics);
                if let Some(line) = line {
                    tracing::info!(target: STATS_TARGET, "{line}");
                }
            }
            _ => {}
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.in_turn || std::thread::panicking() {
            let what = "the engine ended in the middle of its work";
            self.fault(what, what);
        }
        let telemetry = self.telemetry.clone();
        let now = telemetry.0.origin.elapsed();
        let line = {
            let metrics = &mut telemetry.known().metrics;
            self.lifecycles.close(&mut Timed { now, metrics, trace: self.trace.as_mut() });
            self.stats_line.end(metrics)
        };
        if let Some(trace) = &mut self.trace {
            trace.end(now);
        }
        if let Some(line) = line {
            tracing::info!(target: STATS_TARGET, "{line}");
        }
    }
}

/// Whether another turn has something to do.
fn has_work(stats: &Stats) -> bool {
    stats.running + stats.waiting + stats.in_flight > 0
}

/// What begins and ends at this moment.
struct Timed<'a> {
    now: Duration,
    metrics: &'a mut Metrics,
    trace: Option<&'a mut Trace>,
}

impl Sink for Timed<'_> {
    type Data = Times;

    fn begin(&mut self, id: RequestId, request: &Request, index: usize, limit: usize) -> Times {
        let track = self.trace.as_mut().map(|trace| trace.request_began(self.now, id, request, index, limit));
        Times {
            arrived: self.now,
            started: None,
            first_token: None,
            last_token: self.now,
            prompt_tokens: request.prompt_token_ids.len(),
            limit,
            track,
        }
    }

    fn enter(&mut self, times: &mut Times, id: RequestId, stage: Stage) {
        if stage == Stage::Prefill && times.started.is_none() {
            times.started = Some(self.now);
            self.metrics.request_queue_time_seconds.record_time(self.now - times.arrived);
        }
        if let Some(trace) = &mut self.trace {
            trace.stage_began(self.now, id, stage);
        }
    }

    fn leave(&mut self, _: &mut Times, id: RequestId, stage: Stage) {
        if let Some(trace) = &mut self.trace {
            trace.stage_ended(self.now, id, stage);
        }
    }

    fn tokens(&mut self, times: &mut Times, _: RequestId, _: usize) {
        if times.first_token.is_some() {
            self.metrics.inter_token_latency_seconds.record_time(self.now - times.last_token);
        } else {
            times.first_token = Some(self.now);
            self.metrics.time_to_first_token_seconds.record_time(self.now - times.arrived);
            let started = times.started.unwrap_or(times.arrived);
            self.metrics.request_prefill_time_seconds.record_time(self.now - started);
        }
        times.last_token = self.now;
    }

    fn end(&mut self, times: Times, id: RequestId, completion: Option<&Completion>) {
        if let (Some(trace), Some(track)) = (&mut self.trace, &times.track) {
            trace.request_ended(self.now, id, track, completion);
        }
        let Some(completion) = completion else { return };
        let tokens = completion.steps.len();
        let metrics = &mut *self.metrics;
        metrics.e2e_request_latency_seconds.record_time(self.now - times.arrived);
        metrics.request_prompt_tokens.record(times.prompt_tokens as f64);
        metrics.request_generation_tokens.record(tokens as f64);
        metrics.request_params_max_tokens.record(times.limit as f64);
        if let Some(first) = times.first_token {
            let decoding = times.last_token - first;
            metrics.request_decode_time_seconds.record_time(decoding);
            if tokens > 1 {
                metrics.request_time_per_output_token_seconds.record(decoding.as_secs_f64() / (tokens - 1) as f64);
            }
        }
    }
}
