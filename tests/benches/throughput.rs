//! What company is worth: 32 requests at once against the same 32 one at a time, in one run on the same cores.
//!
//! `cargo bench -p deepinfer-tests --bench throughput`. The two modes run in turn; figures are medians, ratios are of pairs.
//! Every request's tokens are compared, so that what is fast is also right.

use std::time::Instant;

use deepinfer_engine::{Engine, EngineConfig};
use deepinfer_engine::{Request, SamplingParams};
use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::{Model, Numerics};
use deepinfer_tests::{device, miniature};

const ROUNDS: usize = 5;
const REQUESTS: usize = 32;
const PROMPT_TOKENS: usize = 16;
const OUTPUT_TOKENS: usize = 64;

fn main() {
    let (mut together, mut alone) = (engine(true), engine(true));
    let mut synchronous = engine(false);
    // Once to warm up, and to see that the three agree.
    let wanted = run_together(&mut together).1;
    assert_eq!(run_alone(&mut alone).1, wanted, "company changes tokens");
    assert_eq!(run_together(&mut synchronous).1, wanted, "asynchronous scheduling changes tokens");

    let (mut at_once, mut one_by_one, mut without_async) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        at_once.push(run_together(&mut together).0);
        one_by_one.push(run_alone(&mut alone).0);
        without_async.push(run_together(&mut synchronous).0);
    }
    let ratios: Vec<f64> = one_by_one.iter().zip(&at_once).map(|(alone, together)| alone / together).collect();
    println!(
        "miniature, deploy numerics, {REQUESTS} requests of {PROMPT_TOKENS} + {OUTPUT_TOKENS} tokens, {ROUNDS} rounds, \
         output tokens/s: median (least - most)"
    );
    let rates = |seconds: &[f64]| -> Vec<f64> {
        seconds.iter().map(|seconds| (REQUESTS * OUTPUT_TOKENS) as f64 / seconds).collect()
    };
    println!("  at once               {}", spread(rates(&at_once)));
    println!("  at once, synchronous  {}", spread(rates(&without_async)));
    println!("  one at a time         {}", spread(rates(&one_by_one)));
    println!("  ratio                 {}", spread(ratios));
}

fn engine(async_scheduling: bool) -> Engine {
    let checkpoint = Checkpoint::open(&miniature()).expect("the miniature");
    let (model, _) = Model::load(device(), &checkpoint, Numerics::DEPLOY, &mut |_, _| {}).expect("the miniature loads");
    let config = EngineConfig {
        max_num_seqs: REQUESTS,
        pages: Some(2 * REQUESTS),
        prefix_caching: false,
        async_scheduling,
        ..EngineConfig::default()
    };
    Engine::builder(model).config(config).build().expect("an engine")
}

fn requests() -> Vec<Request> {
    let params = |seed| SamplingParams {
        max_tokens: Some(OUTPUT_TOKENS),
        temperature: 0.8,
        seed: Some(seed),
        ignore_eos: true,
        ..SamplingParams::default()
    };
    (0..REQUESTS)
        .map(|i| Request {
            id: i.to_string(),
            prompt_token_ids: (0..PROMPT_TOKENS).map(|t| (100 + 131 * i + 17 * t) as u32 % 4000).collect(),
            params: params(i as u64),
        })
        .collect()
}

fn run_together(engine: &mut Engine) -> (f64, Vec<Vec<u32>>) {
    let requests = requests();
    let begun = Instant::now();
    let outputs = engine.run_all(requests);
    (begun.elapsed().as_secs_f64(), outputs.iter().map(|output| output.outputs[0].token_ids()).collect())
}

fn run_alone(engine: &mut Engine) -> (f64, Vec<Vec<u32>>) {
    let requests = requests();
    let begun = Instant::now();
    let outputs: Vec<_> =
        requests.into_iter().map(|request| engine.run(request, &mut |_| true).expect("it is valid")).collect();
    (begun.elapsed().as_secs_f64(), outputs.iter().map(|output| output.outputs[0].token_ids()).collect())
}

fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    format!("{:8.2} ({:.2} - {:.2})", values[values.len() / 2], values[0], values[values.len() - 1])
}
