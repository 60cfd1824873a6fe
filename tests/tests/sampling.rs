//! Drawing tokens: the vectors that every backend must reproduce, and the distribution of what is drawn.
//!
//! The backend under test is that of `DEEPINFER_ACCELERATOR`, or cpu-reference; the vectors are also run by the C example.

#![forbid(unsafe_code)]

use std::rc::Rc;

use deepinfer_ops::args::FusedSample;
use deepinfer_ops::traits::SampleOps;
use deepinfer_ops::{Device, Format};
use deepinfer_tests::distribution::draw_cases;
use deepinfer_tests::{Tensors, device};
use serde::Deserialize;

/// `vectors.json` of `deepinfer-numerics`.
#[derive(Deserialize)]
struct Vectors {
    draws: Vec<DrawVector>,
}

/// Bit patterns and 64-bit integers are hexadecimal.
#[derive(Deserialize)]
struct DrawVector {
    vocabulary: u32,
    bits: u32,
    inv_temperature: String,
    seed: String,
    position: i32,
    child: i32,
    min_p_log: String,
    top_k: i32,
    top_p: String,
    token: i32,
}

fn number(text: &str) -> u64 {
    let digits = text.strip_prefix("0x").expect("a hexadecimal number");
    u64::from_str_radix(digits, 16).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn float(text: &str) -> f32 {
    f32::from_bits(u32::try_from(number(text)).expect("32 bits"))
}

/// The logits of a vector, as `SAMPLING.md` defines them.
fn logits(vector: &DrawVector) -> Vec<f32> {
    let hash = |v: u32| v.wrapping_mul(2_654_435_761) >> (32 - vector.bits);
    (0..vector.vocabulary).map(|v| hash(v) as f32 * 2f32.powi(4 - vector.bits as i32) - 8.0).collect()
}

/// Draws all vectors with as many tokens in one call, so that rows with different filters stand side by side.
fn draws_the_vectors(device: Rc<dyn Device>) {
    let file = include_str!("../../plugin-api/numerics/vectors.json");
    let vectors: Vectors = serde_json::from_str(file).expect("vectors.json");
    let mut vocabularies: Vec<u32> = vectors.draws.iter().map(|vector| vector.vocabulary).collect();
    vocabularies.sort_unstable();
    vocabularies.dedup();
    assert!(vocabularies.len() > 3 && vectors.draws.len() > 200, "the file is not what it was");
    let t = Tensors(device);
    for vocabulary in vocabularies {
        let rows: Vec<&DrawVector> = vectors.draws.iter().filter(|vector| vector.vocabulary == vocabulary).collect();
        let n = [rows.len()];
        let floats = |f: fn(&DrawVector) -> &str| t.f32(&n, &rows.iter().map(|row| float(f(row))).collect::<Vec<_>>());
        let ints = |f: fn(&DrawVector) -> i32| t.i32(&n, &rows.iter().map(|row| f(row)).collect::<Vec<_>>());
        let all: Vec<f32> = rows.iter().flat_map(|row| logits(row)).collect();
        let token = t.poisoned(Format::I32, &n);
        let args = FusedSample {
            logits: &t.f32(&[rows.len(), vocabulary as usize], &all),
            inv_temperature: &floats(|row| &row.inv_temperature),
            seed: &t.i64(&n, &rows.iter().map(|row| number(&row.seed) as i64).collect::<Vec<_>>()),
            position: &ints(|row| row.position),
            token: &token,
            child: Some(&ints(|row| row.child)),
            min_p_log: Some(&floats(|row| &row.min_p_log)),
            top_k: Some(&ints(|row| row.top_k)),
            top_p: Some(&floats(|row| &row.top_p)),
        };
        t.0.fused_sample(&args).unwrap_or_else(|e| panic!("{e}"));
        let wanted: Vec<i32> = rows.iter().map(|row| row.token).collect();
        assert_eq!(t.ints(&token), wanted, "{vocabulary} tokens");
    }
}

#[test]
fn the_backend_draws_the_vectors() {
    draws_the_vectors(device());
}

#[test]
fn the_c_example_draws_the_vectors() {
    let Some(library) = deepinfer_example_backend_c::library() else {
        eprintln!("skipped: the C example was not built, since there was no C compiler");
        return;
    };
    let backend = deepinfer_runtime::load(library, "").unwrap_or_else(|e| panic!("{e}"));
    draws_the_vectors(Rc::new(backend.open(0).unwrap_or_else(|e| panic!("{e}"))));
}

/// Where the boundary of `top_k` lies among equal logits, the lowest ids stay, and no more than k.
#[test]
fn top_k_keeps_exactly_k_of_equal_logits() {
    let t = Tensors(device());
    let rows = 4096;
    // Three logits above a tie of ten among lower ones, and all equal.
    let mut tied = vec![-1.0_f32; 64];
    (20..30).for_each(|token| tied[token] = 1.0);
    [50, 3, 33].iter().for_each(|&token| tied[token] = 1.25);
    let ranked: Vec<i32> = [3, 33, 50].into_iter().chain(20..30).collect();
    let cases = [(tied.clone(), 3, &ranked[..3]), (tied.clone(), 4, &ranked[..4]), (tied, 9, &ranked[..9])];
    let equal: Vec<i32> = (0..1000).collect();
    let cases = cases.into_iter().chain([1, 7, 999].map(|k| (vec![0.5; 1000], k as i32, &equal[..k])));
    for (logits, top_k, wanted) in cases {
        let (vocabulary, n) = (logits.len(), [rows]);
        let token = t.poisoned(Format::I32, &n);
        let args = FusedSample {
            logits: &t.f32(&[rows, vocabulary], &logits.repeat(rows)),
            // Hot, so that every token that stays is drawn.
            inv_temperature: &t.f32(&n, &vec![0.1; rows]),
            seed: &t.i64(&n, &vec![7; rows]),
            position: &t.i32(&n, &(0..rows as i32).collect::<Vec<_>>()),
            token: &token,
            child: None,
            min_p_log: None,
            top_k: Some(&t.i32(&n, &vec![top_k; rows])),
            top_p: None,
        };
        t.0.fused_sample(&args).unwrap_or_else(|e| panic!("{e}"));
        let mut drawn = t.ints(&token);
        drawn.sort_unstable();
        drawn.dedup();
        assert!(drawn.iter().all(|token| wanted.contains(token)), "top_k {top_k}: drew {drawn:?}, allowed {wanted:?}");
        // Each of 999 is missed by 4096 draws with a chance of 1/60.
        let least = if wanted.len() < 100 { wanted.len() } else { wanted.len() * 9 / 10 };
        assert!(drawn.len() >= least, "top_k {top_k}: of {} tokens only {drawn:?} were drawn", wanted.len());
    }
}

/// The cases of the example `draw_distribution`, with fewer draws. Seeds are fixed, so that the result does not change.
#[test]
fn drawn_tokens_have_their_distribution() {
    let tensors = Tensors(device());
    for (name, draws) in draw_cases(1 << 15, 1 << 9) {
        let found = draws.compare(&tensors);
        assert!(found.freedom > 0 && found.p > 1e-4, "{name}: {found:?}");
    }
}
