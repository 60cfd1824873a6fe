//! Requests beside each other give what they give alone.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use deepinfer_engine::{Engine, EngineConfig, Event, RequestId, RequestOutput, Stats};
use deepinfer_engine::{EngineError, FinishReason, Request, RequestError, SamplingParams};

use crate::reference::{Expected, Reference, model};
use crate::requests::{found, mixed, request, text_tokens};

const VALID: usize = 48;
/// Most preemptions of a completion.
const PREEMPTIONS: usize = 3;

/// 64 requests: 48 that run, 8 that are aborted, 4 that are invalid, 4 that are too long.
struct Crowd {
    requests: Vec<Request>,
    /// Of the requests that run, what they must give; of the aborted ones, what they would give.
    expected: Vec<Option<Vec<Expected>>>,
}

/// Turns of work after which the aborted requests are aborted, by the request's place.
const ABORTS: [(usize, usize); 8] = [(3, 0), (11, 1), (19, 2), (27, 4), (35, 7), (43, 9), (51, 13), (59, 20)];

impl Crowd {
    fn new(reference: &Reference) -> Self {
        let mut valid = mixed(VALID).into_iter();
        let text = text_tokens();
        let (mut requests, mut expected) = (Vec::new(), Vec::new());
        for place in 0..64 {
            if ABORTS.iter().any(|(aborted, _)| *aborted == place) {
                let params = SamplingParams {
                    temperature: 0.9,
                    seed: Some(place as u64),
                    max_tokens: Some(40),
                    ignore_eos: true,
                    ..SamplingParams::default()
                };
                let aborted = request(place, &text[place..2 * place + 20], params);
                expected.push(Some(vec![reference.run(&aborted, 0)]));
                requests.push(aborted);
                continue;
            }
            let refused = match place % 16 {
                6 => Some(request(place, &[5, 4096], SamplingParams::default())),
                14 => Some(request(place, &vec![5; 5000], SamplingParams::default())),
                _ => None,
            };
            if let Some(refused) = refused {
                requests.push(refused);
                expected.push(None);
                continue;
            }
            let runs = valid.next().expect("48 places are left");
            expected.push(Some((0..runs.params.n).map(|child| reference.run(&runs, child)).collect()));
            requests.push(runs);
        }
        assert!(valid.next().is_none());
        Self { requests, expected }
    }

    /// Runs all of them at once and compares.
    fn check(&self, what: &str, config: EngineConfig) -> Stats {
        let mut engine = Engine::builder(model()).config(config).build().expect("an engine");
        let mut places: BTreeMap<RequestId, usize> = BTreeMap::new();
        let mut outputs: BTreeMap<usize, RequestOutput> = BTreeMap::new();
        for (place, request) in self.requests.iter().enumerate() {
            match (engine.submit(request.clone()), &self.expected[place]) {
                (Ok(id), Some(_)) => assert!(places.insert(id, place).is_none()),
                (Err(EngineError::Request(error)), None) => {
                    let right = matches!(
                        (place % 16, &error),
                        (6, RequestError::TokenOutOfRange { index: 1, id: 4096, .. })
                            | (14, RequestError::PromptTooLong { tokens: 5000, context: 4096 })
                    );
                    assert!(right, "{what}, request {place}: {error}");
                }
                (other, _) => panic!("{what}, request {place}: {other:?}"),
            }
        }
        let mut turn = 0;
        while engine.has_work() {
            for (place, _) in ABORTS.iter().filter(|(_, after)| *after == turn) {
                let id = places.iter().find(|(_, at)| *at == place).expect("it was submitted").0;
                assert!(engine.abort(*id), "{what}: request {place} ended before turn {turn}");
                assert!(!engine.abort(*id), "a request ends once");
            }
            engine.step();
            for (id, event) in engine.events() {
                if let Event::Finished(output) = event {
                    assert!(outputs.insert(places[&id], *output).is_none());
                }
            }
            turn += 1;
        }
        let stats = engine.stats();
        assert_eq!((stats.running, stats.waiting, stats.in_flight), (0, 0, 0), "{what}");
        assert_eq!((stats.free_pages, stats.retiring_pages), (stats.usable_pages, 0), "{what}: pages are lost");
        for (place, expected) in self.expected.iter().enumerate() {
            let Some(expected) = expected else { continue };
            let output = &outputs[&place];
            assert_eq!(output.id, self.requests[place].id);
            assert_eq!(output.outputs.len(), expected.len());
            // Nobody starves: a completion that was preempted so often keeps its pages when it runs again.
            assert!(output.preemptions as usize <= PREEMPTIONS * expected.len(), "{what}, request {place}: {output:?}");
            let is_aborted = ABORTS.iter().any(|(aborted, _)| *aborted == place);
            for (completion, expected) in output.outputs.iter().zip(expected) {
                let found = found(output, completion);
                if is_aborted {
                    assert_eq!(completion.finish_reason, FinishReason::Abort);
                    assert!(expected.tokens.starts_with(&found.tokens), "{what}, aborted request {place}");
                    continue;
                }
                assert_eq!(&found, expected, "{what}, request {place}: {:?}", self.requests[place].params);
                let reason = if expected.stopped { FinishReason::Stop } else { FinishReason::Length };
                assert_eq!(completion.finish_reason, reason, "{what}, request {place}");
            }
        }
        stats
    }
}

/// Shared by the tests, since what each request gives alone takes a while.
fn crowd() -> &'static Crowd {
    static CROWD: OnceLock<Crowd> = OnceLock::new();
    CROWD.get_or_init(|| Crowd::new(&Reference::new()))
}

/// With and without asynchronous scheduling, the prefix cache and recorded decode steps.
fn run_crowd(config: &EngineConfig, is_tight: bool) {
    for (async_scheduling, prefix_caching, graphs) in
        [(true, true, false), (true, false, true), (false, true, true), (false, false, false), (true, true, true)]
    {
        let what = format!(
            "asynchronous {async_scheduling}, prefix caching {prefix_caching}, graphs {graphs}, tight {is_tight}"
        );
        let decode_graphs = Some(graphs);
        let config =
            EngineConfig { max_num_seqs: 64, async_scheduling, prefix_caching, decode_graphs, ..config.clone() };
        let stats = crowd().check(&what, config);
        assert_eq!(stats.preemptions > 0, is_tight, "{what}: {stats:?}");
        // Where there is no room, nothing stays cached for long.
        if !is_tight || !prefix_caching {
            assert_eq!(stats.hit_tokens > 0, prefix_caching, "{what}: {stats:?}");
        }
        assert_eq!(stats.discarded_rows > 0, async_scheduling, "{what}: {stats:?}");
    }
}

#[test]
fn a_crowd_with_room_gives_what_each_request_gives_alone() {
    let config = EngineConfig { pages: Some(256), max_num_batched_tokens: 512, ..EngineConfig::default() };
    run_crowd(&config, false);
}

#[test]
fn a_crowd_in_little_memory_gives_what_each_request_gives_alone() {
    // Requests have up to three pages.
    let config = EngineConfig { pages: Some(6), max_num_batched_tokens: 70, watermark: 0.0, ..EngineConfig::default() };
    run_crowd(&config, true);
}
