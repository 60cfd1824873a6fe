//! A million random events.
//!
//! Pools are small and pages short, so that everything happens often: hits, forks, evictions, preemptions, late stops. After
//! every event all invariants are checked; every token of every request is compared with what its tokens alone determine;
//! at the end all requests must finish within a bound and everything must be back.

use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use crate::config::{Policy, SchedulerConfig};
use crate::error::AddError;
use crate::prefix::page_hash;
use crate::request::{Attachment, RequestSpec};

use super::world::{Seen, World};

const EVENTS: u64 = 1_000_000;
const EVENTS_PER_CASE: usize = 400;

/// Repeats a failed run.
const SEED: &str = "DEEPINFER_SCHEDULER_SEED";

#[derive(Debug, Clone)]
enum Event {
    Add {
        prompt: usize,
        variant: u32,
        max_tokens: usize,
        stop_at: usize,
        n: usize,
        priority: i32,
        logits: bool,
        salt: u8,
        image: Option<usize>,
    },
    Schedule,
    Complete,
    Abort(usize),
    Preempt(usize),
    Evict(usize),
    Reset,
}

fn event() -> impl Strategy<Value = Event> {
    let sizes = (1..40_usize, 0..4_u32, 1..30_usize, 1..60_usize, 0..8_usize);
    let rest = (-1..2_i32, 0..8_u32, 0..4_u8, 0..120_usize);
    let add = (sizes, rest).prop_map(|((prompt, variant, max_tokens, stop_at, n), (priority, logits, salt, image))| {
        Event::Add {
            prompt,
            variant,
            max_tokens,
            stop_at,
            n: [1, 1, 1, 1, 1, 2, 3, 4][n],
            priority,
            logits: logits == 0,
            salt,
            image: (image < prompt).then_some(image),
        }
    });
    prop_oneof![
        8 => add,
        40 => Just(Event::Schedule),
        40 => Just(Event::Complete),
        2 => (0..100_usize).prop_map(Event::Abort),
        2 => (0..100_usize).prop_map(Event::Preempt),
        2 => (0..6_usize).prop_map(Event::Evict),
        1 => Just(Event::Reset),
    ]
}

fn config() -> impl Strategy<Value = (SchedulerConfig, bool)> {
    let sizes = (2..6_usize, 4..40_usize, 0..2_usize, 1..7_usize, 0..3_usize, 0..8_usize);
    let limits = (1..4_usize, 0..3_usize, 0..30_usize, 0..12_usize, 0..4_u32, 1..4_usize);
    let switches = (any::<bool>(), 0..4_u32, 0..5_u32, 0..4_u32, prop_oneof![Just(0.0), Just(0.1), Just(0.5)]);
    let queue = (0..40_usize, 0..400_usize);
    (sizes, limits, switches, queue).prop_map(|(sizes, limits, switches, (queued_requests, queued_tokens))| {
        let (priority, pure, caching, weak_hash, watermark) = switches;
        let (page_tokens, pages, reserved_pages, max_num_seqs, spare_slots, checkpoints) = sizes;
        let (depth, drafts, extra_budget, long_prefill_token_threshold, reserve_after, checkpoint_pages) = limits;
        let draft_tokens = drafts.min(page_tokens - 1);
        let config = SchedulerConfig {
            max_num_seqs,
            max_num_batched_tokens: max_num_seqs * (1 + draft_tokens) + extra_budget,
            long_prefill_token_threshold,
            policy: if priority { Policy::Priority } else { Policy::Fcfs },
            watermark,
            // Most cases have no limit that matters.
            max_num_queued_reqs: (queued_requests < 10).then_some(queued_requests),
            max_num_queued_tokens: (queued_tokens < 100).then_some(queued_tokens),
            pure_steps: pure == 0,
            depth,
            draft_tokens,
            reserve_after,
            page_tokens,
            reserved_pages,
            page_order_seed: (pure == 1).then_some(7),
            prefix_caching: caching > 0 && checkpoints > 0,
            checkpoints,
            checkpoint_pages,
            ..SchedulerConfig::new(pages, max_num_seqs + spare_slots)
        };
        (config, weak_hash == 0)
    })
}

