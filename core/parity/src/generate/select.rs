//! Cases of the choice of cache entries, and of the attention over them.

use super::dense::set_int;
use super::{Content, Generator, OpSpec, Refusal, Rows};

use Content::{Equal, Infinite, Nan, Plain, Ties, Wide, Zeros};
use deepinfer_ops::Format;
use deepinfer_oracle::{CacheEntries, Call, HostTensor, Value};

pub(crate) const SPECS: &[OpSpec] = &[
    OpSpec {
        name: "index_scores",
        generate: index_scores,
        rows: Rows::Any("T"),
        empty: &["T", "N"],
        contents: &[Plain, Wide, Zeros, Nan],
        refusals: &[
            Refusal { names: &["format"], change: |call| call.set("format", Value::U32(5)) },
            Refusal {
                names: &["entries_per_page", "keys"],
                change: |call| call.set("entries_per_page", Value::U32(0)),
            },
            Refusal {
                names: &["row_request"],
                change: |call| {
                    set_int(call, "row_request", 0, 1000);
                    show_first_entry(call);
                },
            },
            Refusal {
                names: &["block_table"],
                change: |call| {
                    let pages = call.tensor("block_table").len();
                    (0..pages).for_each(|i| set_int(call, "block_table", i as isize, 1000));
                    show_first_entry(call);
                },
            },
            Refusal { names: &["block_size"], change: |call| call.set("block_size", Value::U32(0)) },
            Refusal {
                names: &["format", "keys"],
                change: |call| {
                    let rows = call.dim("q", 0);
                    call.set("q", Value::Tensor(HostTensor::filled(Format::F32, &[rows, 24], 0)));
                    call.set("head_weight", Value::Tensor(HostTensor::filled(Format::F32, &[rows, 1], 0)));
                    call.set("keys", Value::Tensor(HostTensor::u8(&[1, 4096], vec![0; 4096])));
                    call.set("format", Value::U32(2));
                    call.set("candidates", Value::Absent);
                    call.set("visible", Value::Tensor(HostTensor::i32(&[rows], &vec![0; rows])));
                },
            },
        ],
    },
    OpSpec {
        name: "candidate_block_max",
        generate: candidate_block_max,
        rows: Rows::Any("T"),
        empty: &["T"],
        contents: &[Plain, Equal, Zeros, Nan, Infinite],
        refusals: &[Refusal { names: &["block_size"], change: |call| call.set("block_size", Value::U32(0)) }],
    },
    OpSpec {
        name: "topk_select",
        generate: topk_select,
        rows: Rows::Any("T"),
        empty: &["T", "N", "K"],
        contents: &[Plain, Ties, Equal, Zeros, Nan, Infinite],
        refusals: &[],
    },
    OpSpec {
        name: "restore_candidate_indices_inplace",
        generate: restore_candidate_indices_inplace,
        rows: Rows::Any("T"),
        empty: &["T", "K", "L"],
        contents: &[Plain],
        refusals: &[Refusal { names: &["block_size"], change: |call| call.set("block_size", Value::U32(0)) }],
    },
    OpSpec {
        name: "sparse_attention",
        generate: sparse_attention,
        rows: Rows::Any("T"),
        empty: &["T", "H", "D", "W", "K"],
        contents: &[Plain, Equal, Zeros, Nan],
        refusals: &[
            Refusal { names: &["window_format", "window"], change: |call| call.set("window_format", Value::U32(7)) },
            Refusal {
                names: &["window_entries_per_page", "window"],
                change: |call| call.set("window_entries_per_page", Value::U32(0)),
            },
            Refusal { names: &["window_slots"], change: |call| set_int(call, "window_slots", 0, 1 << 20) },
            Refusal { names: &["round_probs"], change: |call| call.set("round_probs", Value::U32(2)) },
            Refusal {
                names: &["global_slots", "global"],
                change: |call| {
                    let rows = call.dim("q", 0);
                    call.set("global", Value::Absent);
                    call.set("global_slots", Value::Tensor(HostTensor::i32(&[rows, 1], &vec![-1; rows])));
                },
            },
            Refusal {
                names: &["global_slots"],
                change: |call| {
                    let rows = call.dim("q", 0);
                    let window = call.tensor("window").clone();
                    call.set("global", Value::Tensor(window));
                    for (global, name) in
                        [("global_format", "window_format"), ("global_entries_per_page", "window_entries_per_page")]
                    {
                        let value = call.size(name) as u32;
                        call.set(global, Value::U32(value));
                    }
                    call.set("global_slots", Value::Tensor(HostTensor::i32(&[rows, 1], &vec![1 << 20; rows])));
                },
            },
            Refusal {
                names: &["window_format", "window"],
                change: |call| {
                    let (rows, heads, format) = (call.dim("q", 0), call.dim("q", 1), call.tensor("q").format);
                    for name in ["q", "out"] {
                        call.set(name, Value::Tensor(HostTensor::filled(format, &[rows, heads, 24], 0)));
                    }
                    call.set("window", Value::Tensor(HostTensor::u8(&[1, 4096], vec![0; 4096])));
                    call.set("window_format", Value::U32(2));
                    call.set("window_slots", Value::Tensor(HostTensor::i32(&[rows, 1], &vec![-1; rows])));
                    call.set("global", Value::Absent);
                    call.set("global_slots", Value::Absent);
                },
            },
        ],
    },
];

