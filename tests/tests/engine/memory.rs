//! The division of a device's memory: what is refused and what would fit, and that what was planned is all that is taken.

use std::cell::Cell;
use std::rc::Rc;

use deepinfer_engine::{BuildError, Engine, EngineConfig, SamplingParams};
use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::memory_plan::FreeMemory;
use deepinfer_model::{Model, Numerics, TablePlace};
use deepinfer_ops::{Allocation, Between, Device, OpError};
use deepinfer_runtime::OpenDevice;
use deepinfer_tests::{miniature, open_device};

use crate::requests::{mixed, request, text_tokens};

fn checkpoint() -> Checkpoint {
    Checkpoint::open(&miniature()).expect("the miniature")
}

#[test]
fn what_does_not_fit_is_refused_with_the_number_of_requests_that_does() {
    let checkpoint = checkpoint();
    let plan = |config: &EngineConfig, free| config.plan(&checkpoint, Numerics::DEPLOY, free);
    let limits = EngineConfig {
        max_num_seqs: 100,
        max_num_batched_tokens: 200,
        max_model_len: Some(1024),
        memory_utilization: 1.0,
        ..EngineConfig::default()
    };
    let all = plan(&limits, 1 << 40).expect("a terabyte is enough");
    let memory = all.memory();
    // 100 requests of eight pages, slots for a fifth more and for rows that pad, and two checkpoints each.
    assert_eq!((memory.pages, memory.request.slots, memory.request.checkpoints), (800, 122, 200));
    assert!(all.to_string().contains("a step of 200 rows, 100 requests of at most 1,024 tokens"), "{all}");

    // Room for half of the slots and checkpoints.
    let fixed = memory.needs.weights + memory.needs.temporaries;
    let free = fixed + 160 * memory.needs.slot + 8 * memory.needs.page;
    let error = plan(&limits, free).expect_err("it is not enough");
    let BuildError::Memory { fits: Some(fits), .. } = error else { panic!("{error:?}") };
    let sentence = error.to_string();
    for part in
        ["state slots and checkpoints need ", "free bytes may be used", &format!("max_num_seqs of at most {fits} ")]
    {
        assert!(sentence.contains(part), "{part:?} is missing in {sentence:?}");
    }
    // The same step, with fewer requests at a time.
    let fewer = |max_num_seqs| EngineConfig { max_num_seqs, ..limits.clone() };
    assert!((49..=51).contains(&fits), "{fits}");
    plan(&fewer(fits), free).expect("it was said to fit");

    // Everything fits but the pages of one request.
    let error =
        plan(&limits, fixed + 322 * memory.needs.slot + 7 * memory.needs.page).expect_err("seven are not eight");
    let sentence = error.to_string();
    for part in
        ["a request of 1024 tokens needs 8 pages, but there are 7", "at most 896 tokens", "max_num_seqs of at most 9"]
    {
        assert!(sentence.contains(part), "{part:?} is missing in {sentence:?}");
    }
    let shorter = EngineConfig { max_model_len: Some(896), ..limits.clone() };
    plan(&shorter, fixed + 322 * memory.needs.slot + 7 * memory.needs.page).expect("it was said to fit");
}

/// A device that counts what is taken of it.
struct Counted {
    inner: OpenDevice,
    bytes: Cell<u64>,
}

impl Between for Counted {
    fn inner(&self) -> &dyn Device {
        &self.inner
    }

    fn on_allocate(&self, bytes: usize) -> Result<Allocation, OpError> {
        self.bytes.set(self.bytes.get() + bytes.next_multiple_of(256) as u64);
        self.inner.allocate(bytes)
    }
}