/// Runs a case. Returns the number of events, steps that were needed to finish included, and what was seen.
fn run(config: SchedulerConfig, weak_hash: bool, events: &[Event]) -> (u64, Seen) {
    let hash = if weak_hash { |parent, tokens: &[u32], extra| page_hash(parent, tokens, extra) % 5 } else { page_hash };
    let mut world = World::with_hash(config, hash);
    for event in events {
        match *event {
            Event::Add { prompt, variant, max_tokens, stop_at, n, priority, logits, salt, image } => {
                // Prompts of one variant are beginnings of each other.
                let tokens: Vec<u32> = (0..prompt as u32).map(|at| (at * (variant + 1)) % 5).collect();
                // Half of the requests have no salt.
                let salt = [&[][..], &[], &[1], &[2]][usize::from(salt)];
                let attachment = image.map(|position| Attachment { position, digest: 7 });
                let spec = RequestSpec {
                    n,
                    priority,
                    prompt_logits: logits,
                    cache_salt: salt,
                    attachments: attachment.as_slice(),
                    ..RequestSpec::new(&tokens, max_tokens)
                };
                let (config, stats) = (world.scheduler.config(), world.scheduler.stats());
                let fits = config.pages_of(prompt + max_tokens - 1) <= config.usable_pages();
                let queued = [
                    (stats.waiting + n, config.max_num_queued_reqs),
                    (stats.waiting_tokens + n * prompt, config.max_num_queued_tokens),
                ];
                let has_room =
                    stats.waiting == 0 || queued.iter().all(|(then, most)| most.is_none_or(|most| *then <= most));
                let added = world.add_stopping(spec, stop_at);
                assert_eq!(added.is_ok(), fits && has_room);
                if let Err(AddError::QueueFull { .. }) = added {
                    world.seen.queue_full += 1;
                }
            }
            Event::Schedule => _ = world.schedule(),
            Event::Complete => _ = world.complete(),
            Event::Abort(which) => {
                if let Some(&id) = world.clients.keys().nth(which % world.clients.len().max(1)) {
                    world.abort(id);
                }
            }
            Event::Preempt(which) => {
                if let Some(&id) = world.clients.keys().nth(which % world.clients.len().max(1)) {
                    world.preempt(id);
                }
            }
            Event::Evict(pages) => _ = world.scheduler.evict(pages),
            Event::Reset => world.scheduler.reset_prefix_cache(),
        }
        world.check();
    }
    let before = world.scheduler.stats().steps;
    world.drain();
    world.check_nothing_leaked();
    (events.len() as u64 + world.scheduler.stats().steps - before, world.seen)
}

#[test]
fn a_million_random_events() {
    let seed = match std::env::var(SEED) {
        Ok(seed) => seed.parse().expect("a seed is a number"),
        Err(_) => RandomState::new().hash_one(0),
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&u64::to_le_bytes(seed));
    let cases = (EVENTS as usize / EVENTS_PER_CASE) as u32 * 11 / 10;
    let settings = Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(settings, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let seen = Mutex::new((0, Seen::default()));
    let case = (config(), prop::collection::vec(event(), 0..=2 * EVENTS_PER_CASE));
    let result = runner.run(&case, |((config, weak_hash), events)| {
        let run = std::panic::AssertUnwindSafe(|| run(config, weak_hash, &events));
        let (events, new) = std::panic::catch_unwind(run).map_err(|panic| {
            let message = panic.downcast_ref::<String>().cloned();
            let message = message.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            TestCaseError::fail(message.unwrap_or_default())
        })?;
        let mut seen = seen.lock().expect("one thread");
        seen.0 += events;
        seen.1.add(&new);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}\nrepeat with {SEED}={seed}");
    }
    let (events, seen) = seen.into_inner().expect("one thread");
    println!("{events} events: {seen:?}");
    assert!(events >= EVENTS, "{events} events");
    assert!(seen.least() > 1000, "too little happened: {seen:?}");
}
