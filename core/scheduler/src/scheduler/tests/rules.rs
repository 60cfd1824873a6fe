//! Rules of scheduling, one by one.

use crate::config::{Policy, SchedulerConfig};
use crate::error::{AddError, ConfigError};
use crate::plan::{Phase, StepId, StepKind, StepPlan, TokenSource};
use crate::request::{Outcome, RequestId, RequestSpec};
use crate::scheduler::Scheduler;

use super::world::World;

/// Pages of 4 tokens, one step at a time.
fn config(pages: usize, slots: usize) -> SchedulerConfig {
    SchedulerConfig { page_tokens: 4, depth: 1, watermark: 0.0, ..SchedulerConfig::new(pages, slots) }
}

fn add(world: &mut World, prompt: usize, max_tokens: usize) -> RequestId {
    let prompt: Vec<u32> = (0..prompt as u32).collect();
    world.add(RequestSpec::new(&prompt, max_tokens)).expect("a request that fits")
}

/// Plans and completes a step. Returns its requests: name, start, rows.
fn step(world: &mut World) -> Vec<(RequestId, usize, usize)> {
    let plan = world.schedule().expect("there is something to run");
    let requests = plan.requests().iter().map(|r| (r.id, r.start, r.rows)).collect();
    world.complete();
    world.check();
    requests
}

#[test]
fn decode_rows_come_before_chunks_and_chunks_fill_the_rest() {
    let mut world = World::new(SchedulerConfig { max_num_batched_tokens: 10, ..config(100, 4) });
    let a = add(&mut world, 3, 9);
    assert_eq!(step(&mut world), [(a, 0, 3)]);
    let (b, c) = (add(&mut world, 15, 9), add(&mut world, 5, 9));
    assert_eq!(step(&mut world), [(a, 3, 1), (b, 0, 9)]);
    assert_eq!(step(&mut world), [(a, 4, 1), (b, 9, 6), (c, 0, 3)]);
    assert_eq!(step(&mut world), [(a, 5, 1), (b, 15, 1), (c, 3, 2)]);
}

#[test]
fn chunks_are_at_most_the_threshold() {
    let mut world = World::new(SchedulerConfig { long_prefill_token_threshold: 4, ..config(100, 4) });
    let (a, b) = (add(&mut world, 6, 1), add(&mut world, 3, 1));
    assert_eq!(step(&mut world), [(a, 0, 4), (b, 0, 3)]);
    assert_eq!(step(&mut world), [(a, 4, 2)]);
}

#[test]
fn rows_of_prompts_with_logits_are_limited_and_each_such_request_has_one() {
    let mut world = World::new(SchedulerConfig { prompt_logit_rows: 5, ..config(100, 4) });
    let mut wants = |tokens: &[u32]| {
        let spec = RequestSpec { prompt_logits: true, ..RequestSpec::new(tokens, 2) };
        world.add(spec).expect("a request that fits")
    };
    let (a, b) = (wants(&[1; 9]), wants(&[2; 3]));
    let c = add(&mut world, 7, 1);
    assert_eq!(step(&mut world), [(a, 0, 5), (b, 0, 1), (c, 0, 7)]);
    assert_eq!(step(&mut world), [(a, 5, 4), (b, 1, 1)]);
    // The row that is drawn from counts for nothing once the prompt is over.
    assert_eq!(step(&mut world), [(a, 9, 1), (b, 2, 1)]);
}

#[test]
fn no_more_requests_run_than_allowed() {
    let mut world = World::new(SchedulerConfig { max_num_seqs: 2, ..config(100, 4) });
    let ids: Vec<RequestId> = (0..3).map(|_| add(&mut world, 2, 2)).collect();
    assert_eq!(step(&mut world), [(ids[0], 0, 2), (ids[1], 0, 2)]);
    assert_eq!(step(&mut world).len(), 2);
    assert_eq!(step(&mut world), [(ids[2], 0, 2)]);
}

#[test]
fn priority_goes_before_arrival() {
    for (policy, expected) in [(Policy::Fcfs, [0, 1, 2]), (Policy::Priority, [2, 0, 1])] {
        let mut world = World::new(SchedulerConfig { policy, ..config(100, 4) });
        for priority in [1, 1, 0] {
            world.add(RequestSpec { priority, ..RequestSpec::new(&[1], 1) }).expect("a request that fits");
        }
        let order: Vec<u64> = step(&mut world).iter().map(|r| r.0.0).collect();
        assert_eq!(order, expected);
    }
}

