//! Compressed entries: latents from one prefill, from steps and from chunks, and what caches keep of them.

use deepinfer_ops::traits::*;
use deepinfer_ops::{CacheFormat, Tensor, args};
use deepinfer_tests::{Golden, assert_close};

use crate::{Bench, ints, tiny_compressed_frequencies};

const SEQUENCES: usize = 2;
/// Tokens of each sequence.
const TOKENS: usize = 27;
const DIM: usize = 64;
const INDEX_DIM: usize = 32;

/// Pools the tokens `range` of both sequences and gives the latents of the groups that end there, after the norm.
fn pool(bench: &Bench, golden: &Golden, state: &Tensor, ratio: usize, range: std::ops::Range<usize>) -> Vec<Vec<f32>> {
    let tensors = &bench.tensors;
    let (x, shape) = golden.f32("layer1.x");
    let len = range.len();
    let rows: Vec<f32> =
        x.chunks(TOKENS * shape[2]).flat_map(|s| &s[range.start * shape[2]..range.end * shape[2]]).copied().collect();
    let x = tensors.f32(&[SEQUENCES * len, shape[2]], &rows);
    let positions: Vec<i32> = (0..SEQUENCES).flat_map(|_| range.clone()).map(|p| p as i32).collect();
    let owners: Vec<i32> = (0..SEQUENCES as i32).flat_map(|q| vec![q; len]).collect();
    let ends: Vec<i32> =
        (0..positions.len() as i32).filter(|&t| (positions[t as usize] + 1) % ratio as i32 == 0).collect();
    let out = bench.empty(&[ends.len(), DIM]);
    let args = args::CompressAndUpdateState {
        latent: &bench.linear(&x, &bench.matrix(golden, "layer1.w.wkv.weight")),
        score: &bench.linear(&x, &bench.matrix(golden, "layer1.w.wgate.weight")),
        state,
        group_row: &tensors.i32(&[ends.len()], &ends),
        positions: &tensors.i32(&[positions.len()], &positions),
        row_request: &tensors.i32(&[owners.len()], &owners),
        request_start: &tensors.i32(&[SEQUENCES + 1], &[0, len as i32, 2 * len as i32]),
        state_slot: &tensors.i32(&[SEQUENCES], &[1, 0]),
        ratio: ratio as u32,
        out: &out,
    };
    bench.device.compress_and_update_state(&args).expect("compress_and_update_state");
    let latents = bench.floats(&bench.rms_norm(&out, &bench.matrix(golden, "layer1.w.norm.weight")));
    latents.chunks(latents.len().div_ceil(SEQUENCES).max(1)).map(<[f32]>::to_vec).collect()
}

#[test]
fn latents_of_one_prefill_of_steps_and_of_chunks() {
    let (bench, golden) = (Bench::new(), Golden::open("compressor"));
    let ratio = 2;
    let emits = ints(&golden, "layer1.step_emits");
    for (name, cuts) in [
        ("latent", vec![0, TOKENS]),
        ("step_latent", (0..=TOKENS).collect()),
        ("latent", vec![0, 5, 6, 14, TOKENS]),
        ("step_latent", vec![0, 1, 2, 20, TOKENS]),
    ] {
        let state = bench.empty(&[SEQUENCES, ratio, 2, DIM]);
        let mut found = vec![Vec::new(); SEQUENCES];
        for piece in cuts.windows(2) {
            let latents = pool(&bench, &golden, &state, ratio, piece[0]..piece[1]);
            let groups = latents.first().map_or(0, Vec::len) / DIM;
            assert_eq!(groups as i32, emits[piece[0]..piece[1]].iter().sum::<i32>(), "groups in {piece:?}");
            found.iter_mut().zip(latents).for_each(|(all, new)| all.extend(new));
        }
        assert_close(
            &format!("{name} in pieces {cuts:?}"),
            &found.concat(),
            &golden.f32(&format!("layer1.{name}")).0,
            1e-5,
            0.0,
        );
    }
}

#[test]
fn latents_of_ratio_one() {
    let (bench, golden) = (Bench::new(), Golden::open("compressor"));
    let x = bench.load(&golden, "layer3.x", &[SEQUENCES * TOKENS, 128]);
    let projected = bench.linear(&x, &bench.matrix(&golden, "layer3.w.wkv.weight"));
    let latents = bench.floats(&bench.rms_norm(&projected, &bench.matrix(&golden, "layer3.w.norm.weight")));
    assert_eq!(ints(&golden, "layer3.step_emits"), [1; TOKENS]);
    for name in ["layer3.latent", "layer3.step_latent"] {
        assert_close(name, &latents, &golden.f32(name).0, 1e-5, 0.0);
    }
}

#[test]
fn published_entries_exact_and_as_caches_keep_them() {
    let (bench, golden) = (Bench::new(), Golden::open("compressor"));
    let freqs = tiny_compressed_frequencies();
    for (layer, ratio) in [("layer1", 2), ("layer3", 1)] {
        let (latents, shape) = golden.f32(&format!("{layer}.latent"));
        let rows = shape[0] * shape[1];
        // An entry stands at the first token of its group.
        let positions: Vec<i32> = (0..rows).map(|row| (row % shape[1] * ratio) as i32).collect();
        let kv = bench.tensors.f32(&[rows, DIM], &latents);
        let keys = bench.linear(&kv, &bench.matrix(&golden, &format!("{layer}.wi.wk.weight")));
        let keys = bench.rms_norm(&keys, &bench.matrix(&golden, &format!("{layer}.wi.k_norm.weight")));
        for (entries, name, format, dim) in
            [(&kv, "kv", CacheFormat::Fp4Row16, DIM), (&keys, "index_k", CacheFormat::Fp4Row32, INDEX_DIM)]
        {
            bench.rope(entries, 1, &positions, &freqs, false);
            let name = |numerics: &str| format!("{layer}.{numerics}.{name}");
            assert_close(&name("exact"), &bench.floats(entries), &golden.f32(&name("exact")).0, 1e-5, 0.0);

            let stored = bench.store(entries, format, 4);
            let found = bench.read(&stored, format, 4, rows, dim);
            let wanted = golden.f32(&name("cache")).0;
            let flips = found.iter().zip(&wanted).filter(|(a, b)| a != b).count();
            assert!(flips * 1000 < found.len(), "{}: {flips} of {} values differ", name("cache"), found.len());
        }
    }
}
