//! The flight recorder: what the last steps were, for when something goes wrong.
//!
//! Records lie in a ring and are filled again and again, so that a step allocates nothing once each has held as many requests
//! as there are. `TELEMETRY.md` describes the fields of a dump, which are those of the structs here.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use deepinfer_scheduler::{Outcome, Phase, RequestId, Stats, StepId, StepPlan};
use serde::Serialize;

use crate::request::Request;
use crate::telemetry::observer::StepPhase;

/// Steps that are remembered.
pub(crate) const STEPS: usize = 256;
/// Version of the format of a dump.
const FORMAT: u32 = 1;

/// Remembers the last steps.
#[derive(Clone, Default)]
pub(crate) struct FlightRecorder {
    /// Step `s` is at `s % STEPS`.
    steps: Vec<StepRecord>,
    requests: BTreeMap<RequestId, RequestRecord>,
    phase: Option<(StepPhase, StepId, Duration)>,
    /// The last step that was planned.
    planned: StepId,
}

/// A step, as a dump shows it.
#[derive(Clone, Default, Serialize)]
struct StepRecord {
    step: u64,
    state: State,
    /// When it was planned, in microseconds since the recorder was made, as all times here.
    at_us: u64,
    #[serde(flatten)]
    times: PhaseTimes,
    prefill_rows: usize,
    decode_rows: usize,
    logit_rows: usize,
    sample_rows: usize,
    page_copies: usize,
    /// Output tokens that it brought.
    tokens: usize,
    running: usize,
    waiting: usize,
    free_pages: usize,
    retiring_pages: usize,
    preempted: Vec<u64>,
    rows: Vec<RowsRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Clone, Copy, Default, Serialize)]
struct PhaseTimes {
    schedule_us: u64,
    launch_us: u64,
    sample_us: u64,
    wait_us: u64,
    update_us: u64,
}

impl PhaseTimes {
    fn of(&mut self, phase: StepPhase) -> &mut u64 {
        match phase {
            StepPhase::Schedule => &mut self.schedule_us,
            StepPhase::Launch => &mut self.launch_us,
            StepPhase::Sample => &mut self.sample_us,
            StepPhase::Wait => &mut self.wait_us,
            StepPhase::Update => &mut self.update_us,
        }
    }
}

#[derive(Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    #[default]
    Planned,
    Completed,
    Failed,
}

/// Rows of one completion in a step.
#[derive(Clone, Serialize)]
struct RowsRecord {
    id: u64,
    generation: u32,
    phase: &'static str,
    start: usize,
    rows: usize,
    slot: u32,
    samples: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reset_slot: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    restore: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    save: Option<u32>,
}

/// A request that has not ended.
#[derive(Clone, Serialize)]
struct RequestRecord {
    request: u64,
    name: String,
    since_us: u64,
    n: usize,
    prompt_tokens: usize,
    max_tokens: usize,
}

#[derive(Serialize)]
struct Header<'a> {
    deepinfer_flight: u32,
    reason: &'a str,
    pid: u32,
    version: &'static str,
    /// Since the recorder was made.
    at_us: u64,
    /// Since the epoch of Unix.
    unix_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<OpenPhase>,
    steps: usize,
    requests: usize,
}

#[derive(Serialize)]
struct OpenPhase {
    name: &'static str,
    step: u64,
    for_us: u64,
}

impl FlightRecorder {
    pub(crate) fn submitted(&mut self, now: Duration, id: RequestId, request: &Request, limit: usize) {
        let record = RequestRecord {
            request: id.0,
            name: request.id.clone(),
            since_us: micros(now),
            n: request.params.n,
            prompt_tokens: request.prompt_token_ids.len(),
            max_tokens: limit,
        };
        self.requests.insert(id, record);
    }

    pub(crate) fn finished(&mut self, id: RequestId) {
        self.requests.remove(&id);
    }