#[test]
fn admission_keeps_the_watermark_and_what_running_prefills_need() {
    let limits = SchedulerConfig { watermark: 0.2, max_num_batched_tokens: 8, ..config(10, 4) };
    let mut world = World::new(limits);
    // Five pages for the first; 10 - 5 - 4 leaves less than two.
    let (a, b) = (add(&mut world, 20, 1), add(&mut world, 14, 1));
    assert_eq!(step(&mut world), [(a, 0, 8)]);
    assert_eq!(step(&mut world), [(a, 8, 8)]);
    assert_eq!(step(&mut world), [(a, 16, 4)], "rows were left for {b:?}, but not enough pages");
    assert_eq!(step(&mut world), [(b, 0, 8)]);
    // Four pages for the second, of nine that are free, of which the first will need four and two must stay.
    let limits = SchedulerConfig { watermark: 0.2, long_prefill_token_threshold: 4, ..config(10, 4) };
    let mut world = World::new(limits);
    let (a, b) = (add(&mut world, 20, 1), add(&mut world, 14, 1));
    for chunk in 0..5 {
        assert_eq!(step(&mut world), [(a, chunk * 4, 4)]);
    }
    assert_eq!(step(&mut world), [(b, 0, 4)]);
    // Nothing else runs, so that a request may use all pages.
    let mut world = World::new(SchedulerConfig { watermark: 0.9, ..config(10, 4) });
    let a = add(&mut world, 40, 1);
    assert_eq!(step(&mut world), [(a, 0, 40)]);
}

#[test]
fn pure_steps_alternate() {
    let mut world = World::new(SchedulerConfig { pure_steps: true, max_num_batched_tokens: 4, ..config(100, 4) });
    let (a, b) = (add(&mut world, 4, 9), add(&mut world, 8, 9));
    assert_eq!(step(&mut world), [(a, 0, 4)]);
    assert_eq!(step(&mut world), [(a, 4, 1)]);
    assert_eq!(step(&mut world), [(b, 0, 4)]);
    assert_eq!(step(&mut world), [(a, 5, 1)]);
    assert_eq!(step(&mut world), [(b, 4, 4)]);
    assert_eq!(step(&mut world), [(a, 6, 1), (b, 8, 1)]);
}

#[test]
fn a_step_of_a_given_kind_has_no_other_rows() {
    let mut scheduler = Scheduler::new(config(100, 4)).expect("a valid configuration");
    let mut plan = StepPlan::default();
    scheduler.add(RequestSpec::new(&[1, 2], 4)).expect("a request that fits");
    assert_eq!(scheduler.schedule_kind(&mut plan, StepKind::Decode), None);
    assert_eq!(scheduler.schedule_kind(&mut plan, StepKind::Prefill), Some(StepId(1)));
    assert_eq!(plan.requests()[0].phase, Phase::Prefill);
}

#[test]
fn the_latest_arrival_is_preempted_and_comes_back_first_with_its_output() {
    // Two requests of two pages each, and one page more: the first to need it gets it, the other has to go.
    let mut world = World::new(config(5, 4));
    let (a, b) = (add(&mut world, 7, 8), add(&mut world, 6, 8));
    let told = loop {
        let plan = world.schedule().expect("a step");
        let told = plan.preempted().to_vec();
        world.complete();
        if !told.is_empty() {
            break told;
        }
    };
    assert_eq!((told, world.scheduler.stats().preemptions), (vec![b], 1));
    let c = add(&mut world, 1, 1);
    loop {
        let requests = step(&mut world);
        // What it had computed is computed again, and its output is part of that.
        if requests.iter().any(|r| r.0 == b && r.1 == 0 && r.2 > 6) {
            break;
        }
        assert!(requests.iter().all(|r| r.0 != c), "{c:?} arrived after {b:?}, which waits");
    }
    world.drain();
    let of = |id| world.ended.iter().find(|(f, _)| f.id == id).expect("it ended").0;
    assert_eq!((of(a).preemptions, of(b).preemptions), (0, 1));
    world.check_nothing_leaked();
}

#[test]
fn nobody_is_preempted_for_a_page_that_is_about_to_be_free() {
    let mut world = World::new(SchedulerConfig { depth: 2, ..config(3, 4) });
    let a = add(&mut world, 2, 4);
    world.add_stopping(RequestSpec::new(&[1, 2], 3), 2).expect("a request that fits");
    let b = add(&mut world, 1, 4);
    // One page each. The second request stops while a row of it is in flight; the first needs its second page then.
    for _ in 0..2 {
        world.schedule();
        world.schedule();
        world.complete();
    }
    assert_eq!(world.ended.len(), 1);
    let planned: Vec<RequestId> = world.schedule().expect("a step").requests().iter().map(|r| r.id).collect();
    assert_eq!(planned, [b]);
    world.complete();
    assert_eq!(world.schedule().expect("a step").requests()[0].id, a);
    world.drain();
    assert_eq!(world.scheduler.stats().preemptions, 0);
}

