//! Checks the noise of all 2^32 lanes and times it: `cargo run --release -p deepinfer-numerics --example
//! gumbel_exhaustive`.
//!
//! For each lane the fixed-point noise must be below that of the lane before, and both ends of its error interval
//! (2^-60 * max(1, 1 / E) to either side) must round to the same binary32 value, which then is the correctly rounded
//! noise. Lanes where the interval straddles a rounding boundary are printed: the test suite settles them with more bits.

use std::thread;
use std::time::Instant;

use deepinfer_numerics::{Domain, gumbel};

struct Part {
    undecided: Vec<u32>,
    smallest: f32,
}

fn main() {
    let threads = thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let start = Instant::now();
    let bounds: Vec<u64> = (0..=threads).map(|i| (i << 32) / threads).collect();
    let parts: Vec<Part> = thread::scope(|scope| {
        let workers: Vec<_> = bounds.windows(2).map(|w| scope.spawn(move || check(w[0], w[1]))).collect();
        workers.into_iter().map(|worker| worker.join().expect("a lane failed")).collect()
    });
    let undecided: Vec<u32> = parts.iter().flat_map(|part| part.undecided.iter().copied()).collect();
    let smallest = parts.iter().map(|part| part.smallest).fold(f32::INFINITY, f32::min);
    println!("all lanes fall strictly; {:.0} s on {threads} threads", start.elapsed().as_secs_f64());
    println!("smallest magnitude {smallest:e}");
    println!("{} lanes undecided: {undecided:#x?}", undecided.len());

    let start = Instant::now();
    let blocks = 1 << 22;
    let largest = (0..blocks)
        .flat_map(|block| gumbel::noise4(1, 0, block, Domain::TargetDraw, 0))
        .fold(f32::NEG_INFINITY, f32::max);
    let ns = start.elapsed().as_secs_f64() * 1e9 / (4.0 * f64::from(blocks));
    println!("noise4: {ns:.1} ns per token (largest {largest})");
}

fn check(first: u64, end: u64) -> Part {
    let mut part = Part { undecided: Vec::new(), smallest: f32::INFINITY };
    let mut above = if first == 0 { i128::MAX } else { gumbel::fixed_from_lane((first - 1) as u32) };
    for lane in first..end {
        let lane = lane as u32;
        let fixed = gumbel::fixed_from_lane(lane);
        assert!(fixed < above, "lane {lane:#010x} does not fall");
        above = fixed;
        // 1 / E is exp(noise); doubling covers the rounding of this estimate.
        let bound = if fixed > 0 { (32.0 * (fixed as f64 * 2f64.powi(-64)).exp()) as i128 } else { 32 };
        if (fixed - bound) as f32 != (fixed + bound) as f32 {
            part.undecided.push(lane);
        }
        part.smallest = part.smallest.min(gumbel::from_lane(lane).abs());
    }
    part
}
