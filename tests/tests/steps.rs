//! Steps that follow each other without a wait: tokens that stay on the device, state that is saved and restored, and what
//! a step costs the host.

#![forbid(unsafe_code)]

use std::rc::Rc;

use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::memory_plan::{MemoryNeeds, StepLimits};
use deepinfer_model::{DeviceTokens, KvCache, Model, Numerics, RequestRows, StateStore, StepInput};
use deepinfer_ops::args::FusedSample;
use deepinfer_ops::traits::SampleOps;
use deepinfer_ops::{Device, Download, Format, Tensor};
use deepinfer_runtime::{OpenDevice, Runtime, Selection};
use deepinfer_tests::{Tensors, fixture, miniature, open_device};

/// The device that `DEEPINFER_ACCELERATOR` names, or cpu-reference with streams that lag behind, so that nothing works by
/// chance.
fn open() -> OpenDevice {
    match std::env::var("DEEPINFER_ACCELERATOR") {
        Ok(_) => open_device(),
        Err(_) => {
            let runtime = Runtime::from_environment().unwrap_or_else(|e| panic!("{e}"));
            runtime.open(&Selection::parse("cpu?async=11").expect("a selection")).unwrap_or_else(|e| panic!("{e}"))
        }
    }
}

fn model_on(device: Rc<OpenDevice>, numerics: Numerics) -> Model {
    let checkpoint = Checkpoint::open(&miniature()).expect("the miniature");
    Model::load(device, &checkpoint, numerics, &mut |_, _| {}).expect("the miniature loads").0
}

