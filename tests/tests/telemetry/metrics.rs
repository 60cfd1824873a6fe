//! Numbers of runs, against those counted by hand.

use deepinfer_engine::telemetry::{Histogram, Metrics, Recorder, TelemetryConfig};
use deepinfer_engine::{Engine, EngineConfig};

use crate::runs::{COMPLETIONS, OUTPUT_TOKENS, PROMPT_TOKENS, engine, request, requests, small};

/// An engine that is recorded, and its numbers at any time.
fn recorded(config: EngineConfig) -> (Engine, impl Fn() -> Metrics) {
    let mut engine = engine(config);
    let recorder = Recorder::new(TelemetryConfig::default()).expect("a recorder");
    let telemetry = recorder.telemetry();
    engine.add_observer(Box::new(recorder));
    (engine, move || telemetry.metrics())
}

/// Values up to each bound, where that changes.
fn steps(histogram: &Histogram) -> Vec<(f64, u64)> {
    let mut last = 0;
    histogram.cumulative().filter(|(_, count)| std::mem::replace(&mut last, *count) != *count).collect()
}

#[test]
fn a_run_is_counted() {
    for async_scheduling in [true, false] {
        let (mut engine, metrics) = recorded(EngineConfig { async_scheduling, ..small() });
        let outputs = engine.run_all(requests());
        assert!(outputs.iter().flat_map(|output| &output.outputs).all(|completion| completion.error.is_none()));
        let (found, stats) = (metrics(), engine.stats());

        assert_eq!(found.generation_tokens, OUTPUT_TOKENS as u64);
        // Two completions start where the first has run all of the prompt but its last token.
        assert_eq!(found.prompt_tokens, PROMPT_TOKENS as u64 + 2);
        assert_eq!((found.num_requests_running, found.num_requests_waiting), (0, 0));
        assert_eq!(found.kv_cache_usage_perc, 0.0);
        assert_eq!((found.prefix_cache_queries, found.prefix_cache_hits), (stats.queried_tokens, stats.hit_tokens));
        assert_eq!(found.zombie_rows_total, stats.discarded_rows);
        assert_eq!((found.num_preemptions, found.admission_rejections, found.failed_steps_total), (0, 0, 0));
        assert_eq!(found.request_success, [0, COMPLETIONS as u64, 0, 0]);

        let rows = PROMPT_TOKENS as u64 + 2 + (OUTPUT_TOKENS - COMPLETIONS) as u64 + stats.discarded_rows;
        assert_eq!(found.iteration_tokens_total.sum(), rows as f64);
        assert_eq!(found.iteration_tokens_total.count(), stats.steps);
        assert_eq!(steps(&found.request_params_n), [(1.0, 5), (5.0, 6)]);
        assert_eq!(found.request_prompt_tokens.sum(), (PROMPT_TOKENS + 2 * 70) as f64);
        assert_eq!(steps(&found.request_generation_tokens), [(1.0, 1), (4.0, 5), (8.0, 7), (16.0, 8)]);
        assert_eq!(found.request_params_max_tokens, found.request_generation_tokens);

        let completions = COMPLETIONS as u64;
        for once in [
            &found.time_to_first_token_seconds,
            &found.e2e_request_latency_seconds,
            &found.request_queue_time_seconds,
            &found.request_prefill_time_seconds,
            &found.request_decode_time_seconds,
        ] {
            assert_eq!(once.count(), completions);
        }
        // One of them has a single token.
        assert_eq!(found.request_time_per_output_token_seconds.count(), completions - 1);
        assert_eq!(found.inter_token_latency_seconds.count(), OUTPUT_TOKENS as u64 - completions);

        // Times of parts add up to those of the whole.
        let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
        let first = found.request_queue_time_seconds.sum() + found.request_prefill_time_seconds.sum();
        assert!(close(first, found.time_to_first_token_seconds.sum()));
        assert!(close(found.inter_token_latency_seconds.sum(), found.request_decode_time_seconds.sum()));
        let all = found.time_to_first_token_seconds.sum() + found.request_decode_time_seconds.sum();
        assert!(all <= found.e2e_request_latency_seconds.sum() + 1e-6);
        assert!(found.scheduler_stage_seconds_total.iter().all(|time| !time.is_zero()));
    }
}

#[test]
fn numbers_of_the_moment_are_those_of_the_engine() {
    let (mut engine, metrics) = recorded(small());
    for request in requests() {
        engine.submit(request).expect("a valid request");
    }
    assert_eq!(metrics().num_requests_waiting, COMPLETIONS as u64);
    let mut usage = Vec::new();
    while engine.has_work() {
        engine.step();
        let (found, stats) = (metrics(), engine.stats());
        assert_eq!(found.num_requests_running, stats.running as u64);
        assert_eq!(found.num_requests_waiting, stats.waiting as u64);
        let used = stats.usable_pages - stats.free_pages - stats.retiring_pages;
        assert_eq!(found.kv_cache_usage_perc, used as f64 / stats.usable_pages as f64);
        usage.push(found.kv_cache_usage_perc);
    }
    assert!(usage.iter().any(|usage| *usage > 0.1) && usage.iter().all(|usage| *usage < 1.0), "{usage:?}");
}

#[test]
fn hits_preemptions_refusals_and_aborts_are_counted() {
    let (mut engine, metrics) = recorded(small());
    engine.run_all(vec![request("a", 140, 2)]);
    assert_eq!(metrics().prefix_cache_hits, 0);
    // The same prompt again: its full page is known.
    let id = engine.submit(request("a", 140, 30)).expect("a valid request");
    for _ in 0..6 {
        engine.step();
    }
    assert_eq!((metrics().prefix_cache_queries, metrics().prefix_cache_hits), (280, 128));
    let before = metrics().prompt_tokens;
    assert_eq!(before, 140 + 12);
    let tokens = metrics().generation_tokens - 2;
    assert!(engine.preempt(id));
    for _ in 0..6 {
        engine.step();
    }
    let found = metrics();
    assert_eq!(found.num_preemptions, 1);
    // What ran again: the prompt after its first page, and the output so far.
    assert_eq!(found.prompt_tokens - before, 12 + tokens);
    assert_eq!(found.request_queue_time_seconds.count(), 2);
    assert!(engine.abort(id));
    assert_eq!(metrics().num_requests_running, 0);
    engine.submit(request("none", 0, 1)).expect_err("an empty prompt");
    while engine.has_work() {
        engine.step();
    }
    let found = metrics();
    assert_eq!(found.request_success, [0, 1, 1, 0]);
    assert_eq!(found.admission_rejections, 1);
}
