//! The miniature behind the layer: the same tokens, and nothing found.

use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;

use deepinfer_engine::{Engine, EngineConfig, Request, SamplingParams};
use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::{Model, Numerics};
use deepinfer_ops::Device;
use deepinfer_oracle::Bundle;
use deepinfer_tests::{fixture, miniature};
use serde_json::Value;

use crate::{built, findings, open};

/// Ops of the model: all of the catalogue but those for choices of tokens that this request does not ask for.
const OPS: usize = 27;

/// Tokens that are generated.
const TOKENS: usize = 8;

/// A stored prompt that is longer than the window, so that every op is called.
const PROMPT: &str = "long_300";

/// Tokens after the prompt, generated on this device.
fn generate(device: Rc<dyn Device>, numerics: Numerics) -> Vec<u32> {
    let checkpoint = Checkpoint::open(&miniature()).expect("the miniature");
    let (model, _) = Model::load(device, &checkpoint, numerics, &mut |_, _| {}).expect("the miniature loads");
    let text = std::fs::read_to_string(fixture("expected.json")).expect("the fixture");
    let stored: Value = serde_json::from_str(&text).expect("the fixture's form");
    let prompts = stored["prompts"].as_array().expect("prompts");
    let prompt = prompts.iter().find(|prompt| prompt["name"] == PROMPT).expect("the prompt");
    let request = Request {
        id: "validate".to_owned(),
        prompt_token_ids: serde_json::from_value(prompt["prompt_ids"].clone()).expect("ids"),
        params: SamplingParams { max_tokens: Some(TOKENS), ignore_eos: true, ..SamplingParams::default() },
    };
    let config = EngineConfig::default().for_request(&request, model.config().max_position_embeddings);
    let mut engine = Engine::builder(model).config(config).build().expect("an engine");
    engine.run(request, &mut |_| true).expect("the request runs").outputs[0].token_ids()
}

/// The tokens behind the layer with these options, and that nothing was found.
fn behind(folder: &Path, options: &str, numerics: Numerics) -> Vec<u32> {
    let device = open(folder, &built("deepinfer_cpu_reference"), "", options);
    let tokens = generate(Rc::new(device), numerics);
    assert_eq!(findings(folder), Vec::<Value>::new());
    tokens
}

/// The tokens without a layer.
fn alone(numerics: Numerics) -> Vec<u32> {
    let tokens = generate(deepinfer_tests::device(), numerics);
    assert_eq!(tokens.len(), TOKENS);
    tokens
}

#[test]
fn every_call_is_shadowed_and_poisoned_and_nothing_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let calls = folder.path().join("calls");
    let options = format!("shadow=1/1,poison,record={}", calls.display());
    let tokens = behind(folder.path(), &options, Numerics::DEPLOY);
    assert_eq!(tokens, alone(Numerics::DEPLOY));
    // Of every op that the model calls there is a bundle, in which the oracle agrees with what was found.
    let mut ops = BTreeSet::new();
    for file in std::fs::read_dir(&calls).expect("the folder of bundles") {
        let bytes = std::fs::read(file.expect("a file").path()).expect("a bundle");
        let bundle = Bundle::from_bytes(&bytes).expect("a bundle");
        let found = bundle.found.expect("what the backend gave");
        bundle.call.judge(&found.outputs).expect("the same as in the run");
        ops.insert(bundle.call.op.name);
    }
    assert!(ops.len() >= OPS, "only {ops:?}");
}

#[test]
fn completions_in_any_order_change_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(behind(folder.path(), "jitter=3", Numerics::EXACT), alone(Numerics::EXACT));
}
