//! Decode steps that are padded to a shape, recorded and launched again: every logit is that of a step that was issued.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use deepinfer_engine::{
    Engine, EngineConfig, Event, GraphStats, LogitsObserver, ObservedRow, RequestId, SamplingParams,
};

use crate::reference::model;
use crate::requests::{request, text_tokens};

/// Ops, fills and copies of a decode step of the miniature in which no pair of tokens ends, and in which one does. Every one
/// of them is a launch of a kernel or a copy, so that these numbers must not grow.
const OPS: [usize; 2] = [394, 408];

/// Logits as bits, by request, completion and position.
type Rows = BTreeMap<(RequestId, usize, usize), Vec<u32>>;

struct Collect(Rc<RefCell<Rows>>);

impl LogitsObserver for Collect {
    fn row(&mut self, row: &ObservedRow<'_>) {
        let bits: Vec<u32> = row.logits.iter().map(|logit| logit.to_bits()).collect();
        let mut rows = self.0.borrow_mut();
        // A row that runs again after a preemption is the same.
        let known = rows.entry((row.request, row.completion, row.position)).or_insert_with(|| bits.clone());
        assert_eq!(*known, bits, "position {} of {:?}", row.position, row.request);
    }
}

/// A random choice, the same in every run.
fn noise(seed: u64, at: u64, end: usize) -> usize {
    let mixed = (seed ^ at.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    ((mixed ^ mixed >> 29).wrapping_mul(0x94D0_49BB_1331_11EB) >> 33) as usize % end
}

/// Requests of many lengths that come, are preempted and end at different times: all logits and tokens.
fn run(seed: u64, graphs: bool) -> (Rows, BTreeMap<RequestId, Vec<Vec<u32>>>, Option<GraphStats>) {
    let config = EngineConfig {
        max_num_seqs: 12,
        max_num_batched_tokens: 600,
        pages: Some(48),
        async_scheduling: seed.is_multiple_of(2),
        decode_graphs: Some(graphs),
        ..EngineConfig::default()
    };
    let rows: Rc<RefCell<Rows>> = Rc::default();
    let observer = Box::new(Collect(rows.clone()));
    let mut engine = Engine::builder(model()).config(config).observe(observer).build().expect("an engine");
    let text = text_tokens();
    // One grows over the first class of lengths.
    let long: Vec<u32> = text.iter().chain(&text).copied().take(1010).collect();
    let mut ids = Vec::new();
    let mut tokens = BTreeMap::new();
    for turn in 0_u64.. {
        if turn % 3 == 0 && ids.len() < 14 {
            let number = ids.len() as u64;
            let length = [1, 2, 3, 30, 127, 128, 129, 300][noise(seed, 100 + number, 8)];
            let prompt = if number == 2 { &long[..] } else { &text[noise(seed, 200 + number, 300)..][..length] };
            let params = SamplingParams {
                max_tokens: Some(if number == 2 { 40 } else { 4 + noise(seed, 300 + number, 30) }),
                n: 1 + usize::from(number == 5) * 2,
                temperature: if number.is_multiple_of(2) { 0.0 } else { 0.9 },
                seed: Some(number),
                ignore_eos: true,
                golden_token_ids: if number == 7 { vec![11, 12] } else { Vec::new() },
                ..SamplingParams::default()
            };
            ids.push(engine.submit(request(number, prompt, params)).expect("it is valid"));
        }
        if noise(seed, 400 + turn, 9) == 0 && !ids.is_empty() {
            engine.preempt(ids[noise(seed, 500 + turn, ids.len())]);
        }
        engine.step();
        for (id, event) in engine.events() {
            if let Event::Finished(output) = event {
                tokens.insert(id, output.outputs.iter().map(|completion| completion.token_ids()).collect());
            }
        }
        if ids.len() == 14 && !engine.has_work() {
            break;
        }
    }
    let stats = engine.graph_stats();
    drop(engine);
    (Rc::into_inner(rows).expect("the engine is gone").into_inner(), tokens, stats)
}

#[test]
fn launched_steps_give_the_bits_of_issued_ones() {
    for seed in 0..2 {
        let (rows, tokens, none) = run(seed, false);
        assert_eq!(none, None);
        let (recorded_rows, recorded_tokens, stats) = run(seed, true);
        assert_eq!(tokens, recorded_tokens, "seed {seed}");
        assert!(rows == recorded_rows, "seed {seed}: logits differ");
        let stats = stats.expect("steps are recorded");
        assert!(stats.launched >= 20 && stats.recorded >= 4, "seed {seed}: {stats:?}");
    }
}

#[test]
fn a_decode_step_of_the_miniature_has_so_many_launches() {
    let config = EngineConfig { max_num_seqs: 1, pages: Some(8), decode_graphs: Some(true), ..EngineConfig::default() };
    let mut engine = Engine::builder(model()).config(config).build().expect("an engine");
    let params = SamplingParams { max_tokens: Some(40), ignore_eos: true, ..SamplingParams::default() };
    engine.submit(request("one", &text_tokens()[..20], params)).expect("it is valid");
    (0..20).for_each(|_| engine.step());
    let mut ops = [0, 1].map(|_| {
        engine.step();
        engine.graph_stats().expect("steps are recorded").ops
    });
    ops.sort_unstable();
    assert_eq!(ops, OPS);
}
