//! Engines and requests.

use std::rc::Rc;

use deepinfer_engine::{Engine, EngineConfig, Request, SamplingParams};
use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::{Model, Numerics};
use deepinfer_ops::Device;
use deepinfer_tests::miniature;

/// Few pages and short chunks, so that a run of a few requests has everything.
pub(crate) fn small() -> EngineConfig {
    EngineConfig { max_num_seqs: 4, max_num_batched_tokens: 64, pages: Some(32), ..EngineConfig::default() }
}

pub(crate) fn engine_on(device: Rc<dyn Device>, config: EngineConfig) -> Engine {
    let checkpoint = Checkpoint::open(&miniature()).expect("the miniature");
    let (model, _) = Model::load(device, &checkpoint, Numerics::DEPLOY, &mut |_, _| {}).expect("the miniature loads");
    Engine::builder(model).config(config).build().expect("an engine")
}

pub(crate) fn engine(config: EngineConfig) -> Engine {
    engine_on(deepinfer_tests::device(), config)
}

/// A request for `max_tokens` tokens after `prompt` ones, which differ from those of other names.
pub(crate) fn request(name: &str, prompt: usize, max_tokens: usize) -> Request {
    let salt: usize = name.bytes().map(usize::from).sum();
    let prompt_token_ids = (0..prompt).map(|at| ((at * 31 + salt * 7) % 4000 + 5) as u32).collect();
    let params = SamplingParams {
        max_tokens: Some(max_tokens),
        temperature: 0.8,
        seed: Some(salt as u64),
        ignore_eos: true,
        ..SamplingParams::default()
    };
    Request { id: name.to_owned(), prompt_token_ids, params }
}

/// With completions besides the first one.
pub(crate) fn with_n(mut request: Request, n: usize) -> Request {
    request.params.n = n;
    request
}

/// Prompts of several chunks and of one token, more of them than run at a time, one with three completions.
pub(crate) fn requests() -> Vec<Request> {
    vec![
        request("a", 150, 5),
        request("b", 1, 9),
        with_n(request("c", 70, 4), 3),
        request("d \"quoted\"\n", 20, 1),
        request("e", 200, 3),
        request("f", 33, 6),
    ]
}

/// Output tokens of all of [`requests`].
pub(crate) const OUTPUT_TOKENS: usize = 5 + 9 + 3 * 4 + 1 + 3 + 6;
/// Tokens of their prompts.
pub(crate) const PROMPT_TOKENS: usize = 150 + 1 + 70 + 20 + 200 + 33;
/// Completions of them.
pub(crate) const COMPLETIONS: usize = 8;
