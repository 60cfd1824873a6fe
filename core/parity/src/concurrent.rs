//! Work of two threads on two streams of one device at once.

use std::sync::Barrier;
use std::thread;

use deepinfer_oracle::{Call, Outputs};
use deepinfer_runtime::OpenDevice;

use crate::place::{Layout, PlacedCall, Route, RunError};
use crate::run::{Problem, accepted, problem_of, same_bits};

/// Calls that each stream queues one after the other.
const ROUNDS: usize = 8;

/// Two calls, each many times, on a stream of its own and beside each other, give the bits that they give alone.
pub(crate) fn streams_do_not_mix(device: &OpenDevice, calls: &[Call; 2]) -> Result<(), Problem> {
    let alone = [accepted(device, &calls[0], Layout::Contiguous)?, accepted(device, &calls[1], Layout::Contiguous)?];
    let stream = || device.new_stream().map_err(|e| Problem::from(format!("there is no second stream: {e}")));
    let [first, second] = [stream()?, stream()?];
    let barrier = Barrier::new(2);
    let found = thread::scope(|scope| {
        let beside = scope.spawn(|| repeated(second, &calls[1], &barrier));
        let here = repeated(first, &calls[0], &barrier);
        [here, beside.join().expect("a thread that runs calls does not panic")]
    });
    for ((found, call), alone) in found.into_iter().zip(calls).zip(&alone) {
        for outputs in found.map_err(|error| problem_of(error, call, "beside another stream "))? {
            same_bits("when another stream runs the op at the same time", &outputs, alone)
                .map_err(|problem| problem.of(call, Some(&outputs)))?;
        }
    }
    Ok(())
}

/// Places the call several times, waits for the other thread, queues all of them, and reads the results.
#[allow(clippy::needless_pass_by_value, reason = "the stream ends with the thread that uses it")]
fn repeated(stream: OpenDevice, call: &Call, barrier: &Barrier) -> Result<Vec<Outputs>, RunError> {
    let placed: Result<Vec<PlacedCall<'_>>, _> =
        (0..ROUNDS).map(|_| PlacedCall::new(&stream, call, Layout::Contiguous)).collect();
    // Also where that has failed: the other thread waits here.
    barrier.wait();
    let placed = placed.map_err(RunError::Upload)?;
    placed.iter().try_for_each(|placed| placed.dispatch(&stream, Route::Trait)).map_err(RunError::Op)?;
    placed.iter().map(|placed| placed.read(&stream)).collect()
}