/// Lets every row see its first entry, so that its request and its page are looked up.
fn show_first_entry(call: &mut Call) {
    call.set("candidates", Value::Absent);
    let rows = call.dim("visible", 0);
    (0..rows).for_each(|t| set_int(call, "visible", t as isize, 1));
}

/// Pages of a cache with entries of plain values, and its geometry: pages, entries per page, padding.
fn filled_cache(g: &mut Generator, format: usize, dim: usize) -> (HostTensor, usize, usize) {
    let (pages, entries, padding) = (g.rng.pick(&[1, 3]), g.rng.pick(&[1, 3, 16]), g.rng.pick(&[0, 5]));
    let bytes = entries * CacheEntries::new(format, entries, dim, 0).entry_bytes() + padding;
    let place = CacheEntries::new(format, entries, dim, bytes);
    let mut cache = vec![0xFF; pages * bytes];
    for slot in 0..pages * entries {
        let row = g.random(Format::F32, &[1, dim]).values();
        place.write(&mut cache, slot, &row);
    }
    (HostTensor::u8(&[pages, bytes], cache), pages, entries)
}

fn index_scores(g: &mut Generator) {
    let format = g.turn(&[0, 1, 2, 3, 4]);
    let group = g.group_of(&["q"]).max([1, 1, 32, 16, 32][format]);
    let (t, heads) = (g.rng.pick(&[1, 2, 3, 17]), g.extent(&[1, 3, 4], &[4, 64]));
    let dim = if group == 1 { g.rng.pick(&[1, 7, 32]) } else { g.rng.pick(&[1, 2, 4]) * group.max(32) };
    let (keys, pages, entries) = filled_cache(g, format, dim);
    let (requests, listed) = (g.rng.pick(&[1, 2]), g.extent(&[1, 2, 4], &[300, 700]));
    let capacity = listed * entries;
    g.subject("q", &[t, heads * dim]);
    g.float("head_weight", &[t, heads]);
    g.f32("scale", 1.0 / (dim as f32 * heads as f32).sqrt());
    g.set("keys", Value::Tensor(keys));
    g.u32("format", format);
    g.u32("entries_per_page", entries);
    g.ints("row_request", &[t], |rng| rng.below(requests) as i32);
    g.ints("block_table", &[requests, listed], |rng| rng.below(pages) as i32);
    g.ints("visible", &[t], |rng| rng.below(capacity + 1) as i32);
    let size = g.extent(&[1, 2, 5], &[5, 64]);
    let blocks = capacity.div_ceil(size);
    let chosen = g.extent(&[1, 2, 3], &[3, 40]);
    g.u32("block_size", size);
    let columns = if g.rng.one_in(2) {
        g.set("candidates", Value::Absent);
        capacity
    } else {
        let rows: Vec<i32> = (0..t).flat_map(|_| ascending(g, blocks, chosen)).collect();
        g.i32("candidates", &[t, chosen], &rows);
        chosen * size
    };
    g.out("out", &[t, columns]);
}

