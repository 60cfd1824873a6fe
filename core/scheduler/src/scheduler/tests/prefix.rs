//! Rules of the prefix cache.

use crate::config::SchedulerConfig;
use crate::request::{Attachment, RequestSpec};

use super::world::World;

fn caching(pages: usize, checkpoints: usize) -> SchedulerConfig {
    SchedulerConfig { prefix_caching: true, checkpoints, ..SchedulerConfig::new(pages, 4) }
}

fn tokens(len: usize) -> Vec<u32> {
    (0..len as u32).map(|at| at * 31 % 1009).collect()
}

/// Runs a request to its end and returns the tokens that it did not have to compute.
fn cached(world: &mut World, spec: RequestSpec<'_>) -> usize {
    world.add(spec).expect("a request that fits");
    world.drain();
    world.check();
    world.ended.last().expect("it ended").0.cached_tokens
}

#[test]
fn a_prompt_sent_again_hits_all_full_pages_before_its_last_token() {
    for checkpoint_pages in [1, 3] {
        for len in 1..=4 * 128 {
            let mut world = World::new(SchedulerConfig { checkpoint_pages, ..caching(16, 4) });
            let prompt = tokens(len);
            assert_eq!(cached(&mut world, RequestSpec::new(&prompt, 1)), 0);
            assert_eq!(cached(&mut world, RequestSpec::new(&prompt, 1)), (len - 1) / 128 * 128, "{len} tokens");
            let stats = world.scheduler.stats();
            assert_eq!((stats.queried_tokens, stats.hit_tokens), (2 * len as u64, ((len - 1) / 128 * 128) as u64));
        }
    }
}

#[test]
fn a_hit_ends_where_the_prompts_part() {
    let mut world = World::new(caching(32, 8));
    let mut prompt = tokens(600);
    cached(&mut world, RequestSpec::new(&prompt, 1));
    prompt[300] += 1;
    assert_eq!(cached(&mut world, RequestSpec::new(&prompt, 1)), 256);
    prompt[0] += 1;
    assert_eq!(cached(&mut world, RequestSpec::new(&prompt, 1)), 0);
}

#[test]
fn the_output_is_cached_like_the_prompt() {
    let mut world = World::new(caching(16, 8));
    cached(&mut world, RequestSpec::new(&tokens(100), 200));
    let conversation = world.ended[0].1.clone();
    assert_eq!(cached(&mut world, RequestSpec::new(&conversation, 1)), 256);
}

#[test]
fn a_hit_needs_a_checkpoint_where_it_ends() {
    // One checkpoint: that of the last page is the one that is left.
    let mut world = World::new(SchedulerConfig { depth: 1, ..caching(16, 1) });
    let prompt = tokens(400);
    cached(&mut world, RequestSpec::new(&prompt, 1));
    assert_eq!(world.scheduler.stats().checkpoints, 1);
    assert_eq!(cached(&mut world, RequestSpec::new(&prompt[..300], 1)), 0, "pages without a checkpoint");
    // Now there is one at 256 tokens, and none at 384 any more.
    assert_eq!(cached(&mut world, RequestSpec::new(&prompt, 1)), 256);
}

#[test]
fn longer_intervals_make_longer_chunks() {
    let mut world = World::new(SchedulerConfig { checkpoint_pages: 3, ..caching(16, 8) });
    world.add(RequestSpec::new(&tokens(1000), 1)).expect("a request that fits");
    let mut chunks = Vec::new();
    world.run(|plan| chunks.push((plan.rows(), plan.requests()[0].save.is_some())));
    assert_eq!(chunks, [(384, true), (384, true), (128, true), (104, false)]);
}

#[test]
fn equal_prompts_that_run_together_share_pages_in_the_end() {
    let mut world = World::new(caching(16, 8));
    for _ in 0..3 {
        world.add(RequestSpec::new(&tokens(256), 50)).expect("a request that fits");
    }
    for _ in 0..4 {
        world.schedule();
        world.complete();
        world.check();
    }
    // Two pages for all, and one each for the output.
    assert_eq!(world.scheduler.stats().free_pages, 16 - 2 - 3);
    world.drain();
    world.check_nothing_leaked();
}

