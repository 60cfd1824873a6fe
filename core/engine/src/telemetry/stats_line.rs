//! The line of figures that a working engine logs now and then.

use std::time::Duration;

use crate::telemetry::metrics::Metrics;

/// The log's name for these lines.
pub const STATS_TARGET: &str = "deepinfer::stats";

/// Decides when a line is due, and writes it. Time without work counts for nothing, so that rates are those of the engine and
/// not of its callers.
#[derive(Debug)]
pub(crate) struct StatsLine {
    /// Time of work between two lines; `None` for none but the last.
    interval: Option<Duration>,
    /// Since when there has been work.
    working_since: Option<Duration>,
    window: Window,
    all: Window,
}

/// Time of work, and the counters at its beginning.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    worked: Duration,
    prompt_tokens: u64,
    generation_tokens: u64,
    queries: u64,
    hits: u64,
}

impl StatsLine {
    pub(crate) fn new(interval: Option<Duration>) -> Self {
        Self { interval, working_since: None, window: Window::default(), all: Window::default() }
    }

    /// There is work from now on, unless there was already.
    pub(crate) fn work_began(&mut self, now: Duration) {
        self.working_since.get_or_insert(now);
    }

    /// A turn of work is over, and possibly all work. A line, if one is due.
    pub(crate) fn turn_ended(&mut self, now: Duration, goes_on: bool, metrics: &Metrics) -> Option<String> {
        let since = self.working_since.replace(now).unwrap_or(now);
        for window in [&mut self.window, &mut self.all] {
            window.worked += now - since;
        }
        if !goes_on {
            self.working_since = None;
        }
        if self.window.worked < self.interval? {
            return None;
        }
        let line = self.window.line(metrics);
        self.window = Window::from_now(metrics);
        Some(line)
    }

    /// The line of everything, if there was work.
    pub(crate) fn end(&self, metrics: &Metrics) -> Option<String> {
        let seconds = self.all.worked.as_secs_f64();
        (seconds > 0.0).then(|| format!("{}, in {seconds:.1} s of work", self.all.line(metrics)))
    }
}

impl Window {
    fn from_now(metrics: &Metrics) -> Self {
        Self {
            worked: Duration::ZERO,
            prompt_tokens: metrics.prompt_tokens,
            generation_tokens: metrics.generation_tokens,
            queries: metrics.prefix_cache_queries,
            hits: metrics.prefix_cache_hits,
        }
    }

    fn line(&self, metrics: &Metrics) -> String {
        let per_second = |tokens: u64| tokens as f64 / self.worked.as_secs_f64().max(f64::MIN_POSITIVE);
        let queries = metrics.prefix_cache_queries - self.queries;
        let hit_rate = (metrics.prefix_cache_hits - self.hits) as f64 / queries.max(1) as f64;
        format!(
            "prompt throughput: {:.1} tokens/s, generation throughput: {:.1} tokens/s, running: {} reqs, waiting: {} reqs, \
             KV cache usage: {:.1}%, prefix cache hit rate: {:.1}%",
            per_second(metrics.prompt_tokens - self.prompt_tokens),
            per_second(metrics.generation_tokens - self.generation_tokens),
            metrics.num_requests_running,
            metrics.num_requests_waiting,
            100.0 * metrics.kv_cache_usage_perc,
            100.0 * hit_rate,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn metrics(prompt_tokens: u64, generation_tokens: u64, hits: u64) -> Metrics {
        Metrics {
            prompt_tokens,
            generation_tokens,
            prefix_cache_queries: 4 * hits,
            prefix_cache_hits: hits,
            num_requests_running: 3,
            num_requests_waiting: 1,
            kv_cache_usage_perc: 0.125,
            ..Metrics::default()
        }
    }

    #[test]
    fn a_line_comes_after_each_interval_of_work() {
        let mut line = StatsLine::new(Some(seconds(10)));
        line.work_began(seconds(100));
        assert_eq!(line.turn_ended(seconds(104), false, &metrics(400, 40, 10)), None);
        // Nothing to do for a minute.
        line.work_began(seconds(164));
        assert_eq!(line.turn_ended(seconds(169), true, &metrics(500, 60, 20)), None);
        line.work_began(seconds(169));
        let first = line.turn_ended(seconds(170), true, &metrics(600, 80, 30));
        assert_eq!(
            first.expect("ten seconds of work"),
            "prompt throughput: 60.0 tokens/s, generation throughput: 8.0 tokens/s, running: 3 reqs, waiting: 1 reqs, \
             KV cache usage: 12.5%, prefix cache hit rate: 25.0%"
        );
        // The next one is about what came since.
        let second = line.turn_ended(seconds(190), true, &metrics(600, 180, 30)).expect("twenty seconds more");
        assert!(second.starts_with("prompt throughput: 0.0 tokens/s, generation throughput: 5.0 tokens/s"), "{second}");
        assert!(second.ends_with("prefix cache hit rate: 0.0%"), "{second}");
        let all = line.end(&metrics(600, 180, 30)).expect("there was work");
        assert!(all.starts_with("prompt throughput: 20.0 tokens/s, generation throughput: 6.0 tokens/s"), "{all}");
        assert!(all.ends_with(", in 30.0 s of work"), "{all}");
    }

    #[test]
    fn without_an_interval_or_without_work_there_is_no_line() {
        let mut line = StatsLine::new(None);
        assert_eq!(line.end(&Metrics::default()), None);
        line.work_began(seconds(0));
        assert_eq!(line.turn_ended(seconds(1000), true, &metrics(1, 1, 1)), None);
        assert!(line.end(&metrics(1, 1, 1)).is_some());
    }
}
