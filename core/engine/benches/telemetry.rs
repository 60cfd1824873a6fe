//! What telemetry adds to the host time of a step: `cargo bench -p deepinfer-engine --bench telemetry`.
//!
//! 256 requests decode, as the scheduler plans them, and the recorder is told all that the engine tells in a turn. Printed is
//! the median and the 99th percentile of the recorder's time for one turn, in microseconds.

use std::io;
use std::time::{Duration, Instant};

use deepinfer_engine::telemetry::{Observation, Recorder, Spans, StepObserver, StepPhase, TelemetryConfig};
use deepinfer_engine::{Request, SamplingParams};
use deepinfer_scheduler::{Outcome, RequestSpec, Scheduler, SchedulerConfig, StepPlan};

const REQUESTS: usize = 256;
const STEPS: usize = 4000;

fn main() {
    let recorder = |trace: Option<Box<dyn io::Write + Send>>| {
        Recorder::new(TelemetryConfig { trace, ..TelemetryConfig::default() }).expect("a recorder")
    };
    report("metrics and flight recorder", Box::new(recorder(None)));
    report("the same and a trace", Box::new(recorder(Some(Box::new(io::sink())))));
    report("spans that nobody subscribes to", Box::new(Spans::new()));
}

fn report(what: &str, mut observer: Box<dyn StepObserver>) {
    let mut times = run(observer.as_mut());
    times.sort_unstable();
    let micros = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
    println!("{REQUESTS} decodes, {what:31}: {:5.1} us (p99 {:5.1})", micros(0.5), micros(0.99));
}

/// Time of the observer in each of [`STEPS`] decode steps.
fn run(observer: &mut dyn StepObserver) -> Vec<Duration> {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_num_batched_tokens: 1 << 20,
        depth: 1,
        ..SchedulerConfig::new(REQUESTS * (STEPS + 256).div_ceil(128), REQUESTS)
    })
    .expect("a valid configuration");
    for number in 0..REQUESTS as u32 {
        let request =
            Request { id: number.to_string(), prompt_token_ids: vec![number; 8], params: SamplingParams::default() };
        let limit = STEPS + 16;
        let id = scheduler.add(RequestSpec::new(&request.prompt_token_ids, limit)).expect("a request that fits");
        observer.observe(&Observation::Submitted { id, request: &request, limit, stats: scheduler.stats() });
    }
    let (mut plan, token) = (StepPlan::default(), [7]);
    let mut times = Vec::with_capacity(STEPS);
    while times.len() < STEPS {
        let step = scheduler.schedule(&mut plan).expect("requests that go on");
        let stats = scheduler.stats();
        let outcomes: Vec<Outcome<'_>> = plan
            .requests()
            .iter()
            .map(|r| if r.samples() { Outcome::tokens(&token) } else { Outcome::none() })
            .collect();
        let begin = Instant::now();
        let phase = |phase| Observation::Phase { phase, step };
        for what in [
            phase(StepPhase::Schedule),
            Observation::Scheduled { plan: &plan, stats },
            phase(StepPhase::Launch),
            phase(StepPhase::Sample),
            phase(StepPhase::Wait),
            phase(StepPhase::Update),
            Observation::Completed { plan: &plan, outcomes: &outcomes },
            Observation::TurnEnded { stats },
        ] {
            observer.observe(&what);
        }
        let time = begin.elapsed();
        scheduler.complete(step, &outcomes);
        if plan.rows() == REQUESTS {
            times.push(time);
        }
    }
    times
}
