//! N-gram memory: hashes with the tiny and the released constants, lookup and gate.

use deepinfer_ops::traits::*;
use deepinfer_ops::{Format, Tensor, args};
use deepinfer_tests::{Golden, assert_close};

use crate::{Bench, EPS, ints};

/// The constants of a file on a device, and the state of its sequences.
struct Hasher<'a> {
    bench: &'a Bench,
    token_map: Tensor,
    multipliers: Tensor,
    primes: Tensor,
    offsets: Tensor,
    history: Tensor,
    pad: i32,
    /// Layers and columns.
    shape: [usize; 2],
}

impl<'a> Hasher<'a> {
    fn new(bench: &'a Bench, golden: &Golden, token_map: &[i32], pad: i32, sequences: usize) -> Self {
        let (offsets, shape) = golden.i64("offsets");
        let (multipliers, lookback) = golden.i64("multipliers");
        let tensors = &bench.tensors;
        Self {
            bench,
            token_map: tensors.i32(&[token_map.len()], token_map),
            multipliers: tensors.i64(&lookback, &multipliers),
            primes: tensors.i64(&shape, &golden.i64("primes").0),
            offsets: tensors.i64(&shape, &offsets),
            // A new sequence has no earlier token.
            history: tensors.poisoned(Format::I32, &[sequences, lookback[1] - 1]),
            pad,
            shape: [shape[0], shape[1]],
        }
    }

    /// Hashes the tokens `range` of every sequence of `ids`, which has `length` of each, and gives the rows by token,
    /// layer and column.
    fn rows(&self, ids: &[i32], text_mask: Option<&[u8]>, range: std::ops::Range<usize>, length: usize) -> Vec<i32> {
        let (tensors, sequences, len) = (&self.bench.tensors, ids.len() / length, range.len());
        let tokens: Vec<i32> = ids.chunks(length).flat_map(|ids| &ids[range.clone()]).copied().collect();
        let mask: Option<Vec<u8>> =
            text_mask.map(|m| m.chunks(length).flat_map(|m| &m[range.clone()]).map(|&text| 1 - text).collect());
        let mask = mask.map(|mask| tensors.from_bytes(Format::U8, &[mask.len()], &mask));
        let start: Vec<i32> = (0..=sequences).map(|q| (q * len) as i32).collect();
        let slots: Vec<i32> = (0..sequences as i32).collect();
        let [layers, columns] = self.shape;
        let rows = tensors.poisoned(Format::I32, &[layers, tokens.len(), columns]);
        let args = args::EngramHash {
            token_ids: &tensors.i32(&[tokens.len()], &tokens),
            token_map: &self.token_map,
            image_mask: mask.as_ref(),
            history: &self.history,
            request_start: &tensors.i32(&[sequences + 1], &start),
            state_slot: &tensors.i32(&[sequences], &slots),
            pad: self.pad,
            multipliers: &self.multipliers,
            primes: &self.primes,
            offsets: &self.offsets,
            rows: &rows,
        };
        self.bench.device.engram_hash(&args).expect("engram_hash");
        let rows = tensors.ints(&rows);
        (0..sequences * len)
            .flat_map(|t| (0..layers).map(move |layer| (layer * sequences * len + t) * columns))
            .flat_map(|first| rows[first..first + columns].to_vec())
            .collect()
    }
}

#[test]
fn hashes_with_the_released_constants() {
    let (bench, golden) = (Bench::new(), Golden::open("engram_released"));
    let ids = ints(&golden, "ids");
    let hasher = Hasher::new(&bench, &golden, &golden.i32("token_map").0, ints(&golden, "pad")[0], 1);
    assert_eq!(hasher.rows(&ids, None, 0..ids.len(), ids.len()), ints(&golden, "rows"));
}

#[test]
fn hashes_in_one_call_and_in_pieces_with_and_without_images() {
    let (bench, golden) = (Bench::new(), Golden::open("engram"));
    let (ids, token_map, text_mask) = (ints(&golden, "ids"), ints(&golden, "token_map"), golden.u8("text_mask").0);
    let (sequences, length) = (2, 24);
    let new = || Hasher::new(&bench, &golden, &token_map, token_map[2], sequences);
    assert_eq!(new().rows(&ids, None, 0..length, length), ints(&golden, "rows"));
    let masked = ints(&golden, "rows_masked");
    let whole = new();
    assert_eq!(whole.rows(&ids, Some(&text_mask), 0..length, length), masked);
    assert_eq!(bench.tensors.ints(&whole.history), ints(&golden, "history_after"));

    let (pieces, width) = (new(), masked.len() / ids.len());
    for range in [0..1, 1..2, 2..9, 9..24] {
        let wanted: Vec<i32> = masked
            .chunks(length * width)
            .flat_map(|sequence| &sequence[range.start * width..range.end * width])
            .copied()
            .collect();
        assert_eq!(pieces.rows(&ids, Some(&text_mask), range.clone(), length), wanted, "tokens {range:?}");
    }
    assert_eq!(bench.tensors.ints(&pieces.history), ints(&golden, "history_after"));
}

#[test]
fn looked_up_values_pass_the_gate() {
    let (bench, golden) = (Bench::new(), Golden::open("engram"));
    let image_mask: Vec<u8> = golden.u8("text_mask").0.iter().map(|text| 1 - text).collect();
    let image_mask = bench.tensors.from_bytes(Format::U8, &[image_mask.len()], &image_mask);
    for (slot, layer) in [0, 2].into_iter().enumerate() {
        let name = |part: &str| format!("layer{layer}.{part}");
        for (rows, mask, out) in [("rows", None, "out"), ("rows_masked", Some(&image_mask), "out_masked")] {
            let (values, shape) = golden.i64(rows);
            let (tokens, layers, columns) = (shape[0] * shape[1], shape[2], shape[3]);
            let of_layer = |t: usize| &values[(t * layers + slot) * columns..][..columns];
            let numbers: Vec<i32> = (0..tokens).flat_map(of_layer).map(|&row| row as i32).collect();
            let table = bench.matrix(&golden, &name("w.embed.weight"));
            let looked_up = bench.empty(&[tokens, columns * table.dim(1)]);
            let args = args::EngramGather {
                table: &table,
                rows: &bench.tensors.i32(&[tokens, columns], &numbers),
                out: &looked_up,
            };
            bench.device.engram_gather(&args).expect("engram_gather");

            let kv = bench.linear(&looked_up, &bench.matrix(&golden, &name("w.wkv.weight")));
            let (q_weight, k_weight) =
                (bench.matrix(&golden, &name("w.q_weight")), bench.matrix(&golden, &name("w.k_weight")));
            let x = bench.load(&golden, &name("x"), &[tokens, q_weight.dim(0), q_weight.dim(1)]);
            let args = args::EngramGate {
                x: &x,
                kv: &kv,
                q_weight: &q_weight,
                k_weight: &k_weight,
                image_mask: mask,
                eps: EPS,
            };
            bench.device.engram_gate(&args).expect("engram_gate");
            assert_close(&name(out), &bench.floats(&x), &golden.f32(&name(out)).0, 1e-5, 0.0);
        }
    }
}
