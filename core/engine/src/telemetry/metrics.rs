//! The numbers of an engine, under the names that dashboards know.
//!
//! Names are the suffixes of vLLM's metrics where it has the quantity (docs.vllm.ai, "Production Metrics"). Counters only
//! grow; histograms are cumulative only when they are shown ([`Histogram::cumulative`]).

use std::time::Duration;

use deepinfer_scheduler::Stats;

use crate::output::FinishReason;
use crate::telemetry::observer::StepPhase;

/// Numbers of an engine since it was built. Times are of the engine: a request arrives when it is submitted to it.
///
/// A completion counts as a request of its own wherever a name begins with `request_`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// Completions that run.
    pub num_requests_running: u64,
    /// Completions that wait, preempted ones included.
    pub num_requests_waiting: u64,
    /// Part of the pages that requests hold, from 0 to 1. Cached pages that nobody uses count as free.
    pub kv_cache_usage_perc: f64,
    /// Tokens of requests when they were admitted, each time.
    pub prefix_cache_queries: u64,
    /// Tokens of them that the prefix cache had.
    pub prefix_cache_hits: u64,
    /// Preemptions.
    pub num_preemptions: u64,
    /// Rows of prefills that ran: tokens of prompts, and after a preemption of the output so far.
    pub prompt_tokens: u64,
    /// Output tokens.
    pub generation_tokens: u64,
    /// Rows that ran for nothing, because their request had ended or was preempted meanwhile.
    pub zombie_rows_total: u64,
    /// Requests that were refused by the engine.
    pub admission_rejections: u64,
    /// Steps that failed.
    pub failed_steps_total: u64,
    /// Completions that ended, by [`FinishReason`] in the order of its variants.
    pub request_success: [u64; 4],
    /// Time spent in each phase, in the order of [`StepPhase::ALL`].
    pub scheduler_stage_seconds_total: [Duration; 5],
    /// Rows of a step.
    pub iteration_tokens_total: Histogram,
    /// From arrival to the first token.
    pub time_to_first_token_seconds: Histogram,
    /// From one token to the next.
    pub inter_token_latency_seconds: Histogram,
    /// Mean time between the tokens of a completion with at least two.
    pub request_time_per_output_token_seconds: Histogram,
    /// From arrival to the end.
    pub e2e_request_latency_seconds: Histogram,
    /// From arrival to the first step.
    pub request_queue_time_seconds: Histogram,
    /// From the first step to the first token.
    pub request_prefill_time_seconds: Histogram,
    /// From the first token to the last.
    pub request_decode_time_seconds: Histogram,
    /// Tokens of the prompt.
    pub request_prompt_tokens: Histogram,
    /// Tokens of the output.
    pub request_generation_tokens: Histogram,
    /// Most tokens of the output.
    pub request_params_max_tokens: Histogram,
    /// Completions of a request; counts requests, not completions.
    pub request_params_n: Histogram,
}

/// A metric as a page of metrics shows it.
#[derive(Clone, Copy, Debug)]
pub struct Metric<'a> {
    /// Name, without a prefix.
    pub name: &'static str,
    /// One line about it.
    pub help: &'static str,
    /// Its values.
    pub value: MetricValue<'a>,
}

/// The values of a metric.
#[derive(Clone, Copy, Debug)]
pub enum MetricValue<'a> {
    /// Something that only grows.
    Counter(u64),
    /// Something that goes up and down.
    Gauge(f64),
    /// One counter for each value of a label.
    Labelled {
        /// Name of the label.
        label: &'static str,
        /// Value of the label, and the count.
        values: &'a [(&'static str, f64)],
    },
    /// A distribution.
    Histogram(&'a Histogram),
}

/// Upper bounds of intervals, in seconds.
const LATENCIES: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0,
    1000.0,
];
/// The same in tokens: the context of the model is 2^20.
const TOKENS: &[f64] = &[
    1.0,
    2.0,
    4.0,
    8.0,
    16.0,
    32.0,
    64.0,
    128.0,
    256.0,
    512.0,
    1024.0,
    2048.0,
    4096.0,
    8192.0,
    16384.0,
    32768.0,
    65536.0,
    131_072.0,
    262_144.0,
    524_288.0,
    1_048_576.0,
];
/// The same in completions of a request.
const COMPLETIONS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];

