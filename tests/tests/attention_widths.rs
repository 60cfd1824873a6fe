//! A row of `sparse_attention` has the bits that follow from what it lists: not from how wide the lists of its batch are, nor
//! from the rows beside it. Rows of BF16 queries of 512 channels and 64 heads, as in the released model, with lists below and
//! above the widths at which a backend may change its kernel; with scores that are alike, and with scores so far apart that
//! most probabilities vanish.
//!
//! What is computed is judged where the layer stands over it: `DEEPINFER_LAYERS=validate:shadow=1/1,on=error`.

#![forbid(unsafe_code)]

use deepinfer_ops::args::SparseAttention;
use deepinfer_ops::traits::AttentionOps;
use deepinfer_ops::{CacheFormat, Format, Tensor};
use deepinfer_tests::random::{Random, entries};
use deepinfer_tests::{Tensors, device};

const HEADS: usize = 64;
const DIM: usize = 512;
const PAGE: usize = 128;
const PAGES: usize = 24;
/// Entries of a row in the window and in the other cache: none, few, ten chunks of 64 to the last place, one more, and many.
const ROWS: [(usize, usize); 7] = [(0, 0), (5, 0), (100, 333), (128, 512), (128, 513), (128, 700), (77, 1500)];

/// Places of `count` random entries in a list of `width`, with holes between them if there is room.
fn list(width: usize, slots: &[i32]) -> Vec<i32> {
    let mut out = vec![-1; width];
    let gap = if slots.len() * 2 <= width { 2 } else { 1 };
    for (place, &slot) in out.iter_mut().step_by(gap).zip(slots) {
        *place = slot;
    }
    out
}

struct Bench {
    tensors: Tensors,
    window: (CacheFormat, Tensor),
    global: (CacheFormat, Tensor),
    queries: Vec<f32>,
    sink: Tensor,
}

impl Bench {
    fn new(window: CacheFormat, global: CacheFormat) -> Self {
        let tensors = Tensors(device());
        let mut random = Random::new(3);
        let mut cache = |format: CacheFormat| {
            let bytes = entries(format, PAGES * PAGE, DIM, &mut random);
            (format, tensors.from_bytes(Format::U8, &[PAGES, PAGE * format.entry_bytes(DIM)], &bytes))
        };
        let (window, global) = (cache(window), cache(global));
        let queries = (0..ROWS.len() * HEADS * DIM).map(|_| random.normal()).collect();
        let sink: Vec<f32> = (0..HEADS).map(|_| random.normal()).collect();
        let sink = tensors.f32(&[HEADS], &sink);
        Self { tensors, window, global, queries, sink }
    }

    /// The bits of these rows in lists of these widths, row by row.
    fn rows(&self, rows: &[usize], (window_width, global_width): (usize, usize), scale: f32) -> Vec<Vec<u8>> {
        let (mut windows, mut globals, mut queries) = (Vec::new(), Vec::new(), Vec::new());
        for &row in rows {
            let mut random = Random::new(100 + row as u64);
            let mut slots = |count: usize| -> Vec<i32> {
                (0..count).map(|_| (random.bits() % (PAGES * PAGE) as u64) as i32).collect()
            };
            windows.extend(list(window_width, &slots(ROWS[row].0)));
            globals.extend(list(global_width, &slots(ROWS[row].1)));
            queries.extend_from_slice(&self.queries[row * HEADS * DIM..][..HEADS * DIM]);
        }
        let tensors = &self.tensors;
        let out = tensors.poisoned(Format::Bf16, &[rows.len(), HEADS, DIM]);
        let call = SparseAttention {
            q: &tensors.bf16(&[rows.len(), HEADS, DIM], &queries),
            window: &self.window.1,
            window_format: self.window.0 as u32,
            window_entries_per_page: PAGE as u32,
            window_slots: &tensors.i32(&[rows.len(), window_width], &windows),
            global: Some(&self.global.1),
            global_format: self.global.0 as u32,
            global_entries_per_page: PAGE as u32,
            global_slots: Some(&tensors.i32(&[rows.len(), global_width], &globals)),
            sink: &self.sink,
            scale,
            round_probs: 1,
            out: &out,
        };
        tensors.0.sparse_attention(&call).unwrap_or_else(|e| panic!("{e}"));
        tensors.bytes(&out).chunks_exact(HEADS * DIM * 2).map(<[u8]>::to_vec).collect()
    }
}

#[test]
fn a_row_does_not_depend_on_the_width_of_the_lists() {
    for (window, global) in [
        (CacheFormat::Fp8, CacheFormat::Fp4Row16),
        (CacheFormat::Bf16, CacheFormat::Bf16),
        (CacheFormat::Bf16, CacheFormat::Fp8),
    ] {
        let bench = Bench::new(window, global);
        for scale in [(DIM as f32).sqrt().recip(), 8.0] {
            check(&bench, scale);
        }
    }
}

fn check(bench: &Bench, scale: f32) {
    let what = format!("{:?} and {:?}, scale {scale}", bench.window.0, bench.global.0);
    let all: Vec<usize> = (0..ROWS.len()).collect();
    let wide = bench.rows(&all, (128, 2048), scale);
    for (row, wanted) in all.iter().zip(&wide) {
        assert!(wanted.iter().any(|&byte| byte != 0) || *row == 0, "{what}: row {row} is empty");
        for widths in [(128, 512), (128, 640), (128, 1600), (700, 512), (1100, 3100)] {
            if ROWS[*row].0 <= widths.0 && ROWS[*row].1 <= widths.1 {
                let alone = bench.rows(&[*row], widths, scale);
                assert!(alone[0] == *wanted, "{what}: row {row} alone in lists of {widths:?}");
            }
        }
    }
    let short = bench.rows(&all[..4], (128, 512), scale);
    assert!(short == wide[..4], "{what}: the short rows in narrow lists");
}
