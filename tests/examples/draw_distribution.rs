//! The large test of the distribution of drawn tokens, for the backend of `DEEPINFER_ACCELERATOR` or cpu-reference:
//! `cargo run --release -p deepinfer-tests --example draw_distribution`.
//!
//! 2^20 draws of a 3-way and of a 50-way distribution, and 2^14 of one over the released vocabulary with pooled bins, plain
//! and under each filter. `deepinfer-tests --test sampling` runs the same cases with fewer draws. Fails if a p-value is below
//! 1e-4.

#![allow(clippy::print_stdout)]

use std::time::Instant;

use deepinfer_tests::distribution::draw_cases;
use deepinfer_tests::{Tensors, device};

fn main() {
    let tensors = Tensors(device());
    let mut worst = 1f64;
    println!("| case | draws | bins | chi-square | p | s |\n|---|---|---|---|---|---|");
    for (name, draws) in draw_cases(1 << 20, 1 << 14) {
        let start = Instant::now();
        let found = draws.compare(&tensors);
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "| {name} | {} | {} | {:.1} | {:.4} | {seconds:.1} |",
            draws.count,
            found.freedom + 1,
            found.chi_square,
            found.p
        );
        worst = worst.min(found.p);
    }
    assert!(worst > 1e-4, "the smallest p-value is {worst:e}");
}