#[test]
fn under_priority_the_lowest_is_preempted() {
    let mut world = World::new(SchedulerConfig { policy: Policy::Priority, ..config(5, 4) });
    let prompt: Vec<u32> = (0..7).collect();
    let low = world.add(RequestSpec { priority: 5, ..RequestSpec::new(&prompt, 8) }).expect("a request that fits");
    let high = world.add(RequestSpec { priority: 1, ..RequestSpec::new(&prompt, 8) }).expect("a request that fits");
    world.drain();
    let of = |id| world.ended.iter().find(|(f, _)| f.id == id).expect("it ended").0.preemptions;
    assert_eq!((of(low), of(high)), (1, 0));
}

#[test]
fn a_request_that_was_preempted_often_gets_all_its_pages() {
    let mut world = World::new(config(12, 4));
    let id = add(&mut world, 5, 20);
    for start in 0..3 {
        assert_eq!(step(&mut world), [(id, 0, 5 + start)]);
        assert_eq!(world.scheduler.stats().free_pages, 12 - 2);
        world.preempt(id);
    }
    step(&mut world);
    assert_eq!(world.scheduler.stats().free_pages, 12 - 6, "24 positions");
    // From now on a later request can fill the rest, but not take anything back.
    add(&mut world, 20, 4);
    world.drain();
    assert_eq!(world.scheduler.stats().preemptions, 3);
}

#[test]
fn requests_that_cannot_run_are_refused_with_numbers() {
    let mut scheduler =
        Scheduler::new(SchedulerConfig { max_model_len: 50, ..config(10, 4) }).expect("a valid configuration");
    let prompt: Vec<u32> = (0..30).collect();
    let mut refused = |spec: RequestSpec<'_>| scheduler.add(spec).expect_err("it cannot run").to_string();
    assert_eq!(refused(RequestSpec::new(&[], 1)), "the prompt is empty; at least one token is needed");
    assert_eq!(refused(RequestSpec::new(&prompt, 0)), "max_tokens is 0; at least 1 is needed");
    assert_eq!(refused(RequestSpec { n: 0, ..RequestSpec::new(&prompt, 1) }), "n is 0; at least 1 is needed");
    assert_eq!(
        refused(RequestSpec::new(&prompt, 21)),
        "a prompt of 30 tokens and 21 output tokens exceed max_model_len = 50; with this prompt max_tokens can be 20"
    );
    assert_eq!(
        refused(RequestSpec::new(&prompt, 12)),
        "a prompt of 30 tokens and 12 output tokens need 11 pages, but there are 10; \
         the longest prompt and output that fit have 41 tokens together"
    );
    assert!(matches!(scheduler.add(RequestSpec::new(&prompt, usize::MAX)), Err(AddError::TooLong { .. })));
    assert!(scheduler.add(RequestSpec::new(&prompt, 11)).is_ok(), "the last token needs no page");
    assert!(scheduler.add(RequestSpec::new(&prompt, 11)).is_ok(), "it can wait");
}

