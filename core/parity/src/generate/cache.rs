//! Cases of the paged caches and of the compressor.

use deepinfer_ops::Format;
use deepinfer_oracle::{CacheEntries, Call, HostTensor, Value};

use super::dense::set_int;
use super::{Content, Generator, OpSpec, Refusal, Rows};

use Content::{Equal, Halfway, Huge, Infinite, Nan, Plain, Tiny, Wide, Zeros};

pub(crate) const SPECS: &[OpSpec] = &[
    OpSpec {
        name: "store_kv_cache",
        generate: store_kv_cache,
        rows: Rows::Any("T"),
        empty: &["T", "D"],
        contents: &[Plain, Wide, Tiny, Huge, Halfway, Zeros, Nan, Infinite],
        refusals: &[
            Refusal { names: &["format"], change: |call| call.set("format", Value::U32(5)) },
            Refusal {
                names: &["entries_per_page", "cache"],
                change: |call| call.set("entries_per_page", Value::U32(0)),
            },
            Refusal {
                names: &["entries_per_page", "format", "cache"],
                change: |call| call.set("entries_per_page", Value::U32(1 << 20)),
            },
            Refusal { names: &["slots"], change: |call| set_int(call, "slots", -1, 1 << 20) },
            Refusal {
                names: &["format", "cache"],
                change: |call| {
                    let (format, rows) = (call.tensor("kv").format, call.dim("kv", 0));
                    call.set("kv", Value::Tensor(HostTensor::filled(format, &[rows, 24], 0)));
                    call.set("rounded", Value::Absent);
                    partial_groups(call, "slots", rows);
                },
            },
        ],
    },
    OpSpec {
        name: "load_paged_kv_cache",
        generate: load_paged_kv_cache,
        rows: Rows::Any("M"),
        empty: &["M", "D"],
        contents: &[Plain],
        refusals: &[
            Refusal { names: &["format"], change: |call| call.set("format", Value::U32(u32::MAX)) },
            Refusal {
                names: &["entries_per_page", "cache"],
                change: |call| call.set("entries_per_page", Value::U32(0)),
            },
            Refusal {
                names: &["entries_per_page", "format", "cache"],
                change: |call| call.set("entries_per_page", Value::U32(u32::MAX)),
            },
            Refusal { names: &["slots"], change: |call| set_int(call, "slots", -1, i32::MAX) },
            Refusal {
                names: &["format", "cache"],
                change: |call| {
                    let (format, rows) = (call.tensor("out").format, call.dim("out", 0));
                    call.set("out", Value::Tensor(HostTensor::filled(format, &[rows, 24], 0)));
                    partial_groups(call, "slots", rows);
                },
            },
        ],
    },
    OpSpec {
        name: "convert_kv_index",
        generate: convert_kv_index,
        rows: Rows::Any("T"),
        empty: &["T", "K"],
        contents: &[Plain],
        refusals: &[
            Refusal { names: &["entries_per_page"], change: |call| call.set("entries_per_page", Value::U32(0)) },
            Refusal { names: &["row_request"], change: |call| set_int(call, "row_request", 0, -1) },
            Refusal { names: &["row_request"], change: |call| set_int(call, "row_request", -1, 1000) },
            Refusal { names: &["positions"], change: |call| set_int(call, "positions", 0, i32::MAX) },
            Refusal {
                names: &["block_table"],
                change: |call| {
                    let pages = call.tensor("block_table").len();
                    (0..pages).for_each(|i| set_int(call, "block_table", i as isize, -1));
                    set_int(call, "positions", 0, 0);
                },
            },
        ],
    },
    OpSpec {
        name: "compress_and_update_state",
        generate: compress_and_update_state,
        rows: Rows::Ascending("M"),
        empty: &["M", "D"],
        contents: &[Plain, Wide, Equal, Zeros, Nan],
        refusals: &[
            Refusal { names: &["ratio"], change: |call| call.set("ratio", Value::U32(1)) },
            Refusal { names: &["ratio"], change: |call| call.set("ratio", Value::U32(100)) },
            Refusal { names: &["state_slot"], change: |call| set_int(call, "state_slot", 0, 100) },
            Refusal { names: &["request_start"], change: |call| set_int(call, "request_start", -1, 0) },
            Refusal { names: &["request_start"], change: |call| set_int(call, "request_start", 0, -1) },
            Refusal {
                names: &["group_row"],
                change: |call| {
                    one_group(call, 100);
                },
            },
            Refusal {
                names: &["row_request"],
                change: |call| {
                    one_group(call, 0);
                    set_int(call, "row_request", 0, 100);
                },
            },
            Refusal {
                names: &["group_row", "positions"],
                change: |call| {
                    one_group(call, 0);
                    set_int(call, "positions", 0, 0);
                },
            },
            Refusal {
                names: &["state_slot"],
                change: |call| {
                    let rows = call.dim("latent", 0);
                    share_slot(call, rows);
                    call.set("row_request", Value::Tensor(HostTensor::i32(&[rows], &vec![1; rows])));
                    set_int(call, "row_request", 0, 0);
                },
            },
        ],
    },
];