/// Reasons as labels, in the order of the variants.
const REASONS: [(FinishReason, &str); 4] = [
    (FinishReason::Stop, "stop"),
    (FinishReason::Length, "length"),
    (FinishReason::Abort, "abort"),
    (FinishReason::Error, "error"),
];

impl Default for Metrics {
    fn default() -> Self {
        let [latency, tokens] = [Histogram::new(LATENCIES), Histogram::new(TOKENS)];
        Self {
            num_requests_running: 0,
            num_requests_waiting: 0,
            kv_cache_usage_perc: 0.0,
            prefix_cache_queries: 0,
            prefix_cache_hits: 0,
            num_preemptions: 0,
            prompt_tokens: 0,
            generation_tokens: 0,
            zombie_rows_total: 0,
            admission_rejections: 0,
            failed_steps_total: 0,
            request_success: [0; 4],
            scheduler_stage_seconds_total: [Duration::ZERO; 5],
            iteration_tokens_total: tokens.clone(),
            time_to_first_token_seconds: latency.clone(),
            inter_token_latency_seconds: latency.clone(),
            request_time_per_output_token_seconds: latency.clone(),
            e2e_request_latency_seconds: latency.clone(),
            request_queue_time_seconds: latency.clone(),
            request_prefill_time_seconds: latency.clone(),
            request_decode_time_seconds: latency,
            request_prompt_tokens: tokens.clone(),
            request_generation_tokens: tokens.clone(),
            request_params_max_tokens: tokens,
            request_params_n: Histogram::new(COMPLETIONS),
        }
    }
}

impl Metrics {
    /// Takes over what the scheduler counts itself.
    pub(crate) fn take_stats(&mut self, stats: &Stats) {
        self.num_requests_running = stats.running as u64;
        self.num_requests_waiting = stats.waiting as u64;
        self.kv_cache_usage_perc = kv_cache_usage(stats);
        self.prefix_cache_queries = stats.queried_tokens;
        self.prefix_cache_hits = stats.hit_tokens;
        self.num_preemptions = stats.preemptions;
        self.zombie_rows_total = stats.discarded_rows;
    }

    pub(crate) fn count_end(&mut self, reason: FinishReason) {
        let at = REASONS.iter().position(|(other, _)| *other == reason).expect("every reason has a label");
        self.request_success[at] += 1;
    }

