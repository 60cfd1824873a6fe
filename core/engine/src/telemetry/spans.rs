//! Requests and steps as spans of `tracing`.
//!
//! Spans have times where something subscribes to them; here is only what they are and when they begin and end. What is logged
//! while a phase runs, by a plugin for example, lies in the span of the phase.

use std::collections::VecDeque;

use deepinfer_scheduler::{Phase, RequestId, StepId, StepPlan};
use tracing::field::{Empty, debug, display};
use tracing::span::EnteredSpan;
use tracing::{Level, Span, debug_span, info_span, trace_span};

use crate::output::Completion;
use crate::request::Request;
use crate::telemetry::lifecycle::{Chunk, Lifecycles, Sink, Stage};
use crate::telemetry::observer::{Observation, StepObserver, StepPhase};

/// Makes spans of what an engine tells:
///
/// | span | level | in | from, to |
/// |---|---|---|---|
/// | `request` | info | | submission and end of a completion |
/// | `queue` | debug | `request` | wait for the first step, also after a preemption |
/// | `prefill` | debug | `request` | first step and first token |
/// | `prefill_chunk` | debug | `prefill` | the rows of one step |
/// | `decode` | debug | `request` | first token and end |
/// | `step` | debug | | planning and results of a step |
/// | `schedule`, `launch`, `wait`, `update`, `sample` | trace | `step` | the phases of a turn |
#[derive(Default)]
pub struct Spans {
    lifecycles: Lifecycles<RequestSpans>,
    /// Steps that are not over, the oldest in front.
    steps: VecDeque<(StepId, Span)>,
    phase: Option<EnteredSpan>,
}

/// Open spans of a completion, the outermost first.
struct RequestSpans {
    request: Span,
    stage: Option<Span>,
    chunk: Option<Span>,
}

impl Spans {
    /// Without anything to show yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether anybody subscribes to any of the spans now. If not, there is no use in adding it to an engine.
    pub fn are_wanted() -> bool {
        tracing::span_enabled!(Level::INFO)
    }

    fn step(&mut self, step: StepId) -> &Span {
        let at = self.steps.iter().position(|(other, _)| *other == step).unwrap_or_else(|| {
            let span = debug_span!(
                parent: None,
                "step",
                step = step.0,
                requests = Empty,
                prefill_rows = Empty,
                decode_rows = Empty,
                sampled = Empty,
                error = Empty,
            );
            self.steps.push_back((step, span));
            self.steps.len() - 1
        });
        &self.steps[at].1
    }

    fn phase(&mut self, phase: StepPhase, step: StepId) {
        let step = self.step(step);
        // The name of a span is part of its place in the program.
        let span = match phase {
            StepPhase::Schedule => trace_span!(parent: step, "schedule"),
            StepPhase::Launch => trace_span!(parent: step, "launch"),
            StepPhase::Wait => trace_span!(parent: step, "wait"),
            StepPhase::Update => trace_span!(parent: step, "update"),
            StepPhase::Sample => trace_span!(parent: step, "sample"),
        };
        self.phase = Some(span.entered());
    }

    fn scheduled(&mut self, plan: &StepPlan) {
        let span = self.step(plan.step());
        if span.is_disabled() {
            return;
        }
        let rows = |phase| plan.requests().iter().filter(|r| r.phase == phase).map(|r| r.rows).sum::<usize>();
        span.record("requests", plan.requests().len());
        span.record("prefill_rows", rows(Phase::Prefill));
        span.record("decode_rows", rows(Phase::Decode));
        span.record("sampled", plan.sample_rows());
    }
}

impl StepObserver for Spans {
    fn observe(&mut self, what: &Observation<'_>) {
        self.lifecycles.observe(what, &mut RequestSink);
        match *what {
            Observation::Phase { phase, step } => {
                // The one before has to be left before the next is entered.
                self.phase = None;
                self.phase(phase, step);
            }
            Observation::Scheduled { plan, .. } => self.scheduled(plan),
            Observation::Completed { plan, .. } => self.steps.retain(|(step, _)| *step != plan.step()),
            Observation::Failed { plan, error } => {
                self.step(plan.step()).record("error", display(error));
                self.steps.retain(|(step, _)| *step != plan.step());
            }
            Observation::TurnEnded { .. } => self.phase = None,
            _ => {}
        }
    }
}

impl Drop for Spans {
    fn drop(&mut self) {
        self.phase = None;
        self.lifecycles.close(&mut RequestSink);
    }
}

/// Opens and closes the spans of completions.
struct RequestSink;

impl Sink for RequestSink {
    type Data = RequestSpans;

    fn begin(&mut self, id: RequestId, request: &Request, index: usize, limit: usize) -> RequestSpans {
        let request = info_span!(
            parent: None,
            "request",
            id = id.0,
            name = ?request.id,
            completion = index,
            prompt_tokens = request.prompt_token_ids.len(),
            max_tokens = limit,
            output_tokens = Empty,
            finish_reason = Empty,
            error = Empty,
        );
        RequestSpans { request, stage: None, chunk: None }
    }

    fn enter(&mut self, spans: &mut RequestSpans, _: RequestId, stage: Stage) {
        let request = &spans.request;
        match stage {
            Stage::Queued => spans.stage = Some(debug_span!(parent: request, "queue")),
            Stage::Prefill => spans.stage = Some(debug_span!(parent: request, "prefill")),
            Stage::Decode => spans.stage = Some(debug_span!(parent: request, "decode")),
            Stage::Chunk(Chunk { step, start, rows }) => {
                let prefill = spans.stage.as_ref().unwrap_or(request);
                spans.chunk = Some(debug_span!(parent: prefill, "prefill_chunk", step = step.0, start, rows));
            }
        }
    }

    fn leave(&mut self, spans: &mut RequestSpans, _: RequestId, stage: Stage) {
        match stage {
            Stage::Chunk(_) => spans.chunk = None,
            _ => spans.stage = None,
        }
    }

    fn tokens(&mut self, _: &mut RequestSpans, _: RequestId, _: usize) {}

    fn end(&mut self, spans: RequestSpans, _: RequestId, completion: Option<&Completion>) {
        let Some(completion) = completion else { return };
        spans.request.record("output_tokens", completion.steps.len());
        spans.request.record("finish_reason", debug(completion.finish_reason));
        if let Some(error) = &completion.error {
            spans.request.record("error", display(error));
        }
    }
}
