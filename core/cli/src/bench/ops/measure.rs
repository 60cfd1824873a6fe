//! Times work on a stream: batches that are recorded once and replayed, with the host's clock around so many of them
//! that the wait at the end does not count.

use std::time::Instant;

use deepinfer_ops::OpError;
use deepinfer_runtime::{CommandList, OpenDevice};
use serde::Serialize;

/// Microseconds of a sample at least: the wait for a stream costs below ten.
const SAMPLE: f64 = 2000.0;
/// Most launches that are recorded as one.
const MOST_LAUNCHES: f64 = 4096.0;

/// How launches reach the device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Batch {
    /// Recorded once, as a graph where the backend has graphs, and replayed.
    Recorded,
    /// Queued one by one: for what takes so long that the host's time is none.
    Queued,
}

/// Times of one launch, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Timing {
    pub(super) median_us: f64,
    pub(super) least_us: f64,
    /// What one sample in ten is below.
    pub(super) tenth_us: f64,
    /// What one sample in ten is above.
    pub(super) ninetieth_us: f64,
    pub(super) samples: usize,
    /// Launches of a sample.
    pub(super) launches: usize,
    /// Whether the backend replays them as one graph.
    pub(super) is_captured: bool,
}

/// Times `launch`, which gets the number of the launch; `sets` is how many differ.
///
/// # Errors
/// Those of `launch`, and faults of the device.
pub(super) fn time(
    device: &OpenDevice,
    sets: usize,
    samples: usize,
    batch: Batch,
    launch: impl Fn(usize) -> Result<(), OpError>,
) -> Result<Timing, OpError> {
    // Loads kernels, and surfaces faults of any set.
    (0..sets).try_for_each(&launch)?;
    device.synchronize()?;

    let record = |launches: usize| match batch {
        Batch::Recorded => device.record(|| (0..launches).try_for_each(&launch)).map(Some),
        Batch::Queued => Ok(None),
    };
    let clock = |list: &Option<CommandList>, launches: usize, replays: usize| {
        let begun = Instant::now();
        (0..replays).try_for_each(|_| match list {
            Some(list) => device.launch(list),
            None => (0..launches).try_for_each(&launch),
        })?;
        device.synchronize()?;
        Ok::<_, OpError>(begun.elapsed().as_secs_f64() * 1e6)
    };
    let mut launches = sets;
    let mut list = record(launches)?;
    let mut took = f64::INFINITY;
    // A few launches take mostly the wait, so that the first guess is too low.
    for _ in 0..3 {
        clock(&list, launches, 1)?;
        took = clock(&list, launches, 1)?;
        let wanted = (SAMPLE / (took / launches as f64)).min(MOST_LAUNCHES);
        let more = (wanted / sets as f64).ceil() as usize * sets;
        if more <= launches {
            break;
        }
        launches = more;
        list = record(launches)?;
    }
    let replays = ((SAMPLE / took).ceil() as usize).max(1);
    clock(&list, launches, replays)?;
    let each = |_| Ok(clock(&list, launches, replays)? / (replays * launches) as f64);
    let mut times = (0..samples).map(each).collect::<Result<Vec<f64>, OpError>>()?;
    times.sort_by(f64::total_cmp);
    let share = |part: f64| times[((times.len() - 1) as f64 * part).round() as usize];
    Ok(Timing {
        median_us: share(0.5),
        least_us: times[0],
        tenth_us: share(0.1),
        ninetieth_us: share(0.9),
        samples,
        launches: replays * launches,
        is_captured: list.as_ref().is_some_and(CommandList::is_captured),
    })
}
