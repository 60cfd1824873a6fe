//! The host waits once for each step, and what nobody needs is given back at once.

use std::collections::BTreeMap;
use std::rc::Rc;

use deepinfer_engine::SamplingParams;
use deepinfer_engine::{Engine, EngineConfig, Event, RequestId};
use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::{Model, Numerics};
use deepinfer_ops::Device;
use deepinfer_tests::{miniature, open_device};

use crate::requests::{request, text_tokens};

fn params(max_tokens: usize) -> SamplingParams {
    SamplingParams { max_tokens: Some(max_tokens), ignore_eos: true, ..SamplingParams::default() }
}

/// Any other wait in a step, as an upload that is not staged or a download that is not queued, fails this.
#[test]
fn a_steady_step_waits_once() {
    steady_steps_wait_once(false);
    steady_steps_wait_once(true);
}

fn steady_steps_wait_once(graphs: bool) {
    let device = Rc::new(open_device());
    let checkpoint = Checkpoint::open(&miniature()).expect("the miniature");
    let shared: Rc<dyn Device> = device.clone();
    let (model, _) = Model::load(shared, &checkpoint, Numerics::DEPLOY, &mut |_, _| {}).expect("the miniature loads");
    let decode_graphs = Some(graphs);
    let config = EngineConfig { max_num_seqs: 8, pages: Some(32), decode_graphs, ..EngineConfig::default() };
    let mut engine = Engine::builder(model).config(config).build().expect("an engine");
    let text = text_tokens();
    for i in 0..4 {
        let params = SamplingParams { logprobs: (i == 1).then_some(3), presence_penalty: 0.5 * i as f32, ..params(40) };
        engine.submit(request(i, &text[i..i + 20], params)).expect("it is valid");
    }
    // The first turn has no step to wait for.
    engine.step();
    for turn in 0..20 {
        let (before, steps) = (device.blocking_waits(), engine.stats().steps);
        engine.step();
        assert_eq!(engine.stats().steps - steps, 1);
        assert_eq!(device.blocking_waits() - before, 1, "turn {turn}, graphs {graphs}");
    }
    if let Some(stats) = engine.graph_stats() {
        assert!(stats.launched > 10, "{stats:?}");
    }
}

#[test]
fn pages_of_an_aborted_request_are_free_after_two_steps() {
    let config = EngineConfig { max_num_seqs: 4, pages: Some(16), prefix_caching: false, ..EngineConfig::default() };
    let mut engine = Engine::builder(crate::reference::model()).config(config).build().expect("an engine");
    let text = text_tokens();
    engine.submit(request("stays", &text[..10], params(100))).expect("it is valid");
    for steps in 0..12 {
        let id = engine.submit(request(steps, &text[..300], params(100))).expect("it is valid");
        (0..steps).for_each(|_| engine.step());
        assert!(engine.abort(id));
        engine.step();
        engine.step();
        // The other request has one page.
        let stats = engine.stats();
        assert_eq!((stats.free_pages, stats.running), (15, 1), "aborted after {steps} steps: {stats:?}");
    }
}

/// Numbers without rhyme or reason, the same in every run.
struct Noise(u64);

impl Noise {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// A thousand senders go away at any time: their requests wait, are at work, or are about to end.
#[test]
fn a_thousand_disconnects_leave_nothing_behind() {
    let config = EngineConfig { max_num_seqs: 12, pages: Some(40), ..EngineConfig::default() };
    let mut engine = Engine::builder(crate::reference::model()).config(config).build().expect("an engine");
    let (text, mut noise) = (text_tokens(), Noise(2026));
    // Of each request its tokens so far, and the turn in which its sender goes.
    let mut live: BTreeMap<RequestId, (usize, u64)> = BTreeMap::new();
    let pages = |tokens: usize| (tokens + 2).div_ceil(128);
    let (mut submitted, mut turn, mut left, mut ended) = (0, 0, 0, 0);
    while left < 1000 || engine.has_work() {
        for _ in 0..if left < 1000 { noise.below(11) } else { 0 } {
            let length = if noise.below(40) == 0 { 100 + noise.below(60) } else { 1 + noise.below(8) } as usize;
            let from = noise.below(300) as usize;
            let id = engine.submit(request(submitted, &text[from..from + length], params(4))).expect("it is valid");
            // Some stay until their requests have ended.
            let leaves = if noise.below(5) == 0 { u64::MAX } else { turn + noise.below(8) };
            live.insert(id, (length, leaves));
            submitted += 1;
        }
        let leaving: Vec<RequestId> = live.iter().filter(|(_, live)| live.1 <= turn).map(|(&id, _)| id).collect();
        // One step later, a page of these may still be in use; after two, none.
        let mut most = 0;
        for id in leaving {
            let (tokens, _) = live.remove(&id).expect("it is there");
            most += pages(tokens);
            assert!(engine.abort(id));
            left += 1;
        }
        engine.step();
        for (id, event) in engine.events() {
            match (event, live.get_mut(&id)) {
                (Event::Token(_), Some((tokens, _))) => *tokens += 1,
                (Event::Finished(_), Some((tokens, _))) => {
                    // A step after its last one may be in flight.
                    most += pages(*tokens);
                    live.remove(&id);
                    ended += 1;
                }
                (_, None) => {}
            }
        }
        most += live.values().map(|live| pages(live.0)).sum::<usize>();
        let stats = engine.stats();
        assert!(stats.usable_pages - stats.free_pages <= most, "turn {turn}, at most {most} pages: {stats:?}");
        turn += 1;
    }
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.in_flight), (0, 0, 0));
    assert_eq!((stats.free_pages, stats.retiring_pages), (stats.usable_pages, 0), "pages are lost: {stats:?}");
    assert!(ended > 100, "only {ended} of {submitted} requests came to their end");
}
