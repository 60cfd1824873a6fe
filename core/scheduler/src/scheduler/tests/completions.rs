//! Rules of requests with several completions.

use crate::config::SchedulerConfig;
use crate::plan::Phase;
use crate::request::{RequestId, RequestSpec};

use super::world::World;

fn config() -> SchedulerConfig {
    SchedulerConfig { page_tokens: 4, checkpoints: 2, ..SchedulerConfig::new(32, 8) }
}

fn several(prompt: &[u32], n: usize) -> RequestSpec<'_> {
    RequestSpec { n, ..RequestSpec::new(prompt, 5) }
}

/// Rows of the prefill until all requests have ended.
fn prefill_rows(world: &mut World) -> usize {
    let mut rows = 0;
    world.run(|plan| {
        rows += plan.requests().iter().filter(|r| r.phase == Phase::Prefill).map(|r| r.rows).sum::<usize>()
    });
    rows
}

#[test]
fn the_prompt_runs_once_and_its_last_token_for_each() {
    let mut world = World::new(config());
    world.add(several(&[1, 2, 3, 4, 5, 6, 7], 3)).expect("a request that fits");
    assert_eq!(prefill_rows(&mut world), 6 + 3);
    assert_eq!(world.ended.len(), 3);
    assert!(world.ended.iter().all(|(_, tokens)| *tokens == world.ended[0].1));
    let mut cached: Vec<usize> = world.ended.iter().map(|(finished, _)| finished.cached_tokens).collect();
    cached.sort_unstable();
    assert_eq!(cached, [0, 6, 6]);
    world.check_nothing_leaked();
}

#[test]
fn full_pages_are_shared_and_the_last_is_copied() {
    let mut world = World::new(config());
    let first = world.add(several(&[1, 2, 3, 4, 5, 6, 7], 3)).expect("a request that fits");
    world.schedule();
    world.complete();
    let plan = world.schedule().expect("all three run").clone();
    assert_eq!(plan.requests().iter().map(|r| r.id).collect::<Vec<_>>(), [0, 1, 2].map(|i| first.completion(i)));
    let pages: Vec<&[u32]> = plan.requests().iter().map(|r| plan.pages_of(r)).collect();
    assert!(pages.iter().all(|p| p[0] == pages[0][0]), "the full page is the same");
    assert_eq!(plan.page_copies().len(), 2);
    for (copy, own) in plan.page_copies().iter().zip(&pages[1..]) {
        assert_eq!((copy.from, copy.to), (pages[0][1], own[1]));
    }
    assert!(plan.requests()[1..].iter().all(|r| r.restore.is_some() && r.start == 6));
    world.check();
    world.drain();
    world.check_nothing_leaked();
}

#[test]
fn nothing_is_copied_when_the_prompt_but_its_last_token_fills_its_pages() {
    let mut world = World::new(config());
    world.add(several(&[1, 2, 3, 4, 5], 2)).expect("a request that fits");
    let mut copies = 0;
    world.run(|plan| copies += plan.page_copies().len());
    assert_eq!(copies, 0);
    assert_eq!(world.ended[0].1, world.ended[1].1);
}

#[test]
fn without_checkpoints_or_with_one_token_each_runs_by_itself() {
    let mut world = World::new(SchedulerConfig { checkpoints: 0, ..config() });
    world.add(several(&[1, 2, 3], 2)).expect("a request that fits");
    assert_eq!(prefill_rows(&mut world), 6);
    let mut world = World::new(config());
    world.add(several(&[1], 2)).expect("a request that fits");
    assert_eq!(prefill_rows(&mut world), 2);
}

#[test]
fn when_the_first_is_aborted_the_next_runs_the_prompt() {
    let mut world = World::new(SchedulerConfig { max_num_batched_tokens: 8, ..config() });
    let prompt: Vec<u32> = (0..20).collect();
    let first = world.add(several(&prompt, 3)).expect("a request that fits");
    world.schedule();
    world.abort(first);
    world.check();
    world.complete();
    assert_eq!(prefill_rows(&mut world), 19 + 2);
    assert_eq!(world.ended.len(), 2);
    world.check_nothing_leaked();
}

#[test]
fn completions_that_wait_for_a_slot_fork_later() {
    let mut world = World::new(SchedulerConfig { max_num_seqs: 1, ..config() });
    world.add(several(&[1, 2, 3, 4, 5, 6, 7], 3)).expect("a request that fits");
    assert_eq!(prefill_rows(&mut world), 6 + 3);
    world.check_nothing_leaked();
}

#[test]
fn a_fork_point_is_given_up_before_anybody_is_preempted() {
    // Seven of eight pages: two of the prompt (one of which the fork point keeps), and what the output needs.
    let mut world =
        World::new(SchedulerConfig { max_num_seqs: 1, ..SchedulerConfig { pages: 8, watermark: 0.0, ..config() } });
    let spec = RequestSpec { n: 2, ..RequestSpec::new(&[1, 2, 3, 4, 5, 6, 7], 26) };
    let first = world.add(spec).expect("a request that fits");
    world.drain();
    assert_eq!(world.scheduler.stats().preemptions, 0);
    assert!(world.ended.iter().all(|(_, tokens)| tokens.len() == 7 + 26));
    let of = |id: RequestId| world.ended.iter().find(|(f, _)| f.id == id).expect("it ended").0.cached_tokens;
    assert_eq!((of(first), of(first.completion(1))), (0, 6), "the pages were still those of the fork point");
    world.check_nothing_leaked();

    let mut world = World::new(SchedulerConfig { pages: 8, max_num_seqs: 2, watermark: 0.0, ..config() });
    world.add(RequestSpec::new(&[9], 28)).expect("a request that fits");
    world.schedule();
    world.complete();
    world.add(RequestSpec { n: 2, ..RequestSpec::new(&[1, 2, 3, 4, 5, 6, 7], 2) }).expect("a request that fits");
    world.drain();
    world.check_nothing_leaked();
}