#[test]
fn an_engine_takes_what_was_planned_and_nothing_later() {
    let checkpoint = checkpoint();
    let config = EngineConfig {
        max_num_seqs: 6,
        max_num_batched_tokens: 96,
        max_model_len: Some(700),
        ..EngineConfig::default()
    };
    let device = Rc::new(Counted { inner: open_device(), bytes: Cell::new(0) });
    let plan = config.plan(&checkpoint, Numerics::DEPLOY, device.memory().expect("it answers").0).expect("it fits");
    let planned = plan.memory().total_bytes();
    let shared: Rc<dyn Device> = device.clone();
    let (model, _) = Model::load(shared, &checkpoint, Numerics::DEPLOY, &mut |_, _| {}).expect("the miniature loads");
    let mut engine = Engine::builder(model).plan(plan).build().expect("an engine");
    let taken = device.bytes.get();
    // Besides: the sampler's tokens.
    assert!(taken >= planned && taken < planned + 4096, "{taken} bytes for {planned}");

    // Long prompts in company, all of whose rows report logits, and drawn rows of every kind.
    let text = text_tokens();
    let long = |i: usize| {
        let params =
            SamplingParams { max_tokens: Some(4), prompt_logprobs: Some(1), n: 2, ..SamplingParams::default() };
        request(1000 + i, &text[i..600], params)
    };
    let requests: Vec<_> = mixed(12).into_iter().chain((0..4).map(long)).collect();
    let outputs = engine.run_all(requests);
    assert!(outputs.iter().all(|output| output.outputs.iter().all(|completion| completion.error.is_none())));
    assert_eq!(device.bytes.get(), taken, "something was allocated while requests ran");

    // Without a plan, an engine divides what is free beside the model in the same way.
    let model = Model::load(device.clone(), &checkpoint, Numerics::DEPLOY, &mut |_, _| {}).expect("it loads").0;
    let before = device.bytes.get();
    let again = Engine::builder(model).config(config).build().expect("an engine");
    assert_eq!(again.stats().usable_pages, engine.stats().usable_pages);
    let weights = checkpoint_weights(&checkpoint);
    assert!(device.bytes.get() - before < planned + 4096 - weights, "the plan counts weights that are loaded");
}

/// Device bytes of the weights alone.
fn checkpoint_weights(checkpoint: &Checkpoint) -> u64 {
    EngineConfig::default().plan(checkpoint, Numerics::DEPLOY, 1 << 40).expect("it fits").memory().needs.weights
}

#[test]
fn engram_tables_in_memory_of_the_host_give_the_same_tokens() {
    let checkpoint = checkpoint();
    let config = EngineConfig {
        max_num_seqs: 6,
        max_num_batched_tokens: 96,
        max_model_len: Some(700),
        memory_utilization: 1.0,
        ..EngineConfig::default()
    };
    let all = config.plan(&checkpoint, Numerics::DEPLOY, 1 << 40).expect("a terabyte is enough");
    assert_eq!(all.memory().tables, TablePlace::Device);
    let run = |free: FreeMemory| {
        let plan = config.plan(&checkpoint, Numerics::DEPLOY, free).expect("it fits");
        let (tables, planned) = (plan.memory().tables, plan.memory().total_bytes());
        let device = Rc::new(Counted { inner: open_device(), bytes: Cell::new(0) });
        let loaded = Model::load_with(device.clone(), &checkpoint, Numerics::DEPLOY, tables, &mut |_, _| {});
        let mut engine = Engine::builder(loaded.expect("the miniature loads").0).plan(plan).build().expect("an engine");
        let taken = device.bytes.get();
        assert!(taken >= planned && taken < planned + 4096, "{tables:?}: {taken} bytes of the device for {planned}");
        let outputs = engine.run_all(mixed(8));
        let tokens: Vec<_> =
            outputs.iter().flat_map(|output| &output.outputs).map(|completion| completion.token_ids()).collect();
        (tables, tokens)
    };
    let enough = all.memory().total_bytes();
    let (whole, expected) = run(FreeMemory { device: enough, host: Some(1 << 40) });
    // A byte less than the fixed parts and the pages of one request need.
    let least = all.memory().fixed_bytes() + 6 * all.memory().needs.page;
    let (split, tokens) = run(FreeMemory { device: least - 1, host: Some(all.memory().needs.tables) });
    assert_eq!((whole, split), (TablePlace::Device, TablePlace::Host));
    assert_eq!(tokens, expected);
}
