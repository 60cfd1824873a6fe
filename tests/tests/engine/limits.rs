//! Who is served when: priorities, steps of one kind, limits of the queue. None of it changes what a request gets.

use std::cell::Cell;
use std::rc::Rc;

use deepinfer_engine::{Engine, EngineConfig, EngineError, Event, Policy, RequestError, SamplingParams};
use deepinfer_engine::{RequestOutput, StepHook, StepPlan};
use deepinfer_model::KvCache;

use crate::reference::{Reference, model};
use crate::requests::{found, mixed, request, text_tokens};

fn build(config: EngineConfig) -> Engine {
    Engine::builder(model()).config(config).build().expect("an engine")
}

/// Outputs in the order in which they end.
fn run(engine: &mut Engine) -> Vec<RequestOutput> {
    let mut outputs = Vec::new();
    while engine.has_work() {
        engine.step();
        outputs.extend(engine.events().filter_map(|(_, event)| match event {
            Event::Finished(output) => Some(*output),
            Event::Token(_) => None,
        }));
    }
    outputs
}

#[test]
fn priorities_decide_who_runs_first_and_who_is_preempted() {
    let (reference, text) = (Reference::new(), text_tokens());
    let params = |priority, max_tokens| SamplingParams {
        max_tokens: Some(max_tokens),
        temperature: 0.9,
        seed: Some(11),
        priority,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    for (policy, order) in [(Policy::Fcfs, ["0", "1", "2", "3"]), (Policy::Priority, ["2", "1", "3", "0"])] {
        let mut engine = build(EngineConfig { max_num_seqs: 1, pages: Some(8), policy, ..EngineConfig::default() });
        for (i, priority) in [2, 1, -1, 1].into_iter().enumerate() {
            engine.submit(request(i, &text[i..i + 9], params(priority, 4))).expect("it is valid");
        }
        let outputs = run(&mut engine);
        assert_eq!(outputs.iter().map(|output| output.id.as_str()).collect::<Vec<_>>(), order, "{policy:?}");
    }
    // Two requests that need two pages each, and three pages. The one that came first is the first to need its second page:
    // it keeps it, unless it ranks behind the other.
    for (policy, preempted) in [(Policy::Fcfs, None), (Policy::Priority, Some("low"))] {
        let config =
            EngineConfig { max_num_seqs: 2, pages: Some(3), watermark: 0.0, policy, ..EngineConfig::default() };
        let mut engine = build(config);
        let requests = [request("low", &text[..125], params(5, 20)), request("high", &text[200..320], params(1, 20))];
        for request in &requests {
            engine.submit(request.clone()).expect("it is valid");
        }
        for output in run(&mut engine) {
            let request = requests.iter().find(|request| request.id == output.id).expect("one of them");
            assert_eq!(output.preemptions > 0, Some(output.id.as_str()) == preempted, "{policy:?}, {}", output.id);
            assert_eq!(found(&output, &output.outputs[0]), reference.run(request, 0), "{policy:?}, {}", output.id);
        }
    }
}

/// Counts steps with rows of prompts, without, and with both.
struct Kinds(Rc<[Cell<usize>; 3]>);

impl StepHook for Kinds {
    fn before_wait(&mut self, plan: &StepPlan, _: &KvCache) {
        let prompts = plan.requests().iter().filter(|planned| planned.phase == plan.requests()[0].phase).count();
        let kind = match (prompts == plan.requests().len(), plan.requests()[0].start) {
            (false, _) => 2,
            // No request goes on from its first token.
            (true, 0) => 0,
            (true, _) => 1,
        };
        self.0[kind].set(self.0[kind].get() + 1);
    }
}

#[test]
fn steps_of_one_kind_give_the_same_tokens() {
    let requests = mixed(10);
    let reference = Reference::new();
    let expected: Vec<_> = requests.iter().map(|request| reference.run(request, 0)).collect();
    for (pure_steps, async_scheduling) in [(true, true), (true, false), (false, true)] {
        let kinds = Rc::new([const { Cell::new(0) }; 3]);
        let config = EngineConfig {
            max_num_seqs: 4,
            max_num_batched_tokens: 100,
            pages: Some(64),
            pure_steps,
            async_scheduling,
            ..EngineConfig::default()
        };
        let engine = Engine::builder(model()).config(config).hook(Box::new(Kinds(kinds.clone())));
        let outputs = engine.build().expect("an engine").run_all(requests.clone());
        for ((output, expected), request) in outputs.iter().zip(&expected).zip(&requests) {
            assert_eq!(&found(output, &output.outputs[0]), expected, "pure {pure_steps}, request {}", request.id);
        }
        let [prefill, decode, both] = [0, 1, 2].map(|kind: usize| kinds[kind].get());
        assert!(prefill > 0 && decode > 0, "{kinds:?}");
        assert_eq!(both > 0, !pure_steps, "{kinds:?}");
    }
}

#[test]
fn a_full_queue_refuses_with_both_numbers_and_takes_the_request_later() {
    let text = text_tokens();
    let params = SamplingParams { max_tokens: Some(6), ..SamplingParams::default() };
    let base = EngineConfig { max_num_seqs: 1, pages: Some(8), ..EngineConfig::default() };
    let refused = |engine: &mut Engine, length: usize| {
        let error = engine.submit(request("late", &text[..length], params.clone())).expect_err("the queue is full");
        assert_eq!(error.code(), "queue_full");
        match error {
            EngineError::Request(RequestError::QueueFull { name, waiting, added, most, .. }) => {
                assert!(error.to_string().contains(name), "{error}");
                (name, waiting, added, most)
            }
            error => panic!("{error}"),
        }
    };
    let take = |engine: &mut Engine, length: usize| {
        engine.submit(request("taken", &text[..length], params.clone())).expect("there is room");
    };
    let mut engine = build(EngineConfig { max_num_queued_reqs: Some(2), ..base.clone() });
    (0..2).for_each(|_| take(&mut engine, 9));
    assert_eq!(refused(&mut engine, 9), ("max_num_queued_reqs", 2, 1, 2));
    // The first one runs and does not wait any more.
    engine.step();
    take(&mut engine, 9);
    assert_eq!(refused(&mut engine, 9), ("max_num_queued_reqs", 2, 1, 2));
    assert_eq!(run(&mut engine).len(), 3);

    let mut engine = build(EngineConfig { max_num_queued_tokens: Some(50), ..base });
    // More than the limit, but nothing else waits.
    take(&mut engine, 60);
    assert_eq!(refused(&mut engine, 1), ("max_num_queued_tokens", 60, 1, 50));
    engine.step();
    take(&mut engine, 30);
    assert_eq!(refused(&mut engine, 21), ("max_num_queued_tokens", 30, 21, 50));
    take(&mut engine, 20);
    assert_eq!((engine.stats().waiting, engine.stats().waiting_tokens), (2, 50));
    assert_eq!(run(&mut engine).len(), 3);
}