/// An entry format with groups of 32 and 24 channels, in a cache with room for them.
fn partial_groups(call: &mut Call, slots: &'static str, rows: usize) {
    call.set("cache", Value::Tensor(HostTensor::u8(&[1, 4096], vec![0; 4096])));
    call.set("format", Value::U32(2));
    call.set(slots, Value::Tensor(HostTensor::i32(&[rows], &vec![0; rows])));
}

/// Pools one group, which ends at a row.
fn one_group(call: &mut Call, row: i32) {
    call.set("group_row", Value::Tensor(HostTensor::i32(&[1], &[row])));
    let (format, dim) = (call.tensor("out").format, call.dim("latent", 1));
    call.set("out", Value::Tensor(HostTensor::filled(format, &[1, dim], 0)));
}

/// Two requests with one state slot: the first row, and the other ones.
pub(super) fn share_slot(call: &mut Call, rows: usize) {
    call.set("request_start", Value::Tensor(HostTensor::i32(&[3], &[0, 1, rows as i32])));
    call.set("state_slot", Value::Tensor(HostTensor::i32(&[2], &[0, 0])));
}

/// Columns that whole groups of a cache format fill.
fn dim_of(g: &mut Generator, format: usize) -> usize {
    g.columns([1, 1, 32, 16, 32][format])
}

fn entry_bytes(format: usize, dim: usize) -> usize {
    CacheEntries::new(format, 1, dim, 0).entry_bytes()
}

fn store_kv_cache(g: &mut Generator) {
    let format = g.turn(&[0, 1, 2, 3, 4]);
    // Where an F32 NaN becomes a BF16 one, its payload is not defined.
    g.restrict_content(|content| format >= 2 || !matches!(content, Nan | Infinite));
    if format == 1 && g.format("kv") == Format::F32 {
        // Few calls round: what is hard to round comes up.
        g.content = g.turn(&[Halfway, g.content]);
    }
    let (t, dim) = (g.rows(), dim_of(g, format));
    let (pages, entries, padding) = (g.rng.pick(&[1, 3]), g.rng.pick(&[1, 3, 16]), g.rng.pick(&[0, 5]));
    g.subject("kv", &[t, dim]);
    // A few slots, so that some of them come twice.
    g.ints("slots", &[t], |rng| rng.below(pages * entries + 1) as i32 - 1);
    g.bytes("cache", &[pages, entries * entry_bytes(format, dim) + padding]);
    g.u32("format", format);
    g.u32("entries_per_page", entries);
    let rounded = HostTensor::filled(g.format("rounded"), &[t, dim], 0xFF);
    g.optional("rounded", Value::Tensor(rounded));
}

fn load_paged_kv_cache(g: &mut Generator) {
    let format = g.turn(&[0, 1, 2, 3, 4]);
    let (m, dim) = (g.rows(), dim_of(g, format));
    let (pages, entries, padding) = (g.rng.pick(&[1, 3]), g.rng.pick(&[1, 3, 16]), g.rng.pick(&[0, 5]));
    // Any bytes are an entry: NaN scales and products beyond F32 are among them.
    g.bytes("cache", &[pages, entries * entry_bytes(format, dim) + padding]);
    g.ints("slots", &[m], |rng| rng.below(pages * entries + 1) as i32 - 1);
    g.u32("format", format);
    g.u32("entries_per_page", entries);
    g.out("out", &[m, dim]);
}

fn convert_kv_index(g: &mut Generator) {
    let (t, k, q, pages) = (g.rows(), g.extent(&[1, 8, 33], &[2048, 5001]), g.rng.pick(&[1, 3]), g.rng.pick(&[1, 4]));
    let entries = g.rng.pick(&[1, 3, 256]);
    g.ints("positions", &[t, k], |rng| rng.below(pages * entries + 1) as i32 - 1);
    g.ints("row_request", &[t], |rng| rng.below(q) as i32);
    g.ints("block_table", &[q, pages], |rng| rng.below(1000) as i32);
    g.u32("entries_per_page", entries);
    g.out("slots", &[t, k]);
}

fn compress_and_update_state(g: &mut Generator) {
    let (t, d) = (g.rows(), g.columns(1));
    let (ratio, more, requests) =
        (g.extent_of(&[2, 3, 4], &[4, 128, 500], &[4, 128]), g.rng.pick(&[0, 2]), g.rng.pick(&[1, 2, 3]));
    let (ring, slots) = (ratio + more, requests + 1);
    let (start, owner) = g.requests(t, requests, slots);
    // Each request begins somewhere in its sequence; its last tokens are in the ring.
    let first: Vec<i32> = (0..requests).map(|_| g.rng.pick(&[0, 1, ratio as i32 - 1, 1000])).collect();
    let positions: Vec<i32> =
        owner.iter().enumerate().map(|(t, &q)| first[q as usize] + t as i32 - start[q as usize]).collect();
    let ends: Vec<i32> = (0..t as i32).filter(|&t| (positions[t as usize] + 1) % ratio as i32 == 0).collect();
    g.float("latent", &[t, d]);
    g.subject("score", &[t, d]);
    g.float("state", &[slots, ring, 2, d]);
    g.i32("group_row", &[ends.len()], &ends);
    g.i32("positions", &[t], &positions);
    g.i32("row_request", &[t], &owner);
    g.u32("ratio", ratio);
    g.out("out", &[ends.len(), d]);
}
