//! The stored prompts of the miniature with their tokens and logits, and how a device is led along them.

use std::rc::Rc;

use deepinfer_engine::{Engine, EngineConfig, Request, SamplingParams};
use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::{Model, Numerics};
use deepinfer_ops::Device;
use deepinfer_tests::{fixture, miniature};
use serde::Deserialize;

/// Largest difference of a logit in exact numerics.
pub(crate) const EXACT_LIMIT: f32 = 2e-3;
/// Largest mean difference in deployed numerics.
pub(crate) const DEPLOY_LIMIT: f64 = 0.10;

#[derive(Deserialize)]
struct Expected {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
pub(crate) struct Prompt {
    pub(crate) name: String,
    pub(crate) prompt_ids: Vec<u32>,
    pub(crate) tokens: Vec<u32>,
    /// Per step the five largest logits before the token was chosen.
    top5: Vec<Vec<(u32, f32)>>,
}

impl Prompt {
    /// Distance of the two largest logits of a step.
    pub(crate) fn margin(&self, step: usize) -> f32 {
        self.top5[step][0].1 - self.top5[step][1].1
    }

    fn is_long(&self) -> bool {
        self.name.starts_with("long_")
    }
}

/// Those of exact numerics.
pub(crate) fn exact_prompts() -> Vec<Prompt> {
    prompts("expected.json")
}

/// Those of deployed numerics.
pub(crate) fn deploy_prompts() -> Vec<Prompt> {
    prompts("expected_deploy.json")
}

fn prompts(file: &str) -> Vec<Prompt> {
    let text = std::fs::read_to_string(fixture(file)).expect("the fixture");
    serde_json::from_str::<Expected>(&text).expect("the fixture's form").prompts
}

pub(crate) fn engine(device: Rc<dyn Device>, numerics: Numerics) -> Engine {
    let checkpoint = Checkpoint::open(&miniature()).expect("the miniature");
    let (model, warnings) = Model::load(device, &checkpoint, numerics, &mut |_, _| {}).expect("the miniature loads");
    assert!(warnings.is_empty(), "{warnings:?}");
    let config = EngineConfig { max_num_seqs: 1, prefix_caching: false, ..EngineConfig::default() };
    Engine::builder(model).config(config).build().expect("an engine")
}

/// Every logit of every step, along the stored tokens.
fn forced_logits(engine: &mut Engine, prompt: &Prompt) -> Vec<Vec<f32>> {
    let vocab = engine.model().config().vocab_size;
    let request = Request {
        id: prompt.name.clone(),
        prompt_token_ids: prompt.prompt_ids.clone(),
        params: SamplingParams {
            max_tokens: Some(prompt.tokens.len()),
            golden_token_ids: prompt.tokens.clone(),
            ignore_eos: true,
            logits: Some(vocab),
            ..SamplingParams::default()
        },
    };
    let mut output = engine.run(request, &mut |_| true).expect("the request runs");
    let rows = output.outputs.remove(0).steps.into_iter().map(|step| {
        let mut row = vec![f32::NAN; vocab];
        for (id, logit) in step.logits.expect("asked for") {
            row[id as usize] = logit;
        }
        row
    });
    let rows: Vec<_> = rows.collect();
    assert_eq!(rows.len(), prompt.tokens.len());
    rows
}

fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as u32
}

/// The largest difference of a stored logit, which is within the limit of exact numerics.
pub(crate) fn hold_to_exact(engine: &mut Engine, prompt: &Prompt) -> f32 {
    let mut worst = 0.0_f32;
    for (step, row) in forced_logits(engine, prompt).iter().enumerate() {
        for &(id, logit) in &prompt.top5[step] {
            let difference = (row[id as usize] - logit).abs();
            let found = row[id as usize];
            assert!(difference <= EXACT_LIMIT, "{}, step {step}, token {id}: {found} for {logit}", prompt.name);
            worst = worst.max(difference);
        }
    }
    worst
}

/// Mean absolute difference of the stored logits over the short and over the long prompts, and the steps whose argmax
/// differs although the stored distance is at least 0.3.
pub(crate) fn deploy_distance(engine: &mut Engine, prompts: &[Prompt]) -> ([f64; 2], Vec<String>) {
    let (mut sums, mut counts, mut flips) = ([0.0; 2], [0_usize; 2], Vec::new());
    for prompt in prompts {
        let class = usize::from(prompt.is_long());
        for (step, row) in forced_logits(engine, prompt).iter().enumerate() {
            if prompt.margin(step) >= 0.3 && argmax(row) != prompt.top5[step][0].0 {
                flips.push(format!("{} step {step}", prompt.name));
            }
            for &(id, logit) in &prompt.top5[step] {
                sums[class] += f64::from((row[id as usize] - logit).abs());
                counts[class] += 1;
            }
        }
    }
    ([sums[0] / counts[0] as f64, sums[1] / counts[1] as f64], flips)
}
