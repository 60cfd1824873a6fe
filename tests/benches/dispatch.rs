//! What a call costs between the core and the first instruction of a plugin, and back.
//!
//! `cargo bench -p deepinfer-tests --bench dispatch`. The plugin's ops do nothing but count. Batches of 2000 calls, the cases
//! in turn, so that a disturbance of the machine hits them all; the whole process is pinned to one processor where
//! `taskset` exists. Figures are nanoseconds per call; the ratio to an in-process `dyn` call is what compares machines.

#[path = "../tests/c_compiler/mod.rs"]
mod c_compiler;
#[path = "../tests/c_plugin/mod.rs"]
mod c_plugin;
#[path = "../tests/null_backend/mod.rs"]
mod null_backend;

use std::hint::black_box;
use std::process::{Command, Stdio};
use std::time::Instant;

use deepinfer_ops::Dispatch;

/// Calls in a batch.
const CALLS: usize = 2000;
/// Batches of every case.
const BATCHES: usize = 5000;

/// The yardstick: a call of a method that the compiler does not see, with arguments that are there already.
trait Callee {
    fn call(&self, args: &[u64; 34]) -> u64;
}

struct Counter(std::cell::Cell<u64>);

impl Callee for Counter {
    #[inline(never)]
    fn call(&self, args: &[u64; 34]) -> u64 {
        self.0.set(self.0.get() + 1);
        args[0]
    }
}

/// A case: its name and one batch.
type Case<'a> = (&'static str, Box<dyn Fn() + 'a>);

fn main() {
    // `cargo test --benches` only wants to know that it runs.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    pin();
    let Some((_folder, device)) = null_backend::open() else { return };
    let (four, planned) = (null_backend::four_tensors(&device), null_backend::planned(&device));
    let (sixteen, order) = (null_backend::sixteen(&device), random_order(CALLS));
    let list = device
        .record(|| order.iter().try_for_each(|&op| device.dispatch(&*sixteen[op])))
        .unwrap_or_else(|e| panic!("{e}"));
    let (counter, args) = (Counter(std::cell::Cell::new(0)), [1; 34]);
    let callee: &dyn Callee = &counter;

    let cases: Vec<Case<'_>> = vec![
        (
            "empty loop",
            Box::new(|| {
                (0..CALLS).for_each(|i| {
                    black_box(i);
                })
            }),
        ),
        (
            "dyn call, arguments ready",
            Box::new(|| {
                (0..CALLS).for_each(|_| {
                    black_box(black_box(callee).call(black_box(&args)));
                });
            }),
        ),
        (
            "op of 4 tensors, filled",
            Box::new(|| {
                (0..CALLS).for_each(|_| device.dispatch(black_box(&four)).unwrap());
            }),
        ),
        (
            "16 ops in random order, filled",
            Box::new(|| {
                order.iter().for_each(|&op| device.dispatch(black_box(&*sixteen[op])).unwrap());
            }),
        ),
        ("16 ops in random order, recorded", Box::new(|| device.launch(black_box(&list)).unwrap())),
        (
            "op through a plan, filled",
            Box::new(|| {
                (0..CALLS).for_each(|_| device.dispatch(black_box(&planned)).unwrap());
            }),
        ),
    ];
    report(&cases);
    let each = sixteen.iter().map(|op| {
        let batch = || (0..CALLS).for_each(|_| device.dispatch(black_box(&**op)).unwrap());
        (op.info().name, Box::new(batch) as Box<dyn Fn()>)
    });
    // The same yardstick, and the sixteen one by one.
    let each: Vec<Case<'_>> = cases.into_iter().take(2).chain(each).collect();
    report(&each);
}

/// A fixed order of `count` numbers below 16 that a branch predictor cannot learn in a few turns.
fn random_order(count: usize) -> Vec<usize> {
    let mut state = 0x9E37_79B9_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 28) as usize
    };
    (0..count).map(|_| next()).collect()
}

fn report(cases: &[Case<'_>]) {
    let mut times: Vec<Vec<f64>> = cases.iter().map(|_| Vec::with_capacity(BATCHES)).collect();
    for batch in 0..BATCHES + BATCHES / 10 {
        for ((_, case), times) in cases.iter().zip(&mut times) {
            let start = Instant::now();
            case();
            let time = start.elapsed();
            // The first tenth warms up.
            if batch >= BATCHES / 10 {
                times.push(time.as_secs_f64() * 1e9 / CALLS as f64);
            }
        }
    }
    for times in &mut times {
        times.sort_by(f64::total_cmp);
    }
    let at = |case: usize, share: f64| times[case][((BATCHES - 1) as f64 * share) as usize];
    println!("{BATCHES} batches of {CALLS} calls, ns per call{:25}min      p50      p90   p50 / dyn call", "");
    for (case, (name, _)) in cases.iter().enumerate() {
        println!(
            "{name:44} {:8.2} {:8.2} {:8.2} {:10.1}",
            at(case, 0.0),
            at(case, 0.5),
            at(case, 0.9),
            at(case, 0.5) / at(1, 0.5)
        );
    }
}

/// Keeps the process on one processor, the last.
fn pin() {
    let last = std::thread::available_parallelism().map_or(1, usize::from) - 1;
    let pid = std::process::id().to_string();
    let command = Command::new("taskset").args(["-cp", &last.to_string(), &pid]).stdout(Stdio::null()).status();
    if !command.is_ok_and(|status| status.success()) {
        println!("taskset does not work here: the process may wander between processors");
    }
}
