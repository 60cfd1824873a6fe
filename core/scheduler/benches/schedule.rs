//! Host time of a step: `cargo bench -p deepinfer-scheduler`.
//!
//! 256 requests decode, two steps in flight, each result fed back. Printed is the median and the 99th percentile of
//! `schedule` and of `complete`, in microseconds.

use std::time::{Duration, Instant};

use deepinfer_scheduler::{Outcome, PlannedRequest, RequestSpec, Scheduler, SchedulerConfig, StepPlan};

const REQUESTS: usize = 256;
const STEPS: usize = 4000;

fn main() {
    for (context, prefix_caching) in [(1024, false), (1024, true), (8192, true), (32768, true)] {
        let (mut schedule, mut complete) = decode(context, prefix_caching);
        let cache = if prefix_caching { "on " } else { "off" };
        println!(
            "{REQUESTS} decodes, context {context:>5}, prefix cache {cache}: schedule {}, complete {}",
            summary(&mut schedule),
            summary(&mut complete)
        );
    }
}

/// Times of both calls over [`STEPS`] decode steps of [`REQUESTS`] requests with prompts of `context` tokens.
fn decode(context: usize, prefix_caching: bool) -> (Vec<Duration>, Vec<Duration>) {
    let pages = REQUESTS * (context + STEPS + 256).div_ceil(128);
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_num_batched_tokens: 1 << 20,
        prefix_caching,
        checkpoints: REQUESTS,
        checkpoint_pages: 64,
        ..SchedulerConfig::new(pages, REQUESTS)
    })
    .expect("a valid configuration");
    for request in 0..REQUESTS as u32 {
        let prompt: Vec<u32> = (0..context as u32).map(|at| request * 31 + at).collect();
        scheduler.add(RequestSpec::new(&prompt, STEPS + 128)).expect("a request that fits");
    }
    let mut plans = [StepPlan::default(), StepPlan::default()];
    let (mut schedule, mut complete) = (Vec::with_capacity(STEPS), Vec::with_capacity(STEPS));
    let mut last = None;
    for number in 0.. {
        let plan = &mut plans[number % 2];
        let begin = Instant::now();
        let step = scheduler.schedule(plan);
        let scheduled = begin.elapsed();
        let decodes = plan.rows() == REQUESTS && plan.sample_rows() == REQUESTS;
        let before = std::mem::replace(&mut last, step);
        let Some(before) = before else { continue };
        let token = [number as u32];
        let outcome = |r: &PlannedRequest| if r.samples() { Outcome::tokens(&token) } else { Outcome::none() };
        let outcomes: Vec<Outcome<'_>> = plans[(number + 1) % 2].requests().iter().map(outcome).collect();
        let begin = Instant::now();
        scheduler.complete(before, &outcomes);
        if decodes {
            schedule.push(scheduled);
            complete.push(begin.elapsed());
        }
        if schedule.len() == STEPS {
            break;
        }
    }
    (schedule, complete)
}

fn summary(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let micros = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
    format!("{:6.1} us (p99 {:6.1})", micros(0.5), micros(0.99))
}