#[test]
fn salts_and_attachments_keep_requests_apart() {
    let mut world = World::new(caching(64, 16));
    let prompt = tokens(300);
    let plain = RequestSpec::new(&prompt, 1);
    let image = |position, digest| [Attachment { position, digest }];
    let (first, second, late) = (image(5, 1), image(5, 2), image(200, 1));
    let salted = RequestSpec { cache_salt: b"salt", ..plain };
    let variants =
        [plain, salted, RequestSpec { attachments: &first, ..plain }, RequestSpec { attachments: &second, ..plain }];
    for spec in variants {
        assert_eq!(cached(&mut world, spec), 0);
    }
    for spec in variants {
        assert_eq!(cached(&mut world, spec), 256);
    }
    assert_eq!(cached(&mut world, RequestSpec { attachments: &late, ..plain }), 128, "the first page is the same");
}

#[test]
fn colliding_hashes_cost_hits_and_nothing_else() {
    let mut world = World::with_hash(caching(32, 8), |_, _, _| 7);
    for first in 0..4 {
        let mut prompt = tokens(300);
        prompt[0] = first;
        cached(&mut world, RequestSpec::new(&prompt, 3));
    }
    assert_eq!(world.scheduler.stats().cached_pages, 1);
    world.check_nothing_leaked();
}

#[test]
fn the_longest_unused_pages_are_evicted_first_and_tails_before_heads() {
    let mut world = World::new(caching(8, 8));
    let (old, new) = (tokens(257), (0..257).collect::<Vec<u32>>());
    cached(&mut world, RequestSpec::new(&old, 1));
    cached(&mut world, RequestSpec::new(&new, 1));
    assert_eq!(world.scheduler.stats().cached_pages, 4);
    assert_eq!(world.scheduler.evict(1), 1);
    assert_eq!(cached(&mut world, RequestSpec::new(&old[..200], 1)), 128);
    assert_eq!(world.scheduler.evict(1), 1);
    assert_eq!(cached(&mut world, RequestSpec::new(&new, 1)), 128, "the older of the two is now a page of this one");
}

#[test]
fn a_reset_forgets_everything_also_under_running_requests() {
    let mut world = World::new(caching(16, 8));
    let prompt = tokens(300);
    world.add(RequestSpec::new(&prompt, 100)).expect("a request that fits");
    for _ in 0..2 {
        world.schedule();
        world.complete();
    }
    assert_eq!(world.scheduler.stats().cached_pages, 2);
    world.scheduler.reset_prefix_cache();
    world.check();
    world.drain();
    let stats = world.scheduler.stats();
    assert_eq!((stats.cached_pages, stats.checkpoints), (0, 0));
    assert_eq!(cached(&mut world, RequestSpec::new(&prompt, 1)), 0);
    assert_eq!(cached(&mut world, RequestSpec::new(&prompt, 1)), 256);
}

#[test]
fn wanted_prompt_logits_are_computed_even_if_the_pages_are_known() {
    let mut world = World::new(caching(16, 8));
    let prompt = tokens(300);
    cached(&mut world, RequestSpec::new(&prompt, 1));
    assert_eq!(cached(&mut world, RequestSpec { prompt_logits: true, ..RequestSpec::new(&prompt, 1) }), 0);
}

#[test]
fn a_preempted_request_comes_back_by_a_hit() {
    let mut world = World::new(caching(16, 8));
    let id = world.add(RequestSpec::new(&tokens(300), 20)).expect("a request that fits");
    for _ in 0..5 {
        world.schedule();
        world.complete();
    }
    world.preempt(id);
    let plan = world.schedule().expect("it runs again");
    let request = &plan.requests()[0];
    assert_eq!((request.start, request.rows, request.generation), (256, 300 + 3 - 256, 1));
    assert!(request.restore.is_some() && !request.reset_slot);
    world.drain();
    world.check_nothing_leaked();
}
