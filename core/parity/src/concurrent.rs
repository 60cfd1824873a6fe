//! Work of two threads on two streams of one device at once.

use std::hint;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use deepinfer_oracle::{Call, Outputs};
use deepinfer_runtime::OpenDevice;

use crate::fault::Fault;
use crate::place::{Layout, PlacedCall, Route, RunError};
use crate::run::{Problem, accepted, problem_of, same_bits};

/// Calls that each stream queues one after the other, before their results are read.
const CALLS: usize = 8;
/// Rounds in which both threads were at it at once: a race needs luck, and calls of a few rows are over before the other
/// thread has begun. Others do not count: on a busy machine a thread waits for a processor while the other runs.
const ROUNDS: usize = 120;
/// If the rounds so far would take so long, each as long as the fastest, no more than [`FEWEST_ROUNDS`]: calls that take long
/// overlap anyway.
const LONG: Duration = Duration::from_millis(30);
/// Rounds of calls that take long.
const FEWEST_ROUNDS: usize = 2;
/// When the machine is so busy that the threads hardly meet, this is enough.
const PATIENCE: Duration = Duration::from_millis(500);

/// Two calls, each many times, on a stream of its own and beside each other, give the bits that they give alone.
pub(crate) fn streams_do_not_mix(device: &OpenDevice, calls: &[Call; 2]) -> Result<(), Problem> {
    let alone = [accepted(device, &calls[0], Layout::Contiguous)?, accepted(device, &calls[1], Layout::Contiguous)?];
    let stream = || {
        let no_stream = |error| Problem::named(Fault::SetUp, format!("there is no second stream: {error}"));
        device.new_stream().map_err(no_stream)
    };
    let [first, second] = [stream()?, stream()?];
    let meeting = Meeting::new();
    let found = thread::scope(|scope| {
        let beside = scope.spawn(|| repeated(second, &calls[1], &alone[1], &meeting, 1));
        let here = repeated(first, &calls[0], &alone[0], &meeting, 0);
        [here, beside.join().expect("a thread that runs calls does not panic")]
    });
    found.into_iter().collect()
}

/// Where two threads meet before each round.
struct Meeting {
    barrier: Barrier,
    begun: Instant,
    /// How often a thread has come to the line from which both start.
    arrived: AtomicUsize,
    /// Whether a thread has seen enough.
    is_over: AtomicBool,
    /// Rounds that each thread has begun, and that it has ended.
    rounds: [[AtomicUsize; 2]; 2],
}

const BEGUN: usize = 0;
const ENDED: usize = 1;

impl Meeting {
    fn new() -> Self {
        Self {
            barrier: Barrier::new(2),
            begun: Instant::now(),
            arrived: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            rounds: Default::default(),
        }
    }

    /// Waits for the other thread, and returns in both within less than the time of a call; `false` when no other round is
    /// wanted by both. In `met` rounds so far both were at it at once, and the fastest round took `fastest`.
    fn start(&self, round: usize, met: usize, fastest: Duration) -> bool {
        let are_long = met >= FEWEST_ROUNDS && fastest * met as u32 > LONG;
        if met >= ROUNDS || are_long || self.begun.elapsed() > PATIENCE {
            self.is_over.store(true, Ordering::Relaxed);
        }
        // Behind the barrier both see what either has stored.
        self.barrier.wait();
        if self.is_over.load(Ordering::Relaxed) {
            return false;
        }
        // A thread that was blocked is late: they meet again, awake.
        self.arrived.fetch_add(1, Ordering::Relaxed);
        for spins in 0u32.. {
            if self.arrived.load(Ordering::Relaxed) >= 2 * (round + 1) {
                break;
            }
            // On one processor the other thread could not come while this one looks for it.
            if spins % 4096 == 4095 { thread::yield_now() } else { hint::spin_loop() }
        }
        true
    }

    /// Thread `own` does its work of a round; returns whether the other one was at it, too.
    fn together(&self, own: usize, round: usize, work: impl FnOnce()) -> bool {
        let at = |thread: usize, what: usize| &self.rounds[thread][what];
        at(own, BEGUN).store(round + 1, Ordering::SeqCst);
        let other_was_over = at(1 - own, ENDED).load(Ordering::SeqCst) > round;
        work();
        at(own, ENDED).store(round + 1, Ordering::SeqCst);
        !other_was_over && at(1 - own, BEGUN).load(Ordering::SeqCst) > round
    }

    /// The other thread need not begin another round.
    fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.barrier.wait();
    }
}

/// Places the call several times; then, round by round, waits for the other thread, queues all of them, and compares the
/// results with those of the call alone.
#[allow(clippy::needless_pass_by_value, reason = "the stream ends with the thread that uses it")]
fn repeated(stream: OpenDevice, call: &Call, alone: &Outputs, meeting: &Meeting, own: usize) -> Result<(), Problem> {
    let placed: Result<Vec<PlacedCall<'_>>, _> =
        (0..CALLS).map(|_| PlacedCall::new(&stream, call, Layout::Contiguous)).collect();
    let refused = |error| problem_of(error, call, "beside another stream ");
    let mut result = placed.map_err(|error| refused(RunError::Upload(error)));
    let (mut met, mut fastest) = (0, LONG);
    for round in 0.. {
        let Ok(placed) = &result else {
            // The other thread waits for this one.
            meeting.end();
            break;
        };
        if !meeting.start(round, met, fastest) {
            break;
        }
        let begun = Instant::now();
        let mut outcome = Ok(());
        met += usize::from(meeting.together(own, round, || outcome = once(&stream, placed, call, alone, round)));
        fastest = fastest.min(begun.elapsed());
        if let Err(problem) = outcome {
            result = Err(problem);
        }
    }
    result.map(drop)
}

/// Queues the calls and compares their results. Arguments that an op updates in place must be uploaded again before.
fn once(
    stream: &OpenDevice,
    placed: &[PlacedCall<'_>],
    call: &Call,
    alone: &Outputs,
    round: usize,
) -> Result<(), Problem> {
    let refused = |error| problem_of(error, call, "beside another stream ");
    placed.iter().try_for_each(|placed| placed.dispatch(stream, Route::Trait)).map_err(|e| refused(RunError::Op(e)))?;
    for placed in placed {
        let outputs = placed.read(stream).map_err(refused)?;
        same_bits(&format!("when another stream runs the op at the same time, in round {round}"), &outputs, alone)
            .map_err(|problem| problem.of(call, Some(&outputs)))?;
        placed.refill(stream, call).map_err(|error| refused(RunError::Upload(error)))?;
    }
    Ok(())
}
