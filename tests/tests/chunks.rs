//! The bits of a request do not depend on how its tokens are divided into steps, on its neighbours, or on what memory
//! held before.

#![forbid(unsafe_code)]

use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::{KvCache, Model, Numerics, RequestRows};
use deepinfer_tests::{Tensors, device, fixture, miniature};

fn model(numerics: Numerics) -> Model {
    let checkpoint = Checkpoint::open(&miniature()).expect("the miniature");
    Model::load(device(), &checkpoint, numerics, &mut |_, _| {}).expect("the miniature loads").0
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

/// Bits of the logits of every position, computed in chunks of these lengths, repeated.
fn logits(model: &Model, tokens: &[u32], chunks: &[usize]) -> Vec<Vec<u32>> {
    let pages: Vec<u32> = (0..KvCache::pages_for(tokens.len()) as u32).collect();
    let cache = KvCache::new(model.device(), model.config(), model.numerics(), pages.len(), 1).expect("caches");
    let tensors = Tensors(model.device().clone());
    let mut rows = Vec::new();
    let mut lengths = chunks.iter().cycle();
    let mut start = 0;
    while start < tokens.len() {
        let length = (*lengths.next().expect("cycles")).min(tokens.len() - start);
        let request =
            RequestRows { tokens: &tokens[start..start + length], start, slot: 0, pages: &pages, image_mask: &[] };
        let wanted: Vec<usize> = (0..length).collect();
        let out = model.step(&cache, &[request], &wanted, None).expect("the step runs");
        let values = tensors.floats(&out);
        rows.extend(values.chunks(model.config().vocab_size).map(|r| r.iter().map(|v| v.to_bits()).collect()));
        start += length;
    }
    rows
}

fn assert_same(what: &str, found: &[Vec<u32>], wanted: &[Vec<u32>]) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (position, (a, b)) in found.iter().zip(wanted).enumerate() {
        let differing = a.iter().zip(b).filter(|(x, y)| x != y).count();
        assert_eq!(differing, 0, "{what}: {differing} logits of position {position} differ in their bits");
    }
}

#[test]
fn chunks_of_any_size_and_single_steps_give_the_same_bits() {
    let tokens = prompt(600);
    for numerics in [Numerics::DEPLOY, Numerics::EXACT] {
        let model = model(numerics);
        let whole = logits(&model, &tokens, &[tokens.len()]);
        for chunks in [&[1][..], &[7], &[64], &[128], &[1, 30, 2, 130, 7, 8]] {
            assert_same(&format!("chunks {chunks:?}"), &logits(&model, &tokens, chunks), &whole);
        }
    }
}

#[test]
fn memory_that_nobody_wrote_is_not_read() {
    let tokens = prompt(200);
    let model = model(Numerics::DEPLOY);
    let clean = logits(&model, &tokens, &[90, 1]);
    model.arena().set_poison(true);
    assert_same("poisoned", &logits(&model, &tokens, &[90, 1]), &clean);
}

#[test]
fn neighbours_in_a_step_change_nothing() {
    let model = model(Numerics::DEPLOY);
    let long = prompt(300);
    let others: Vec<Vec<u32>> = vec![long[40..41].to_vec(), long.clone(), long[7..150].to_vec()];
    let alone: Vec<Vec<Vec<u32>>> = others.iter().map(|tokens| logits(&model, tokens, &[64])).collect();

    // The three together, with pages and slots in another order, each advancing by another chunk length.
    let cache = KvCache::new(model.device(), model.config(), model.numerics(), 9, 4).expect("caches");
    let pages: [&[u32]; 3] = [&[7], &[4, 0, 8], &[2, 6]];
    let (slots, chunks) = ([2, 0, 3], [1, 50, 33]);
    let tensors = Tensors(model.device().clone());
    let mut done = [0_usize; 3];
    let mut together: Vec<Vec<Vec<u32>>> = vec![Vec::new(); 3];
    while (0..3).any(|q| done[q] < others[q].len()) {
        let active: Vec<usize> = (0..3).filter(|&q| done[q] < others[q].len()).collect();
        let requests: Vec<RequestRows<'_>> = active
            .iter()
            .map(|&q| {
                let end = (done[q] + chunks[q]).min(others[q].len());
                RequestRows {
                    tokens: &others[q][done[q]..end],
                    start: done[q],
                    slot: slots[q],
                    pages: pages[q],
                    image_mask: &[],
                }
            })
            .collect();
        let rows: usize = requests.iter().map(|r| r.tokens.len()).sum();
        let all: Vec<usize> = (0..rows).collect();
        let out = model.step(&cache, &requests, &all, None).expect("the step runs");
        let values = tensors.floats(&out);
        let mut row_bits = values.chunks(model.config().vocab_size).map(|r| r.iter().map(|v| v.to_bits()).collect());
        for (&q, request) in active.iter().zip(&requests) {
            together[q].extend(row_bits.by_ref().take(request.tokens.len()));
            done[q] += request.tokens.len();
        }
    }
    for (q, (found, wanted)) in together.iter().zip(&alone).enumerate() {
        assert_same(&format!("request {q}"), found, wanted);
    }
}
