//! Times of the kernels that dominate a forward pass, at the miniature's shapes and at one of the released model.
//!
//! `cargo run --release -p deepinfer-cpu-reference --example kernel_times` prints, per kernel and shape, the microseconds
//! of a call (the fastest of several) and the nanoseconds per multiplication with its addition. An argument limits it to
//! the lines that contain it: `-- sparse_attention`.

use std::time::{Duration, Instant};

use deepinfer_cpu_reference::CpuReference;
use deepinfer_plugin_api::Format;
use deepinfer_plugin_api::abi::DiTensorList;
use deepinfer_plugin_api::generated::{GroupedLinear, IndexScores, Linear, SparseAttention};

#[allow(dead_code)]
#[path = "../src/testing.rs"]
mod testing;
use testing::{Tensor, call};

fn main() {
    println!("{:<58} {:>10} {:>9}", "kernel", "us", "ns/MAC");
    for rows in [1, 8, 512] {
        for weight in [Format::Fp8Tile32, Format::Fp4Row32, Format::Bf16, Format::F32] {
            linear(rows, 256, 512, Format::Fp8Row32, weight);
        }
    }
    linear(1, 256, 4096, Format::Bf16, Format::Bf16);
    linear(1, 4096, 4096, Format::Fp8Row32, Format::Fp8Tile32);
    linear(64, 4096, 4096, Format::Fp8Row32, Format::Fp8Tile32);
    for rows in [1, 512] {
        grouped_linear(rows, 256, 64);
    }
    for rows in [1, 512] {
        index_scores(rows, 4, 32, 512);
    }
    index_scores(1, 64, 128, 16384);
    for rows in [1, 512] {
        sparse_attention(rows, 8, 64, 64, 128);
    }
    sparse_attention(1, 64, 512, 128, 512);
}

/// Values without a pattern that a format would represent exactly.
fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 % 10_007) as f32 / 5003.5 - 1.0) * 0.5).collect()
}

fn time(name: &str, macs: usize, mut run: impl FnMut()) {
    if std::env::args().nth(1).is_some_and(|part| !name.contains(&part)) {
        return;
    }
    let started = Instant::now();
    let mut best = Duration::MAX;
    let mut runs = 0;
    while runs < 5 || started.elapsed() < Duration::from_millis(300) {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed());
        runs += 1;
    }
    println!("{name:<58} {:>10.1} {:>9.3}", best.as_secs_f64() * 1e6, best.as_secs_f64() * 1e9 / macs as f64);
}

fn linear(rows: usize, k: usize, outputs: usize, x_format: Format, weight_format: Format) {
    let x = Tensor::floating(x_format, &[rows, k], &values(rows * k));
    let weight = Tensor::floating(weight_format, &[outputs, k], &values(outputs * k));
    let mut out = Tensor::unwritten(Format::Bf16, &[rows, outputs]);
    time(&format!("linear {rows} x {k} -> {outputs}, {weight_format}"), rows * k * outputs, || {
        call::<Linear>(|a| {
            (a.x, a.weight, a.groups, a.out) = (x.input(), weight.input(), 1, out.output());
        })
        .expect("linear runs");
    });
}

fn grouped_linear(tokens: usize, k: usize, outputs: usize) {
    const EXPERTS: usize = 16;
    let rows = tokens * 4;
    let x = Tensor::floating(Format::Fp8Row32, &[rows, k], &values(rows * k));
    let weights: Vec<Tensor> =
        (0..EXPERTS).map(|_| Tensor::floating(Format::Fp4Row32, &[outputs, k], &values(outputs * k))).collect();
    let list: Vec<_> = weights.iter().map(Tensor::input).collect();
    // Every fourth expert has a row of a single token.
    let starts: Vec<i32> = (0..=EXPERTS).map(|e| (e * rows / EXPERTS) as i32).collect();
    let starts = Tensor::i32(&[EXPERTS + 1], &starts);
    let mut out = Tensor::unwritten(Format::F32, &[rows, outputs]);
    time(&format!("grouped_linear {rows} x {k} -> {outputs}, FP4_ROW32"), rows * k * outputs, || {
        call::<GroupedLinear>(|a| {
            (a.x, a.expert_start, a.out) = (x.input(), starts.input(), out.output());
            a.weight = DiTensorList { ptr: list.as_ptr(), len: list.len() as u64 };
        })
        .expect("grouped_linear runs");
    });
}

fn index_scores(rows: usize, heads: usize, dim: usize, entries: usize) {
    let per_page = 64;
    let pages = entries.div_ceil(per_page);
    let page_bytes = per_page * (dim / 2 + dim / 32);
    // Small scales and any codes: byte 0x60 is 2^-31 as a scale, and a pair of zeros as codes.
    let keys = Tensor::u8(&[pages, page_bytes], &vec![0x62; pages * page_bytes]);
    let q = Tensor::floating(Format::Fp4Row32, &[rows, heads * dim], &values(rows * heads * dim));
    let head_weight = Tensor::bf16(&[rows, heads], &values(rows * heads));
    let row_request = Tensor::i32(&[rows], &vec![0; rows]);
    let block_table = Tensor::i32(&[1, pages], &(0..pages as i32).collect::<Vec<_>>());
    let visible = Tensor::i32(&[rows], &vec![entries as i32; rows]);
    let mut out = Tensor::unwritten(Format::F32, &[rows, entries]);
    time(&format!("index_scores {rows} rows, {heads} x {dim}, {entries} keys"), rows * heads * dim * entries, || {
        call::<IndexScores>(|a| {
            (a.q, a.head_weight, a.scale) = (q.input(), head_weight.input(), 0.1);
            (a.keys, a.format, a.entries_per_page) = (keys.input(), 4, per_page as u32);
            (a.row_request, a.block_table, a.visible) = (row_request.input(), block_table.input(), visible.input());
            a.out = out.output();
        })
        .expect("index_scores runs");
    });
}

fn sparse_attention(rows: usize, heads: usize, dim: usize, window: usize, global: usize) {
    let (window_bytes, global_bytes) = (dim + dim / 32, dim / 2 + dim / 16);
    let window_cache = Tensor::u8(&[1, window * window_bytes], &vec![0x7A; window * window_bytes]);
    let global_cache = Tensor::u8(&[1, global * global_bytes], &vec![0x22; global * global_bytes]);
    let list = |count: usize| (0..rows * count).map(|i| (i % count) as i32).collect::<Vec<_>>();
    let window_slots = Tensor::i32(&[rows, window], &list(window));
    let global_slots = Tensor::i32(&[rows, global], &list(global));
    let q = Tensor::bf16(&[rows, heads, dim], &values(rows * heads * dim));
    let sink = Tensor::f32(&[heads], &vec![0.0; heads]);
    let mut out = Tensor::unwritten(Format::Bf16, &[rows, heads, dim]);
    let macs = 2 * rows * heads * dim * (window + global);
    time(&format!("sparse_attention {rows} rows, {heads} x {dim}, {window} + {global} entries"), macs, || {
        call::<SparseAttention>(|a| {
            (a.q, a.sink, a.scale, a.round_probs) = (q.input(), sink.input(), 0.125, 1);
            (a.window, a.window_format, a.window_entries_per_page) = (window_cache.input(), 2, window as u32);
            (a.global, a.global_format, a.global_entries_per_page) = (global_cache.input(), 3, global as u32);
            (a.window_slots, a.global_slots) = (window_slots.input(), global_slots.input());
            a.out = out.output();
        })
        .expect("sparse_attention runs");
    });
}