    /// A phase begins, or none; the one before ends.
    pub(crate) fn phase(&mut self, now: Duration, next: Option<(StepPhase, StepId)>) {
        if let Some((phase, step, since)) = self.phase.take()
            && let Some(record) = self.find(step)
        {
            *record.times.of(phase) += micros(now - since);
        }
        self.phase = next.map(|(phase, step)| (phase, step, now));
    }

    pub(crate) fn scheduled(&mut self, now: Duration, plan: &StepPlan, stats: &Stats) {
        self.planned = plan.step();
        let at = index(plan.step());
        if self.steps.len() <= at {
            self.steps.resize_with(at + 1, StepRecord::default);
        }
        let record = &mut self.steps[at];
        let (mut preempted, mut rows) = (std::mem::take(&mut record.preempted), std::mem::take(&mut record.rows));
        preempted.clear();
        preempted.extend(plan.preempted().iter().map(|id| id.0));
        rows.clear();
        let (mut prefill_rows, mut decode_rows) = (0, 0);
        rows.extend(plan.requests().iter().map(|planned| {
            let (phase, count) = match planned.phase {
                Phase::Prefill => ("prefill", &mut prefill_rows),
                Phase::Decode => ("decode", &mut decode_rows),
            };
            *count += planned.rows;
            RowsRecord {
                id: planned.id.0,
                generation: planned.generation,
                phase,
                start: planned.start,
                rows: planned.rows,
                slot: planned.slot,
                samples: planned.samples(),
                reset_slot: planned.reset_slot,
                restore: planned.restore,
                save: planned.save,
            }
        }));
        *record = StepRecord {
            step: plan.step().0,
            at_us: micros(now),
            prefill_rows,
            decode_rows,
            logit_rows: plan.logit_rows(),
            sample_rows: plan.sample_rows(),
            page_copies: plan.page_copies().len(),
            running: stats.running,
            waiting: stats.waiting,
            free_pages: stats.free_pages,
            retiring_pages: stats.retiring_pages,
            preempted,
            rows,
            ..StepRecord::default()
        };
    }

    pub(crate) fn completed(&mut self, step: StepId, outcomes: &[Outcome<'_>]) {
        if let Some(record) = self.find(step)
            && record.state != State::Failed
        {
            record.state = State::Completed;
            record.tokens = outcomes.iter().map(|outcome| outcome.tokens.len()).sum();
        }
    }

    pub(crate) fn failed(&mut self, step: StepId, error: &str) {
        if let Some(record) = self.find(step) {
            record.state = State::Failed;
            record.error = Some(error.to_owned());
        }
    }

    fn find(&mut self, step: StepId) -> Option<&mut StepRecord> {
        self.steps.get_mut(index(step)).filter(|record| record.step == step.0)
    }

    /// Writes a dump as lines of JSON: a header, requests that have not ended, and steps, the oldest first.
    ///
    /// # Errors
    /// `out` takes no more.
    pub(crate) fn write(
        &self,
        out: &mut dyn Write,
        reason: &str,
        now: Duration,
        since_epoch: Duration,
    ) -> io::Result<()> {
        let phase = self.phase.map(|(phase, step, since)| OpenPhase {
            name: phase.name(),
            step: step.0,
            for_us: micros(now.saturating_sub(since)),
        });
        let header = Header {
            deepinfer_flight: FORMAT,
            reason,
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION"),
            at_us: micros(now),
            unix_seconds: since_epoch.as_secs_f64(),
            phase,
            steps: self.steps.iter().filter(|record| record.step > 0).count(),
            requests: self.requests.len(),
        };
        line(out, &header)?;
        for request in self.requests.values() {
            line(out, request)?;
        }
        let newest = self.planned.0;
        for step in newest.saturating_sub(STEPS as u64 - 1).max(1)..=newest {
            if let Some(record) = self.steps.get(index(StepId(step))).filter(|record| record.step == step) {
                line(out, record)?;
            }
        }
        Ok(())
    }
}

fn index(step: StepId) -> usize {
    (step.0 % STEPS as u64) as usize
}

fn line(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    out.write_all(&text)
}

fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}
