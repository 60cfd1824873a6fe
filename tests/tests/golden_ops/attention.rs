//! Index scores, selection among all entries and among candidates, and sparse attention.

use deepinfer_ops::traits::*;
use deepinfer_ops::{CacheFormat, Format, Tensor, args};
use deepinfer_tests::{Golden, assert_close};

use crate::{Bench, ints, tiny_compressed_frequencies};

const SEQUENCES: usize = 2;
const DIM: usize = 64;
const INDEX_DIM: usize = 32;
const INDEX_HEADS: usize = 4;
const TOPK: usize = 8;
const BLOCKS: usize = 4;
const BLOCK_SIZE: usize = 4;

/// Both sequences of the indexer file: their keys in a cache whose pages are shuffled.
struct Indexer {
    bench: Bench,
    golden: Golden,
    keys: Tensor,
    block_table: Tensor,
    positions: Vec<i32>,
    entries: usize,
}

const ENTRIES_PER_PAGE: usize = 16;

impl Indexer {
    fn new() -> Self {
        let (bench, golden) = (Bench::new(), Golden::open("indexer"));
        let (keys, shape) = golden.f32("index_k");
        let entries = shape[1];
        let pages = entries.div_ceil(ENTRIES_PER_PAGE);
        // The even pages belong to the first sequence, backwards; the odd ones to the second.
        let page = |q: usize, page: usize| SEQUENCES * (pages - 1 - page) + q;
        let mut rows = vec![0.0; SEQUENCES * pages * ENTRIES_PER_PAGE * INDEX_DIM];
        for (i, key) in keys.chunks(INDEX_DIM).enumerate() {
            let (q, e) = (i / entries, i % entries);
            let slot = page(q, e / ENTRIES_PER_PAGE) * ENTRIES_PER_PAGE + e % ENTRIES_PER_PAGE;
            rows[slot * INDEX_DIM..][..INDEX_DIM].copy_from_slice(key);
        }
        let rows = bench.tensors.f32(&[SEQUENCES * pages * ENTRIES_PER_PAGE, INDEX_DIM], &rows);
        // The keys are FP4 values already: storing them again changes nothing.
        let keys = bench.store(&rows, CacheFormat::Fp4Row32, ENTRIES_PER_PAGE);
        let table: Vec<i32> = (0..SEQUENCES).flat_map(|q| (0..pages).map(move |p| page(q, p) as i32)).collect();
        let block_table = bench.tensors.i32(&[SEQUENCES, pages], &table);
        let positions = ints(&golden, "positions");
        Self { bench, golden, keys, block_table, positions, entries }
    }

    fn rows(&self) -> usize {
        SEQUENCES * self.positions.len()
    }

    /// Entries that each row may see: one per position, itself included.
    fn visible(&self) -> Vec<i32> {
        (0..SEQUENCES).flat_map(|_| self.positions.iter().map(|p| p + 1)).collect()
    }

    /// Scores of a layer, of all entries or of candidate blocks.
    fn scores(&self, layer: &str, visible: &[i32], candidates: Option<&Tensor>) -> Tensor {
        let (bench, golden, rows) = (&self.bench, &self.golden, self.rows());
        let input = |name: &str, width| bench.load(golden, &format!("{layer}.{name}"), &[rows, width]);
        let q = bench.linear(&input("qr", 64), &bench.matrix(golden, &format!("{layer}.w.wq_b")));
        let positions: Vec<i32> = (0..SEQUENCES).flat_map(|_| self.positions.clone()).collect();
        bench.rope(&q, INDEX_HEADS, &positions, &tiny_compressed_frequencies(), false);
        let owners: Vec<i32> = (0..rows).map(|row| (row / self.positions.len()) as i32).collect();
        let columns = candidates.map_or(self.entries, |c| c.dim(1) * BLOCK_SIZE);
        let out = bench.empty(&[rows, columns]);
        let args = args::IndexScores {
            q: &bench.quantize(&q, Format::Fp4Row32),
            head_weight: &bench.linear(&input("x", 128), &bench.matrix(golden, &format!("{layer}.w.weights_proj"))),
            scale: ((INDEX_DIM * INDEX_HEADS) as f32).sqrt().recip(),
            keys: &self.keys,
            format: CacheFormat::Fp4Row32 as u32,
            entries_per_page: ENTRIES_PER_PAGE as u32,
            row_request: &bench.tensors.i32(&[rows], &owners),
            block_table: &self.block_table,
            visible: &bench.tensors.i32(&[rows], visible),
            candidates,
            block_size: BLOCK_SIZE as u32,
            out: &out,
        };
        bench.device.index_scores(&args).expect("index_scores");
        out
    }

    fn topk(&self, scores: &Tensor, k: usize) -> Tensor {
        let out = self.bench.tensors.poisoned(Format::I32, &[scores.dim(0), k]);
        self.bench.device.topk_select(&args::TopkSelect { scores, out: &out }).expect("topk_select");
        out
    }

    /// Blocks of the candidate source, ascending.
    fn candidates(&self) -> Tensor {
        let scores = self.scores("layer3", &self.visible(), None);
        let best = self.bench.empty(&[self.rows(), self.entries.div_ceil(BLOCK_SIZE)]);
        let args = args::CandidateBlockMax {
            scores: &scores,
            visible: &self.bench.tensors.i32(&[self.rows()], &self.visible()),
            block_size: BLOCK_SIZE as u32,
            out: &best,
        };
        self.bench.device.candidate_block_max(&args).expect("candidate_block_max");
        self.topk(&best, BLOCKS)
    }