/// Up to `len` different numbers below `end`, ascending, padded with -1.
fn ascending(g: &mut Generator, end: usize, len: usize) -> Vec<i32> {
    let take = g.rng.below(len.min(end) + 1);
    let mut row: Vec<i32> = g.rng.permutation(end)[..take].iter().map(|&b| b as i32).collect();
    row.sort_unstable();
    row.resize(len, -1);
    row
}

fn candidate_block_max(g: &mut Generator) {
    let (t, n, size) = (g.rows(), g.columns(1), g.rng.pick(&[1, 4, 7, 64]));
    g.subject("scores", &[t, n]);
    g.ints("visible", &[t], |rng| rng.below(n + 1) as i32);
    g.u32("block_size", size);
    g.out("out", &[t, n.div_ceil(size)]);
}

fn topk_select(g: &mut Generator) {
    let (t, n, k) = (g.rows(), g.extent(&[1, 31, 33, 2048], &[4097, 30_001, 65_536]), g.rng.pick(&[1, 2, 8, 32, 512]));
    g.subject("scores", &[t, n]);
    if g.content == Ties && g.rng.one_in(2) {
        // Many columns that may not be seen, too.
        let values: Vec<f32> =
            (0..t * n).map(|_| g.rng.pick(&[-1.0, 0.0, -0.0, 1.0, f32::NEG_INFINITY, f32::NEG_INFINITY])).collect();
        g.values("scores", &[t, n], &values);
    }
    g.out("out", &[t, k]);
}

fn restore_candidate_indices_inplace(g: &mut Generator) {
    let (t, k, blocks, size) = (g.rows(), g.columns(1), g.rng.pick(&[1, 3, 8]), g.rng.pick(&[1, 8, 64]));
    g.ints("columns", &[t, k], |rng| rng.below(blocks * size + 3) as i32 - 1);
    g.ints("candidates", &[t, blocks], |rng| rng.below(1000) as i32 - 1);
    g.u32("block_size", size);
}

fn sparse_attention(g: &mut Generator) {
    let format = g.turn(&[0, 1, 2, 3, 4]);
    let other = g.rng.pick(&[0, 1, 2, 3, 4]);
    let (t, heads) = (g.rng.pick(&[1, 2, 3, 9]), g.rng.pick(&[1, 2, 5]));
    let dim = if format < 2 && other < 2 { g.rng.pick(&[1, 7, 33]) } else { g.rng.pick(&[32, 64, 64, 512]) };
    let (window, pages, entries) = filled_cache(g, format, dim);
    let width = g.extent(&[1, 5, 33], &[128]);
    g.subject("q", &[t, heads, dim]);
    g.set("window", Value::Tensor(window));
    g.u32("window_format", format);
    g.u32("window_entries_per_page", entries);
    g.ints("window_slots", &[t, width], |rng| if rng.one_in(2) { -1 } else { rng.below(pages * entries) as i32 });
    let (global, pages, entries) = filled_cache(g, other, dim);
    let listed = g.extent(&[1, 8], &[512, 700]);
    if g.rng.one_in(3) {
        g.set("global", Value::Absent);
        g.set("global_slots", Value::Absent);
    } else {
        g.set("global", Value::Tensor(global));
        g.ints("global_slots", &[t, listed], |rng| rng.below(pages * entries + 1) as i32 - 1);
    }
    g.u32("global_format", other);
    g.u32("global_entries_per_page", entries);
    g.values("sink", &[heads], &[-2.0, 0.0, 1.5, 8.0, 200.0][..heads]);
    g.f32("scale", 1.0 / (dim as f32).sqrt());
    g.u32("round_probs", g.index % 2);
    g.out("out", &[t, heads, dim]);
}