    /// Shows every metric once, in a fixed order.
    pub fn each(&self, show: &mut dyn FnMut(Metric<'_>)) {
        use MetricValue::{Counter, Gauge, Histogram, Labelled};
        let mut show = |name, help, value| show(Metric { name, help, value });
        let reasons: [_; 4] = std::array::from_fn(|at| (REASONS[at].1, self.request_success[at] as f64));
        let phases: [_; 5] =
            std::array::from_fn(|at| (StepPhase::ALL[at].name(), self.scheduler_stage_seconds_total[at].as_secs_f64()));
        show("num_requests_running", "Completions that run", Gauge(self.num_requests_running as f64));
        show("num_requests_waiting", "Completions that wait", Gauge(self.num_requests_waiting as f64));
        show("kv_cache_usage_perc", "Part of the cache pages in use, 0 to 1", Gauge(self.kv_cache_usage_perc));
        show("prefix_cache_queries", "Tokens looked up in the prefix cache", Counter(self.prefix_cache_queries));
        show("prefix_cache_hits", "Tokens found in the prefix cache", Counter(self.prefix_cache_hits));
        show("num_preemptions", "Preemptions", Counter(self.num_preemptions));
        show("prompt_tokens", "Rows of prefills", Counter(self.prompt_tokens));
        show("generation_tokens", "Output tokens", Counter(self.generation_tokens));
        show("zombie_rows_total", "Rows that ran for nothing", Counter(self.zombie_rows_total));
        show("admission_rejections", "Requests that were refused", Counter(self.admission_rejections));
        show("failed_steps_total", "Steps that failed", Counter(self.failed_steps_total));
        show("request_success", "Completions that ended", Labelled { label: "finished_reason", values: &reasons });
        let stages = Labelled { label: "stage", values: &phases };
        show("scheduler_stage_seconds_total", "Time of the engine's thread in each phase of a step", stages);
        for (name, help, histogram) in [
            ("iteration_tokens_total", "Rows of a step", &self.iteration_tokens_total),
            ("time_to_first_token_seconds", "Arrival to first token", &self.time_to_first_token_seconds),
            ("inter_token_latency_seconds", "One token to the next", &self.inter_token_latency_seconds),
            (
                "request_time_per_output_token_seconds",
                "Mean time between the tokens of a completion",
                &self.request_time_per_output_token_seconds,
            ),
            ("e2e_request_latency_seconds", "Arrival to end", &self.e2e_request_latency_seconds),
            ("request_queue_time_seconds", "Arrival to first step", &self.request_queue_time_seconds),
            ("request_prefill_time_seconds", "First step to first token", &self.request_prefill_time_seconds),
            ("request_decode_time_seconds", "First token to last", &self.request_decode_time_seconds),
            ("request_prompt_tokens", "Tokens of a prompt", &self.request_prompt_tokens),
            ("request_generation_tokens", "Tokens of an output", &self.request_generation_tokens),
            ("request_params_max_tokens", "Most tokens of an output", &self.request_params_max_tokens),
            ("request_params_n", "Completions of a request", &self.request_params_n),
        ] {
            show(name, help, Histogram(histogram));
        }
    }
}

/// Part of the pages that are neither free nor about to be, from 0 to 1.
pub(crate) fn kv_cache_usage(stats: &Stats) -> f64 {
    let used = stats.usable_pages - stats.free_pages - stats.retiring_pages;
    used as f64 / stats.usable_pages.max(1) as f64
}

/// How often values fell into intervals.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Upper bounds, ascending; a value that equals one lies below it.
    bounds: &'static [f64],
    /// One count for each bound, and one for what is above all.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    pub(crate) fn record(&mut self, value: f64) {
        self.counts[self.bounds.partition_point(|&bound| bound < value)] += 1;
        self.sum += value;
    }

    pub(crate) fn record_time(&mut self, time: Duration) {
        self.record(time.as_secs_f64());
    }

    /// Values so far.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Each upper bound with the number of values up to it, the last one infinity.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(self.counts.iter().scan(0, |below, count| {
            *below += count;
            Some(*below)
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_value_counts_under_every_bound_that_it_does_not_exceed() {
        let mut histogram = Histogram::new(&[1.0, 2.0, 5.0]);
        for value in [0.5, 1.0, 1.5, 2.0, 5.0, 5.5, 100.0] {
            histogram.record(value);
        }
        let cumulative: Vec<_> = histogram.cumulative().collect();
        assert_eq!(cumulative, [(1.0, 2), (2.0, 4), (5.0, 5), (f64::INFINITY, 7)]);
        assert_eq!((histogram.count(), histogram.sum()), (7, 115.5));
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [LATENCIES, TOKENS, COMPLETIONS] {
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
        }
    }

    #[test]
    fn names_are_shown_once_and_are_those_of_the_fields() {
        let metrics = Metrics::default();
        let mut names = Vec::new();
        metrics.each(&mut |metric| names.push(metric.name));
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        // A field that is not shown would be counted for nobody.
        let fields = format!("{metrics:?}");
        let names_of_fields: BTreeSet<&str> = fields
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .filter(|word| word.contains('_') || *word == "Metrics")
            .collect();
        let shown: BTreeSet<&str> = names.iter().copied().chain(["Metrics"]).collect();
        assert_eq!(names_of_fields, shown);
    }

    #[test]
    fn every_reason_has_its_place() {
        let mut metrics = Metrics::default();
        for (reason, _) in REASONS {
            metrics.count_end(reason);
        }
        assert_eq!(metrics.request_success, [1; 4]);
    }
}