#[test]
fn a_queue_takes_no_more_than_allowed() {
    let limits = SchedulerConfig { max_num_queued_reqs: Some(2), ..config(100, 1) };
    let mut world = World::new(limits);
    let (a, b) = (add(&mut world, 3, 2), add(&mut world, 3, 2));
    let full = AddError::QueueFull { name: "max_num_queued_reqs", unit: "requests", waiting: 2, added: 1, most: 2 };
    assert_eq!(world.add(RequestSpec::new(&[1], 1)), Err(full.clone()));
    assert_eq!(
        full.to_string(),
        "2 requests wait already and this request adds 1, but max_num_queued_reqs is 2; try again later"
    );
    // What runs does not wait.
    assert_eq!(step(&mut world), [(a, 0, 3)]);
    let c = add(&mut world, 3, 2);
    assert!(world.add(RequestSpec::new(&[1], 1)).is_err());
    // A preempted request waits again, and is not refused for it.
    assert!(world.scheduler.preempt(a));
    assert_eq!((world.scheduler.stats().waiting, world.scheduler.stats().waiting_tokens), (3, 10));
    world.abort(a);
    world.abort(b);
    world.abort(c);
    // An empty queue takes whatever fits.
    world.add(RequestSpec { n: 4, ..RequestSpec::new(&[1, 2], 1) }).expect("nothing waits");
    world.drain();
    world.check_nothing_leaked();

    let mut world = World::new(SchedulerConfig { max_num_queued_tokens: Some(10), ..config(100, 1) });
    add(&mut world, 30, 2);
    let full = AddError::QueueFull { name: "max_num_queued_tokens", unit: "tokens", waiting: 30, added: 1, most: 10 };
    assert_eq!(world.add(RequestSpec::new(&[1], 1)), Err(full));
    step(&mut world);
    add(&mut world, 4, 2);
    let three = RequestSpec { n: 3, ..RequestSpec::new(&[1, 2, 3], 1) };
    let full = AddError::QueueFull { name: "max_num_queued_tokens", unit: "tokens", waiting: 4, added: 9, most: 10 };
    assert_eq!(world.add(three), Err(full));
    world.add(RequestSpec { n: 2, ..three }).expect("ten tokens wait then");
    world.drain();
    world.check_nothing_leaked();
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    let valid = config(10, 4);
    let refused = |config: SchedulerConfig| Scheduler::new(config).expect_err("it cannot work").to_string();
    assert_eq!(
        refused(SchedulerConfig { max_num_batched_tokens: 7, draft_tokens: 1, ..valid.clone() }),
        "max_num_batched_tokens is 7, but must be at least 8: \
         each of max_num_seqs requests decodes 1 + draft_tokens rows in a step"
    );
    assert_eq!(
        refused(SchedulerConfig { state_slots: 3, ..valid.clone() }),
        "state_slots is 3, but must be at least 4: each of max_num_seqs requests needs one"
    );
    assert_eq!(
        refused(SchedulerConfig { prefix_caching: true, ..valid.clone() }),
        "checkpoints is 0, but must be at least 1: a hit of the prefix cache needs one"
    );
    assert_eq!(
        refused(SchedulerConfig { watermark: 1.0, ..valid.clone() }),
        "watermark is 1, but must be at least 0 and below 1: it is a part of all pages"
    );
    let large = SchedulerConfig { pages: 1 << 31, ..valid };
    assert!(matches!(Scheduler::new(large), Err(ConfigError::TooLarge { name: "pages", .. })));
}

#[test]
fn the_token_of_a_step_in_flight_is_read_on_the_device() {
    let mut world = World::new(SchedulerConfig { depth: 2, ..config(20, 4) });
    let (a, _) = (add(&mut world, 3, 4), add(&mut world, 4, 4));
    assert_eq!(world.schedule().expect("the prompts").tokens(), [0, 1, 2, 0, 1, 2, 3]);
    let plan = world.schedule().expect("one step ahead");
    let sources: Vec<TokenSource> = plan.requests().iter().map(|r| r.source).collect();
    assert_eq!(sources, [0, 1].map(|row| TokenSource::Device { step: StepId(1), row }));
    assert_eq!(plan.tokens(), [0, 0]);
    assert!(world.schedule().is_none(), "two are in flight");
    world.complete();
    assert_eq!(world.scheduler.ledger(a).map(|l| (l.len(), l.assumed_len())), Some((4, 5)));
    world.complete();
    // With nothing in flight the host knows the token.
    let last = *world.scheduler.tokens(a).and_then(<[u32]>::last).expect("a token");
    let plan = world.schedule().expect("the next step");
    assert_eq!((plan.requests()[0].source, plan.tokens()[0]), (TokenSource::Host, last));
}

#[test]
fn a_late_stop_costs_one_row_and_frees_nothing_that_it_uses() {
    let mut world = World::new(SchedulerConfig { depth: 2, ..config(20, 1) });
    world.add_stopping(RequestSpec::new(&[1, 2, 3], 10), 2).expect("a request that fits");
    let waiting = add(&mut world, 2, 1);
    world.schedule();
    world.schedule();
    world.complete();
    world.schedule();
    // The second token, which is a stop, arrives while the row of the third runs.
    world.complete();
    assert!(world.ended.len() == 1 && world.in_flight.len() == 1);
    let stats = world.scheduler.stats();
    assert_eq!((stats.free_pages, stats.retiring_pages, stats.discarded_rows), (18, 2, 0));
    assert!(world.schedule().is_none(), "its slot is in use");
    world.complete();
    assert_eq!(world.scheduler.stats().discarded_rows, 1);
    assert_eq!(step(&mut world), [(waiting, 0, 2)]);
}

