//! The asynchronous mode of cpu-reference through the core: whoever waits where he must gets the same bits as ever, and
//! whoever does not is found out.

#![forbid(unsafe_code)]

use std::rc::Rc;

use deepinfer_engine::{Engine, EngineConfig, Request, SamplingParams};
use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::{Model, Numerics};
use deepinfer_ops::traits::*;
use deepinfer_ops::{Device, Dispatch, Format, OpError, Tensor, args};
use deepinfer_parity::{Check, Outcome, cases, ops, run_case};
use deepinfer_runtime::{OpenDevice, Runtime, SearchPath, Selection};
use deepinfer_tests::{Tensors, fixture, miniature};
use serde_json::Value;

fn open() -> OpenDevice {
    let runtime = Runtime::new(SearchPath::from_environment());
    runtime.open(&Selection::parse("cpu?async=7").expect("a selection")).unwrap_or_else(|e| panic!("{e}"))
}

/// Up to this many rounds a test waits for an order of two streams that must occur.
const ROUNDS: i32 = 5_000;

/// Elements of a tensor.
const LEN: usize = 256;

/// A table that one stream writes and another reads.
struct Table {
    first: Rc<OpenDevice>,
    second: Rc<OpenDevice>,
    table: Tensor,
    index: Tensor,
    out: Tensor,
}

impl Table {
    fn new() -> Self {
        let first = Rc::new(open());
        let second = Rc::new(first.new_stream().expect("a stream"));
        let tensors = Tensors(first.clone());
        let table = tensors.i32(&[1, LEN], &vec![0; LEN]);
        let index = tensors.i32(&[1], &[0]);
        let out = tensors.poisoned(Format::I32, &[1, 1, LEN]);
        Self { first, second, table, index, out }
    }

    /// The first stream writes a number, the second one reads it, after an event or at once.
    fn round(&self, number: u8, ordered: bool) -> Vec<i32> {
        self.first.fill(&self.table, number).expect("a fill");
        if ordered {
            let written = self.first.record_event().expect("an event");
            self.second.wait_event(&written).expect("a wait");
        }
        let call = args::Gather { table: &self.table, index: &self.index, repeat: 1, out: &self.out };
        self.second.gather(&call).expect("a valid call");
        let found = Tensors(self.second.clone()).ints(&self.out);
        // The next round begins when this one is over.
        self.first.synchronize().expect("a fill");
        found
    }
}

#[test]
fn a_stream_that_waits_for_an_event_sees_what_came_before_it() {
    let table = Table::new();
    for round in 1..=100 {
        assert_eq!(table.round(round, true), vec![i32::from_ne_bytes([round; 4]); LEN], "round {round}");
    }
}

#[test]
fn a_missing_wait_gives_wrong_results() {
    let table = Table::new();
    let stale = (1..ROUNDS).find(|&round| {
        let number = (round % 251) as u8;
        table.round(number, false) != vec![i32::from_ne_bytes([number; 4]); LEN]
    });
    assert!(stale.is_some(), "in {ROUNDS} rounds nothing was read too early");
}

#[test]
fn wrong_values_are_reported_by_the_next_wait_under_the_name_of_the_op() {
    let device = Rc::new(open());
    let tensors = Tensors(device.clone());
    let (table, index) = (tensors.f32(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), tensors.i32(&[1], &[2]));
    // Each format is one that the op knows; that they do not go together is for the kernel to find.
    for wrong in [Format::I32, Format::U8] {
        let out = tensors.poisoned(wrong, &[1, 1, 2]);
        device.dispatch(&args::Gather { table: &table, index: &index, repeat: 1, out: &out }).expect("not known yet");
        match device.synchronize() {
            Err(OpError::Backend { origin, message }) => {
                assert_eq!(origin, "cpu/gather");
                assert!(message.contains(&format!("gather: out is {wrong} and table F32")), "{message}");
            }
            other => panic!("{other:?}"),
        }
        device.synchronize().expect("reported once");
    }
    // Shapes are refused before that, and the device works on.
    let (short, out) = (tensors.poisoned(Format::F32, &[1, 2, 2]), tensors.poisoned(Format::F32, &[1, 1, 2]));
    let call = args::Gather { table: &table, index: &index, repeat: 1, out: &short };
    assert!(device.dispatch(&call).unwrap_err().to_string().contains("out"));
    device.gather(&args::Gather { table: &table, index: &index, repeat: 1, out: &out }).expect("a valid call");
    assert_eq!(tensors.floats(&out), [5.0, 6.0]);
}

#[test]
fn recorded_ops_run_later_too() {
    let device = Rc::new(open());
    let tensors = Tensors(device.clone());
    let (table, index) = (tensors.i32(&[2, 1], &[10, 20]), tensors.i32(&[2], &[1, 0]));
    let out = tensors.poisoned(Format::I32, &[2, 1, 1]);
    let call = args::Gather { table: &table, index: &index, repeat: 1, out: &out };
    let list = device.record(|| device.gather(&call)).expect("a list");
    for first in 0..20_i32 {
        let bytes: Vec<u8> = [first, -first].iter().flat_map(|v| v.to_le_bytes()).collect();
        device.upload(&table, &bytes).expect("an upload");
        device.launch(&list).expect("a launch");
        assert_eq!(tensors.ints(&out), [-first, first]);
    }
}

#[test]
fn parity_holds_a_sample_of_every_check() {
    let device = open();
    let checks = [
        Check::Value,
        Check::Strided,
        Check::Empty,
        Check::Poison,
        Check::Rows,
        Check::Twice,
        Check::Refusal,
        Check::Malformed,
    ];
    let (mut ran, mut failures) = (0, Vec::new());
    for case in ops().flat_map(|op| checks.into_iter().flat_map(move |check| cases(op, check, 0, Some(2)))) {
        ran += 1;
        match run_case(&device, &case) {
            Outcome::Passed { .. } => {}
            Outcome::Unsupported { reason } | Outcome::NotTried { reason } => {
                failures.push(format!("{case}: did not run: {reason}"));
            }
            Outcome::Failed(failure) => failures.push(format!("{case}: {failure}")),
        }
    }
    assert!(ran > 8 * ops().count(), "only {ran} cases");
    assert!(failures.is_empty(), "{} of {ran} failed:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn the_miniature_generates_the_same_tokens() {
    let text = std::fs::read_to_string(fixture("expected.json")).expect("the fixture");
    let expected: Value = serde_json::from_str(&text).expect("the fixture's form");
    let ids = |list: &Value| -> Vec<u32> {
        list.as_array().expect("a list").iter().map(|id| id.as_u64().expect("a token") as u32).collect()
    };
    let checkpoint = Checkpoint::open(&miniature()).expect("the miniature");
    let (model, _) = Model::load(Rc::new(open()), &checkpoint, Numerics::EXACT, &mut |_, _| {}).expect("it loads");
    let config = EngineConfig { max_num_seqs: 2, ..EngineConfig::default() };
    let mut engine = Engine::builder(model).config(config).build().expect("an engine");
    // The golden test compares every prompt up to its first near tie; these two have none in their first tokens.
    let prompts = &expected["prompts"].as_array().expect("prompts")[..2];
    let requests = prompts.iter().map(|prompt| Request {
        id: prompt["name"].to_string(),
        prompt_token_ids: ids(&prompt["prompt_ids"]),
        params: SamplingParams { max_tokens: Some(12), ..SamplingParams::default() },
    });
    for (output, prompt) in engine.run_all(requests.collect()).iter().zip(prompts) {
        assert_eq!(output.outputs[0].token_ids(), ids(&prompt["tokens"])[..12], "{}", output.id);
    }
}
