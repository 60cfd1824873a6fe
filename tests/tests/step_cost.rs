//! What a step of the engine may take of the host's allocator: nothing that grows with what a request has behind it.
//!
//! Times are not measured here: see `deepinfer bench sched`.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::rc::Rc;

use deepinfer_engine::{Engine, EngineConfig, Request, SamplingParams};
use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::{Model, Numerics};
use deepinfer_ops::CountingDevice;
use deepinfer_tests::miniature;

thread_local! {
    static TAKEN: Cell<Taken> = const { Cell::new(Taken { times: 0, bytes: 0 }) };
}

/// What was asked of the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Taken {
    times: usize,
    bytes: usize,
}

/// Counts what each thread allocates.
struct Counting;

impl Counting {
    fn count(bytes: usize) {
        // A thread that ends counts no more.
        let _ = TAKEN.try_with(|taken| {
            let Taken { times, bytes: before } = taken.get();
            taken.set(Taken { times: times + 1, bytes: before + bytes });
        });
    }
}

// SAFETY: the system's allocator does the work; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size());
        // SAFETY: the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the same contract.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        Self::count(new_size);
        // SAFETY: the same contract.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What this thread takes while `work` runs.
fn taken(work: impl FnOnce()) -> Taken {
    let before = TAKEN.get();
    work();
    let after = TAKEN.get();
    Taken { times: after.times - before.times, bytes: after.bytes - before.bytes }
}

/// Tokens of each prompt.
const PROMPT: usize = 16;
/// Most tokens of a request, prompt and output.
const LONGEST: usize = 4000;

/// An engine on a device that computes nothing, whose requests all decode.
fn decoding(sequences: usize) -> Engine {
    let checkpoint = Checkpoint::open(&miniature()).unwrap();
    let model = Model::without_weights(Rc::new(CountingDevice::new()), checkpoint.config(), Numerics::DEPLOY).unwrap();
    let config = EngineConfig {
        max_num_seqs: sequences,
        pages: Some(sequences * LONGEST.div_ceil(128)),
        ..EngineConfig::default()
    };
    let mut engine = Engine::builder(model).config(config).build().unwrap();
    for number in 0..sequences {
        let params = SamplingParams {
            max_tokens: Some(LONGEST - PROMPT),
            seed: Some(number as u64),
            ignore_eos: true,
            ..SamplingParams::default()
        };
        let prompt_token_ids = (0..PROMPT).map(|at| (1 + number * PROMPT + at) as u32 % 4096).collect();
        engine.submit(Request { id: number.to_string(), prompt_token_ids, params }).unwrap();
    }
    (0..20).for_each(|_| turn(&mut engine));
    engine
}

fn turn(engine: &mut Engine) {
    engine.step();
    engine.events().for_each(drop);
}

/// Advances until outputs have `tokens` tokens, and says what each of the next `turns` turns takes.
fn taken_at(engine: &mut Engine, tokens: usize, turns: usize) -> Vec<Taken> {
    while (engine.stats().steps as usize) < tokens {
        turn(engine);
    }
    (0..turns).map(|_| taken(|| turn(engine))).collect()
}

#[test]
fn a_step_takes_the_same_whatever_lies_behind_it() {
    let mut engine = decoding(32);
    // A page and a half each, so that both windows see the end of a page. Lists that are kept (tokens, pages, hashes of
    // pages) double when they have 2^k entries; the windows lie between, at pages 11 to 12 and 26 to 27.
    let early = taken_at(&mut engine, 1300, 192);
    let late = taken_at(&mut engine, 1300 + 15 * 128, 192);
    assert_eq!(engine.stats().preemptions, 0);
    for (turn, (early, late)) in early.iter().zip(&late).enumerate() {
        assert_eq!(early, late, "turn {turn} of the windows");
    }
}

#[test]
fn requests_share_the_allocations_of_a_step() {
    // Between two ends of pages, where nothing is registered.
    let times = |sequences: usize| taken_at(&mut decoding(sequences), 300, 50).iter().map(|t| t.times).max();
    let (few, many) = (times(4), times(64));
    assert_eq!(few, many, "4 and 64 requests");
    eprintln!("{few:?} allocations in a turn");
}