#[test]
fn the_length_limit_is_known_before_the_results() {
    let mut world = World::new(SchedulerConfig { depth: 2, ..config(20, 4) });
    add(&mut world, 3, 2);
    world.drain();
    assert_eq!(world.scheduler.stats().discarded_rows, 0);
    assert_eq!(world.scheduler.stats().steps, 2);
}

#[test]
fn an_aborted_request_is_gone_in_every_state() {
    let mut world = World::new(SchedulerConfig { depth: 2, max_num_batched_tokens: 8, ..config(20, 2) });
    let (running, prefilling, waiting) = (add(&mut world, 3, 9), add(&mut world, 30, 9), add(&mut world, 3, 9));
    world.schedule();
    world.schedule();
    let preempted = running;
    world.preempt(preempted);
    for id in [waiting, prefilling, preempted] {
        world.abort(id);
        world.check();
    }
    world.drain();
    world.check_nothing_leaked();
    assert!(world.ended.is_empty());
    assert!(!world.scheduler.abort(RequestId(1000)));
}

#[test]
fn results_from_before_a_preemption_are_dropped() {
    let mut world = World::new(SchedulerConfig { depth: 2, ..config(20, 4) });
    let id = add(&mut world, 3, 4);
    world.schedule();
    world.preempt(id);
    world.schedule();
    world.complete();
    assert_eq!(world.scheduler.tokens(id).map(<[u32]>::len), Some(3));
    assert_eq!(world.scheduler.stats().discarded_rows, 3);
    world.drain();
    assert_eq!(world.ended[0].1.len(), 7);
}

#[test]
fn drafts_are_rows_that_may_not_count() {
    let mut world = World::new(SchedulerConfig { draft_tokens: 3, depth: 2, ..config(40, 4) });
    let id = add(&mut world, 3, 20);
    world.schedule();
    let request = world.schedule().expect("one step ahead").requests()[0].clone();
    assert_eq!((request.start, request.rows, request.logit_rows, request.unverified), (3, 4, 4, 0));
    world.complete();
    let request = world.schedule().expect("one step ahead").requests()[0].clone();
    assert_eq!((request.start, request.unverified), (7, 3));
    // The device accepts one of three.
    world.complete();
    let ledger = world.scheduler.ledger(id).expect("it runs");
    assert_eq!((ledger.output_len(), ledger.computed(), ledger.scheduled()), (3, 5, 9));
    world.drain();
    world.check_nothing_leaked();
}

#[test]
fn reserved_pages_are_nobodys() {
    let mut world = World::new(SchedulerConfig { reserved_pages: 1, ..config(4, 4) });
    add(&mut world, 12, 1);
    let plan = world.schedule().expect("the prompt");
    assert_eq!(plan.pages_of(&plan.requests()[0]), [1, 2, 3]);
    assert_eq!(world.scheduler.stats().usable_pages, 3);
}

#[test]
fn a_seed_permutes_the_pages() {
    let pages = |seed| {
        let config = SchedulerConfig { page_order_seed: seed, reserved_pages: 1, ..config(33, 1) };
        let mut world = World::new(config);
        add(&mut world, 32 * 4, 1);
        world.schedule().expect("the prompt").page_table.clone()
    };
    let plain: Vec<u32> = (1..33).collect();
    assert_eq!(pages(None), plain);
    assert_eq!(pages(Some(1)), pages(Some(1)));
    assert_ne!(pages(Some(1)), pages(Some(2)));
    let mut sorted = pages(Some(1));
    sorted.sort_unstable();
    assert_eq!(sorted, plain);
}

#[test]
fn buffers_of_a_plan_are_used_again() {
    let mut world = World::new(SchedulerConfig { page_tokens: 128, ..config(16, 8) });
    for _ in 0..8 {
        add(&mut world, 3, 100);
    }
    step(&mut world);
    let buffers = |plan: &StepPlan| (plan.requests.as_ptr(), plan.tokens.as_ptr(), plan.page_table.as_ptr());
    let before = buffers(world.schedule().expect("a step"));
    world.complete();
    for _ in 0..50 {
        assert_eq!(buffers(world.schedule().expect("a step")), before);
        world.complete();
    }
}

#[test]
#[should_panic(expected = "in order")]
fn steps_complete_in_order() {
    let mut scheduler = Scheduler::new(SchedulerConfig { depth: 2, ..config(20, 4) }).expect("a valid configuration");
    scheduler.add(RequestSpec::new(&[1, 2], 4)).expect("a request that fits");
    let mut plan = StepPlan::default();
    scheduler.schedule(&mut plan);
    let second = scheduler.schedule(&mut plan).expect("one step ahead");
    scheduler.complete(second, &[Outcome::tokens(&[1])]);
}
