//! The host waits once for each step, and what nobody needs is given back at once.

use std::rc::Rc;

use deepinfer_engine::SamplingParams;
use deepinfer_engine::{Engine, EngineConfig};
use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::{Model, Numerics};
use deepinfer_ops::Device;
use deepinfer_tests::{miniature, open_device};

use crate::requests::{request, text_tokens};

fn params(max_tokens: usize) -> SamplingParams {
    SamplingParams { max_tokens: Some(max_tokens), ignore_eos: true, ..SamplingParams::default() }
}

#[test]
fn a_steady_step_waits_once() {
    let device = Rc::new(open_device());
    let checkpoint = Checkpoint::open(&miniature()).expect("the miniature");
    let shared: Rc<dyn Device> = device.clone();
    let (model, _) = Model::load(shared, &checkpoint, Numerics::DEPLOY, &mut |_, _| {}).expect("the miniature loads");
    let config = EngineConfig { max_num_seqs: 8, pages: Some(32), ..EngineConfig::default() };
    let mut engine = Engine::builder(model).config(config).build().expect("an engine");
    let text = text_tokens();
    for i in 0..4 {
        let params = SamplingParams { logprobs: (i == 1).then_some(3), presence_penalty: 0.5 * i as f32, ..params(40) };
        engine.submit(request(i, &text[i..i + 20], params)).expect("it is valid");
    }
    // The first turn has no step to wait for.
    engine.step();
    for turn in 0..20 {
        let (before, steps) = (device.blocking_waits(), engine.stats().steps);
        engine.step();
        assert_eq!(engine.stats().steps - steps, 1);
        assert_eq!(device.blocking_waits() - before, 1, "turn {turn}");
    }
}

#[test]
fn pages_of_an_aborted_request_are_free_after_two_steps() {
    let config = EngineConfig { max_num_seqs: 4, pages: Some(16), prefix_caching: false, ..EngineConfig::default() };
    let mut engine = Engine::builder(crate::reference::model()).config(config).build().expect("an engine");
    let text = text_tokens();
    engine.submit(request("stays", &text[..10], params(100))).expect("it is valid");
    for steps in 0..12 {
        let id = engine.submit(request(steps, &text[..300], params(100))).expect("it is valid");
        (0..steps).for_each(|_| engine.step());
        assert!(engine.abort(id));
        engine.step();
        engine.step();
        // The other request has one page.
        let stats = engine.stats();
        assert_eq!((stats.free_pages, stats.running), (15, 1), "aborted after {steps} steps: {stats:?}");
    }
}
