//! The miniature behind the layer: the same tokens, and nothing found.

use std::path::Path;
use std::rc::Rc;

use deepinfer_engine::{Engine, Request, SamplingParams};
use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::{Model, Numerics};
use deepinfer_ops::Device;
use deepinfer_tests::{fixture, miniature};
use serde_json::Value;

use crate::{findings, open};

/// Tokens that are generated.
const TOKENS: usize = 8;

/// Tokens of the shortest stored prompt, generated on this device.
fn generate(device: Rc<dyn Device>, numerics: Numerics) -> Vec<u32> {
    let checkpoint = Checkpoint::open(&miniature()).expect("the miniature");
    let (model, _) = Model::load(device, &checkpoint, numerics, &mut |_, _| {}).expect("the miniature loads");
    let mut engine = Engine::new(model, 512).expect("caches");
    let text = std::fs::read_to_string(fixture("expected.json")).expect("the fixture");
    let stored: Value = serde_json::from_str(&text).expect("the fixture's form");
    let prompts = stored["prompts"].as_array().expect("prompts");
    let length = |prompt: &&Value| prompt["prompt_ids"].as_array().map_or(0, Vec::len);
    let prompt = prompts.iter().min_by_key(length).expect("a prompt");
    let request = Request {
        id: "validate".to_owned(),
        prompt_token_ids: serde_json::from_value(prompt["prompt_ids"].clone()).expect("ids"),
        params: SamplingParams { max_tokens: Some(TOKENS), ignore_eos: true, ..SamplingParams::default() },
    };
    let completion = engine.generate(&request, &mut |_| true).expect("the request runs");
    completion.steps.iter().map(|step| step.token_id).collect()
}

/// The tokens behind the layer with these options, and that nothing was found.
fn behind(folder: &Path, name: &str, options: &str, numerics: Numerics) -> Vec<u32> {
    let report = folder.join(name);
    let device = open("cpu", &format!("{options},report={}", report.display()));
    let tokens = generate(Rc::new(device), numerics);
    assert_eq!(findings(&report), Vec::<Value>::new(), "{name}");
    tokens
}

#[test]
fn every_call_of_the_miniature_is_shadowed_and_poisoned_and_nothing_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let deployed = generate(deepinfer_tests::device(), Numerics::DEPLOY);
    let shadowed = behind(folder.path(), "shadow", "shadow=1/1,poison", Numerics::DEPLOY);
    assert_eq!(shadowed, deployed);
    assert_eq!(deployed.len(), TOKENS);
}
