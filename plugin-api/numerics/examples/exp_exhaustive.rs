//! Checks the weights of all arguments and times them: `cargo run --release -p deepinfer-numerics --example
//! exp_exhaustive`.
//!
//! An argument has 32 bits when it is cut, so there are 2^32 weights. Each must not be above that of the argument before,
//! and must lie between `e (1 - 2^-28) - 1` and `e (1 + 2^-28)`, where `e` is `2^46 e^-x` of the cut argument in binary64.

use std::thread;
use std::time::Instant;

use deepinfer_numerics::fixed_exp::{ARGUMENT_BITS, WEIGHT_BITS, weight, weight_of_fixed};

/// Largest relative errors, without the cut of the result.
#[derive(Clone, Copy)]
struct Errors {
    below: f64,
    above: f64,
}

fn main() {
    let threads = thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let start = Instant::now();
    let bounds: Vec<u64> = (0..=threads).map(|i| (i << 32) / threads).collect();
    let parts: Vec<Errors> = thread::scope(|scope| {
        let workers: Vec<_> = bounds.windows(2).map(|w| scope.spawn(move || check(w[0], w[1]))).collect();
        workers.into_iter().map(|worker| worker.join().expect("a weight failed")).collect()
    });
    let [below, above] = [|e: &Errors| e.below, |e: &Errors| e.above].map(|f| parts.iter().map(f).fold(0.0, f64::max));
    println!("no weight rises; {:.0} s on {threads} threads", start.elapsed().as_secs_f64());
    println!("largest relative error: 2^{:.2} below, 2^{:.2} above", below.log2(), above.log2());

    let arguments: Vec<f32> = (0..1 << 22).map(|i| (i % 4099) as f32 / 128.0).collect();
    let start = Instant::now();
    let sum = arguments.iter().fold(0u64, |sum, &x| sum.wrapping_add(weight(x)));
    let ns = start.elapsed().as_secs_f64() * 1e9 / arguments.len() as f64;
    println!("weight: {ns:.1} ns (sum {sum})");
}

fn check(first: u64, end: u64) -> Errors {
    let mut errors = Errors { below: 0.0, above: 0.0 };
    let mut before = if first == 0 { u64::MAX } else { weight_of_fixed((first - 1) as u32) };
    let (unit, one) = (2f64.powi(-(ARGUMENT_BITS as i32)), 2f64.powi(WEIGHT_BITS as i32));
    for x in first..end {
        let weight = weight_of_fixed(x as u32);
        assert!(weight <= before, "the weight of {x:#x} rises");
        before = weight;
        let exact = (-(x as f64) * unit).exp() * one;
        let error = weight as f64 - exact;
        errors.above = errors.above.max(error / exact);
        errors.below = errors.below.max((-error - 1.0) / exact);
    }
    let bound = 2f64.powi(-28);
    assert!(errors.above < bound && errors.below < bound, "beyond 2^-28 between {first:#x} and {end:#x}");
    errors
}
