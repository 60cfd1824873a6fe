//! What a neighbour asks for changes neither the result of a row nor the kernel that draws it.

use std::cell::RefCell;
use std::rc::Rc;

use deepinfer_engine::{Engine, EngineConfig, Event, RequestId, SamplingParams};
use deepinfer_ops::{OpCall, OpError};
use deepinfer_runtime::OpenDevice;

use crate::reference::Reference;
use crate::requests::{found, request, text_tokens};
use crate::tapped::{Tap, model};

/// Notes the ops after the logits.
#[derive(Default)]
struct Draws(Vec<String>);

impl Tap for Draws {
    fn op(&mut self, _: &OpenDevice, call: &dyn OpCall) -> Result<(), OpError> {
        let name = &call.info().name;
        if ["adjust_logits", "apply_token_mask", "fused_sample"].contains(&name.to_string().as_str()) {
            self.0.push(name.to_string());
        }
        Ok(())
    }
}

const FEATURES: usize = 7;

/// Asks for the features whose bits are set.
fn neighbour(features: usize) -> SamplingParams {
    let mut params = SamplingParams {
        max_tokens: Some(2),
        seed: Some(features as u64),
        temperature: 0.0,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let asks = |bit: usize| features >> bit & 1 == 1;
    if asks(0) {
        params.temperature = 1.7;
    }
    if asks(1) {
        params.top_k = 5;
    }
    if asks(2) {
        (params.top_p, params.min_p) = (0.5, 0.05);
    }
    if asks(3) {
        (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) = (1.5, 1.0, -1.0);
    }
    if asks(4) {
        params.logit_bias = [(5, 30.0), (6, f32::NEG_INFINITY)].into();
        params.min_tokens = 1;
        params.stop_token_ids = vec![7];
    }
    if asks(5) {
        params.allowed_token_ids = Some((4..900).collect());
    }
    if asks(6) {
        (params.logprobs, params.prompt_logprobs) = (Some(4), Some(2));
    }
    params
}

/// One request draws for as long as neighbours with all combinations of features come and go.
#[test]
fn no_combination_of_a_neighbours_features_changes_a_row_or_the_ops_that_draw_it() {
    let text = text_tokens();
    let params = SamplingParams {
        max_tokens: Some(3 * (1 << FEATURES) + 40),
        temperature: 0.9,
        top_p: 0.95,
        seed: Some(77),
        logprobs: Some(1),
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let watched = request("watched", &text[..20], params);
    let expected = Reference::new().run(&watched, 0);

    let draws = Rc::new(RefCell::new(Draws::default()));
    let config = EngineConfig { max_num_seqs: 2, pages: Some(32), prefix_caching: false, ..EngineConfig::default() };
    let mut engine = Engine::builder(model(&draws)).config(config).build().expect("an engine");
    let id = engine.submit(watched).expect("it is valid");
    let (mut tokens, mut output) = (0, None);
    let mut step = |engine: &mut Engine, ended: &mut Vec<RequestId>| {
        engine.step();
        for (of, event) in engine.events() {
            match event {
                Event::Token(_) if of == id => tokens += 1,
                Event::Finished(finished) if of == id => output = Some(*finished),
                Event::Finished(_) => ended.push(of),
                Event::Token(_) => {}
            }
        }
    };
    for features in 0..1 << FEATURES {
        let beside = engine.submit(request(features, &text[30..33], neighbour(features))).expect("it is valid");
        draws.borrow_mut().0.clear();
        let mut ended = Vec::new();
        while !ended.contains(&beside) {
            step(&mut engine, &mut ended);
        }
        // The rows that come back to this neighbour were drawn with these ops and no others.
        let ops = std::mem::take(&mut draws.borrow_mut().0);
        let count = |name: &str| ops.iter().filter(|op| *op == name).count();
        let steps = count("fused_sample");
        assert!((2..=4).contains(&steps), "features {features:#b}: {ops:?}");
        for (name, bits) in [("adjust_logits", 0b1_1000), ("apply_token_mask", 0b10_0000)] {
            assert_eq!(count(name) > 0, features & bits != 0, "features {features:#b}: {ops:?}");
            assert!(count(name) <= steps, "features {features:#b}: {ops:?}");
        }
        assert_eq!(engine.stats().running, 1, "the request that is watched has ended too early");
    }
    while engine.has_work() {
        step(&mut engine, &mut Vec::new());
    }
    let output = output.expect("it has ended");
    assert_eq!(tokens, expected.tokens.len());
    assert_eq!(found(&output, &output.outputs[0]), expected);
}