    /// Selections must be equal where the stored margin decides them.
    fn assert_selected(&self, layer: &str, selected: &Tensor) {
        let (found, wanted) = (self.bench.tensors.ints(selected), self.golden.i32(&format!("{layer}.topk")).0);
        let margins = self.golden.f32(&format!("{layer}.margin")).0;
        let mut compared = 0;
        for (row, margin) in margins.iter().enumerate().filter(|(_, margin)| **margin > 1e-5) {
            let range = row * TOPK..(row + 1) * TOPK;
            assert_eq!(found[range.clone()], wanted[range], "{layer}, row {row}, margin {margin}");
            compared += 1;
        }
        assert!(compared * 2 > margins.len(), "{layer}: only {compared} rows have a margin");
    }
}

#[test]
fn index_scores_of_every_entry() {
    let indexer = Indexer::new();
    let all = vec![indexer.entries as i32; indexer.rows()];
    for layer in ["layer3", "layer5"] {
        let name = format!("{layer}.score");
        let found = indexer.bench.floats(&indexer.scores(layer, &all, None));
        assert_close(&name, &found, &indexer.golden.f32(&name).0, 1e-5, 0.0);
    }
}

#[test]
fn selection_and_candidate_blocks_of_the_source_layer() {
    let indexer = Indexer::new();
    let scores = indexer.scores("layer3", &indexer.visible(), None);
    indexer.assert_selected("layer3", &indexer.topk(&scores, TOPK));

    let mask = indexer.golden.u8("layer3.candidates").0;
    let blocks = indexer.bench.tensors.ints(&indexer.candidates());
    for (row, (mask, blocks)) in mask.chunks(indexer.entries).zip(blocks.chunks(BLOCKS)).enumerate() {
        let marked: Vec<i32> = mask.chunks(BLOCK_SIZE).zip(0..).filter(|(b, _)| b[0] == 1).map(|(_, i)| i).collect();
        assert_eq!(blocks, marked, "row {row}");
    }
}

#[test]
fn selection_inside_candidate_blocks() {
    let indexer = Indexer::new();
    let candidates = indexer.candidates();
    let scores = indexer.scores("layer5", &indexer.visible(), Some(&candidates));

    // The score of a column is that of its entry.
    let (found, wanted) = (indexer.bench.floats(&scores), indexer.golden.f32("layer5.score").0);
    let (blocks, visible) = (indexer.bench.tensors.ints(&candidates), indexer.visible());
    let columns = BLOCKS * BLOCK_SIZE;
    for (i, score) in found.iter().enumerate() {
        let (row, column) = (i / columns, i % columns);
        let entry = blocks[row * BLOCKS + column / BLOCK_SIZE] as usize * BLOCK_SIZE + column % BLOCK_SIZE;
        if entry < visible[row] as usize {
            assert_close("layer5.score", &[*score], &[wanted[row * indexer.entries + entry]], 1e-5, 0.0);
        } else {
            assert_eq!(*score, f32::NEG_INFINITY, "row {row} does not see entry {entry}");
        }
    }

    let selected = indexer.topk(&scores, TOPK);
    let args = args::RestoreCandidateIndicesInplace {
        columns: &selected,
        candidates: &candidates,
        block_size: BLOCK_SIZE as u32,
    };
    indexer.bench.device.restore_candidate_indices_inplace(&args).expect("restore_candidate_indices_inplace");
    indexer.assert_selected("layer5", &selected);
}

#[test]
fn attention_over_listed_entries_of_one_cache_and_of_two() {
    let (bench, golden) = (Bench::new(), Golden::open("sparse_attention"));
    let (kv, shape) = golden.f32("kv");
    let (entries, per_page) = (shape[1], 7);
    let cache = bench.store(&bench.tensors.f32(&[SEQUENCES * entries, DIM], &kv), CacheFormat::F32, per_page);
    let (indices, listed) = golden.i32("indices");
    let (rows, width, heads) = (listed[0] * listed[1], listed[2], 4);
    let slot =
        |(i, &index): (usize, &i32)| if index < 0 { -1 } else { (i / (listed[1] * width) * entries) as i32 + index };
    let slots: Vec<i32> = indices.iter().enumerate().map(slot).collect();
    let columns = |range: std::ops::Range<usize>| {
        let values: Vec<i32> = slots.chunks(width).flat_map(|row| &row[range.clone()]).copied().collect();
        bench.tensors.i32(&[rows, range.len()], &values)
    };
    let (q, sink) = (bench.load(&golden, "q", &[rows, heads, DIM]), bench.matrix(&golden, "sink"));
    for in_window in [width, 5, 0] {
        let (window_slots, global_slots) = (columns(0..in_window), columns(in_window..width));
        let has_global = in_window < width;
        let out = bench.empty(&[rows, heads, DIM]);
        let args = args::SparseAttention {
            q: &q,
            window: &cache,
            window_format: CacheFormat::F32 as u32,
            window_entries_per_page: per_page as u32,
            window_slots: &window_slots,
            global: has_global.then_some(&cache),
            global_format: CacheFormat::F32 as u32,
            global_entries_per_page: per_page as u32,
            global_slots: has_global.then_some(&global_slots),
            sink: &sink,
            scale: (DIM as f32).sqrt().recip(),
            round_probs: 0,
            out: &out,
        };
        bench.device.sparse_attention(&args).expect("sparse_attention");
        let what = format!("attention with {in_window} of {width} entries in the window");
        assert_close(&what, &bench.floats(&out), &golden.f32("out").0, 1e-5, 0.0);
    }
}