/// A prompt that crosses windows, pages and the candidate blocks.
fn prompt(tokens: usize) -> Vec<u32> {
    let text = std::fs::read_to_string(fixture("expected.json")).expect("the fixture");
    let file: serde_json::Value = serde_json::from_str(&text).expect("the fixture's form");
    let prompts = file["prompts"].as_array().expect("prompts");
    let long = prompts.iter().find(|p| p["name"] == "long_640").expect("the longest prompt");
    let ids = long["prompt_ids"].as_array().expect("ids");
    ids.iter().take(tokens).map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn rows<'a>(tokens: &'a [u32], start: usize, slot: usize, pages: &'a [u32]) -> RequestRows<'a> {
    RequestRows { tokens, start, slot, pages, image_mask: &[] }
}

/// Draws the most likely token of each row, on the device.
struct Greedy {
    zero: Tensor,
    seed: Tensor,
    position: Tensor,
}

impl Greedy {
    fn new(tensors: &Tensors, rows: usize) -> Self {
        Self {
            zero: tensors.f32(&[rows], &vec![0.0; rows]),
            seed: tensors.i64(&[rows], &vec![0; rows]),
            position: tensors.i32(&[rows], &vec![0; rows]),
        }
    }

    fn draw(&self, model: &Model, logits: &Tensor, token: &Tensor) {
        let call = FusedSample {
            logits,
            inv_temperature: &self.zero,
            seed: &self.seed,
            position: &self.position,
            token,
            child: None,
            min_p_log: None,
            top_k: None,
            top_p: None,
        };
        model.device().fused_sample(&call).expect("a draw");
    }
}

/// Tokens that a download brought.
fn arrived(download: &mut dyn Download) -> Vec<i32> {
    let bytes = download.wait().expect("the step ran");
    bytes.as_chunks::<4>().0.iter().map(|&b| i32::from_le_bytes(b)).collect()
}

const PROMPTS: [(usize, usize); 3] = [(0, 140), (100, 9), (30, 250)];
const OUTPUT: usize = 12;

/// One request, alone, a token at a time, each of which visits the host.
fn alone(model: &Model, prompt: &[u32]) -> Vec<i32> {
    let pages: Vec<u32> = (0..KvCache::pages_for(prompt.len() + OUTPUT) as u32).collect();
    let cache = KvCache::new(model.device(), model.config(), model.numerics(), pages.len(), 1).expect("caches");
    let tensors = Tensors(model.device().clone());
    let (greedy, token) = (Greedy::new(&tensors, 1), tensors.i32(&[1], &[0]));
    let (mut run, mut start, mut found) = (prompt.to_vec(), 0, Vec::new());
    while found.len() < OUTPUT {
        let logits = model.step(&cache, &[rows(&run, start, 0, &pages)], &[run.len() - 1], None).expect("a step");
        greedy.draw(model, &logits, &token);
        start += run.len();
        let drawn = tensors.ints(&token)[0];
        run = vec![drawn as u32];
        found.push(drawn);
    }
    found
}

/// Three requests together, two steps in flight, tokens on the device; `padding` adds rows of a request that is none.
#[test]
fn tokens_that_stay_on_the_device_are_those_that_visit_the_host() {
    let text = prompt(640);
    let prompts: Vec<&[u32]> = PROMPTS.iter().map(|&(at, len)| &text[at..at + len]).collect();
    let device = Rc::new(open());
    let model = model_on(device.clone(), Numerics::DEPLOY);
    let expected: Vec<Vec<i32>> = prompts.iter().map(|prompt| alone(&model, prompt)).collect();

    let tensors = Tensors(device.clone());
    let pages: [&[u32]; 3] = [&[5, 2], &[1], &[8, 3, 6]];
    let (slots, padding_page, padding_slot) = ([3, 0, 2], [0], 1);
    let cache = KvCache::new(model.device(), model.config(), model.numerics(), 9, 4).expect("caches");
    let greedy = Greedy::new(&tensors, 3);
    // What one step draws is read by the next while the one after that draws elsewhere.
    let drawn = [tensors.i32(&[3], &[-1; 3]), tensors.i32(&[3], &[-1; 3])];
    let mut found: Vec<Vec<i32>> = vec![Vec::new(); 3];
    let mut pending: Option<Box<dyn Download>> = None;
    let mut steady = Vec::new();
    for step in 0..OUTPUT {
        let before = device.blocking_waits();
        let zeros = [0; 5];
        let mut requests = Vec::new();
        for q in 0..3 {
            let start = prompts[q].len() + step;
            // The first step runs the prompts, all others the token that the device has.
            let (tokens, start) = if step == 0 { (prompts[q], 0) } else { (&zeros[..1], start - 1) };
            requests.push(rows(tokens, start, slots[q], pages[q]));
        }
        let last_rows: Vec<usize> = requests
            .iter()
            .scan(0, |end, r| {
                *end += r.tokens.len();
                Some(*end - 1)
            })
            .collect();
        if step % 2 == 1 {
            requests.push(rows(&zeros, 0, padding_slot, &padding_page));
        }
        let from: Vec<(usize, usize)> = (0..3).map(|q| (last_rows[q], q)).collect();
        let late = DeviceTokens { ids: &drawn[(step + 1) % 2], rows: &from };
        let input =
            StepInput { requests: &requests, logit_rows: &last_rows, device_tokens: (step > 0).then_some(late) };
        let logits = model.enqueue(&cache, &input).expect("a step");
        greedy.draw(&model, &logits, &drawn[step % 2]);
        let download = device.download_later(&drawn[step % 2]).expect("a download");
        if let Some(mut earlier) = pending.replace(download) {
            arrived(&mut *earlier).iter().zip(&mut found).for_each(|(&token, found)| found.push(token));
        }
        steady.push(device.blocking_waits() - before);
    }
    let mut last = pending.expect("the last step");
    arrived(&mut *last).iter().zip(&mut found).for_each(|(&token, found)| found.push(token));
    let waits = device.blocking_waits();
    assert_eq!(arrived(&mut *last).len(), 3);
    assert_eq!(device.blocking_waits(), waits, "it is there");
    assert_eq!(found, expected);
    // The arena may still grow in the first steps. From then on the host waits for the tokens of the step before, and for
    // nothing else.
    assert_eq!(steady[3..], [1; OUTPUT - 3], "{steady:?}");
}

#[test]
fn a_draw_that_failed_harms_only_its_own_request() {
    let text = prompt(40);
    let device = Rc::new(open());
    let model = model_on(device.clone(), Numerics::DEPLOY);
    let tensors = Tensors(device.clone());
    let run = |ids: &[i32]| {
        let cache = KvCache::new(model.device(), model.config(), model.numerics(), 2, 2).expect("caches");
        let prompts = [rows(&text, 0, 0, &[0]), rows(&text[..7], 0, 1, &[1])];
        model.step(&cache, &prompts, &[], None).expect("a step");
        let next = [rows(&[0], 40, 0, &[0]), rows(&[0], 7, 1, &[1])];
        let (ids, from) = (tensors.i32(&[2], ids), [(0, 1), (1, 0)]);
        let device_tokens = Some(DeviceTokens { ids: &ids, rows: &from });
        let input = StepInput { requests: &next, logit_rows: &[0, 1], device_tokens };
        tensors.floats(&model.enqueue(&cache, &input).expect("a step"))
    };
    let (good, bad, zero) = (run(&[3, 5]), run(&[-1, 5]), run(&[0, 5]));
    let vocab = model.config().vocab_size;
    assert_eq!(good[..vocab], bad[..vocab], "the first row takes token 5 in both");
    assert_eq!(bad, zero, "an id that is none runs as token 0");
    assert_ne!(good[vocab..], bad[vocab..]);
}

/// Bits of the logits of each position of `tokens[start..]`, for the request in `slot`. A neighbour runs in every step.
fn logits_with_neighbour(
    model: &Model,
    cache: &KvCache,
    (tokens, start): (&[u32], usize),
    (slot, pages): (usize, &[u32]),
    mut at_boundary: impl FnMut(usize),
) -> Vec<Vec<u32>> {
    let tensors = Tensors(model.device().clone());
    let (neighbour_slot, neighbour_page) = (0, [0]);
    let mut found = Vec::new();
    let mut at = start;
    while at < tokens.len() {
        // Chunks end where pages do, as the scheduler has them when state is to be saved.
        let end = tokens.len().min((at + 1).next_multiple_of(128)).min(at + 96);
        let requests =
            [rows(&tokens[at..at + 1], 0, neighbour_slot, &neighbour_page), rows(&tokens[at..end], at, slot, pages)];
        let wanted: Vec<usize> = (1..=end - at).collect();
        let out = model.step(cache, &requests, &wanted, None).expect("the step runs");
        let values = tensors.floats(&out);
        found.extend(
            values.chunks(model.config().vocab_size).map(|r| r.iter().map(|v| v.to_bits()).collect::<Vec<_>>()),
        );
        at = end;
        if at.is_multiple_of(128) {
            at_boundary(at);
        }
    }
    found
}

#[test]
fn a_request_that_is_restored_at_any_page_boundary_goes_on_with_the_same_bits() {
    let tokens = prompt(600);
    for numerics in [Numerics::DEPLOY, Numerics::EXACT] {
        let device = Rc::new(open());
        let model = model_on(device.clone(), numerics);
        let dyn_device: Rc<dyn Device> = device.clone();
        let config = model.config();
        let cache = KvCache::new(&dyn_device, config, &numerics, 12, 4).expect("caches");
        let store = StateStore::new(&dyn_device, config, &numerics, 4).expect("a store");
        assert_eq!(store.bytes() as u64, 4 * KvCache::slot_bytes(config, &numerics));
        let cold = logits_with_neighbour(&model, &cache, (&tokens, 0), (2, &[3, 1, 7, 5, 4]), |end| {
            store.save(&*device, &cache, 2, end / 128 - 1).expect("a copy");
        });
        assert_eq!(cold.len(), 600);

        for boundary in [128, 256, 384, 512] {
            // Everything that the request had is overwritten, except its full pages, which are shared or copied.
            let mut pages = vec![3, 1, 7, 5, 4];
            pages.truncate(boundary / 128);
            cache.copy_page(&*device, 3, 9).expect("a copy");
            pages[0] = 9;
            pages.extend([11, 10, 8, 6, 2].iter().take(5 - pages.len()));
            for slot in [1, 2, 3] {
                device.fill(&cache.slot(slot), 0xFF).expect("poison");
            }
            store.restore(&*device, &cache, boundary / 128 - 1, 3).expect("a copy");
            let warm = logits_with_neighbour(&model, &cache, (&tokens, boundary), (3, &pages), |_| {});
            for (row, (warm, cold)) in warm.iter().zip(&cold[boundary..]).enumerate() {
                let position = boundary + row;
                assert_eq!(warm, cold, "{numerics:?} restored at {boundary}: the logits of position {position} differ");
            }
            assert_eq!(warm.len(), 600 - boundary);
        }
        // The test can fail: a slot of another boundary is another state.
        store.restore(&*device, &cache, 0, 3).expect("a copy");
        let wrong = logits_with_neighbour(&model, &cache, (&tokens, 512), (3, &[3, 1, 7, 5, 6]), |_| {});
        assert_ne!(wrong, cold[512..]);
    }
}

#[test]
fn the_largest_step_needs_no_more_than_the_plan_says() {
    let checkpoint = Checkpoint::open(&miniature()).expect("the miniature");
    let limits = StepLimits { rows: 70, requests: 4, logit_rows: 4, tokens: 300 };
    let needs = MemoryNeeds::of_checkpoint(&checkpoint, Numerics::DEPLOY, &limits).expect("a measure");
    let model = model_on(Rc::new(open()), Numerics::DEPLOY);
    model.arena().reserve(needs.temporaries as usize).expect("memory");
    let cache = KvCache::new(model.device(), model.config(), model.numerics(), 12, 4).expect("caches");
    let tokens = prompt(300);
    let pages: [&[u32]; 4] = [&[0, 1, 2], &[3, 4, 5], &[6, 7, 8], &[9, 10, 11]];
    for start in (0..300).step_by(60) {
        let ends: Vec<RequestRows<'_>> = (0..4)
            .map(|q| {
                let (at, len) = if q == 0 { (start, 60) } else { (start / 2 + q, 3) };
                rows(&tokens[at..at + len], at, q, pages[q])
            })
            .collect();
        model.step(&cache, &ends, &[59, 62, 65, 68], None).expect("a step");
    }
    let peak = model.arena().peak_bytes() as u64;
    assert!(peak <= needs.temporaries && peak > needs.temporaries / 2, "{peak} of {}", needs.temporaries);
}

#[test]
fn staged_memory_is_used_again_and_faults_come_with_the_wait() {
    let device = Rc::new(open());
    let tensors = Tensors(device.clone());
    let target = tensors.i32(&[64], &[0; 64]);
    let before = device.blocking_waits();
    // Each upload may only be overtaken by what comes later in the stream.
    let mut downloads = Vec::new();
    for round in 0..300_i32 {
        let bytes: Vec<u8> = (0..64).flat_map(|i| (round * 100 + i).to_le_bytes()).collect();
        device.upload_staged(&target, &bytes).expect("an upload");
        downloads.push((round, device.download_later(&target).expect("a download")));
        if downloads.len() == 3 {
            let (round, mut download) = downloads.remove(0);
            assert_eq!(arrived(&mut *download), (0..64).map(|i| round * 100 + i).collect::<Vec<_>>());
        }
    }
    assert_eq!(device.blocking_waits() - before, 298);
    drop(downloads);

    let short = device.upload_staged(&target, &[0; 257]).unwrap_err().to_string();
    assert!(short.contains("tensor has 256 bytes, but 257 are to be copied"), "{short}");
    // A kernel of cpu-reference finds a wrong format when it runs: whoever waits for work behind it hears of it. Other
    // backends may find it in the call, as layers over it do.
    if device.backend() != "cpu" || std::env::var_os("DEEPINFER_LAYERS").is_some() {
        return;
    }
    let table = tensors.f32(&[4, 2], &[0.0; 8]);
    let out = tensors.poisoned(Format::U8, &[1, 1, 2]);
    let wrong = deepinfer_ops::args::Gather { table: &table, index: &tensors.i32(&[1], &[0]), repeat: 1, out: &out };
    deepinfer_ops::Dispatch::dispatch(&*device, &wrong).expect("not known yet");
    let mut download = device.download_later(&target).expect("a download");
    let first = download.wait().unwrap_err().to_string();
    assert!(first.contains("gather: out is U8"), "{first}");
    assert_eq!(download.is_done().unwrap_err().to_string(), first, "the same answer again");
    device.synchronize().expect("reported once");
}
