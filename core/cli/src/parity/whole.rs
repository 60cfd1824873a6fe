//! Cases of a backend as a whole: what it says of itself (L0); memory, copies, streams and events (L1); its end (L5).

mod ending;
mod load;
mod memory;
mod streams;

use deepinfer_ops::{Allocation, Device, Format, Tensor};
use deepinfer_parity::{Failure, Fault, Level, Outcome};
use deepinfer_runtime::OpenDevice;

use super::task::WholeCase;

pub(crate) use ending::{CLOSE, SHUTDOWN, count_threads};

macro_rules! whole_cases {
    ($(#[$doc:meta])* $list:ident: $($level:ident $subject:literal $name:literal $(($fault:ident))? $run:path;)*) => {
        $(#[$doc])*
        pub(crate) const $list: &[WholeCase] = &[$(WholeCase {
            subject: $subject,
            name: $name,
            level: Level::$level,
            fault: [$(Some(Fault::$fault),)? None][0],
            run: |target| $run(target).map_or_else(Problem::into_outcome, |()| Outcome::Passed { share: None }),
        }),*];
    };
}

whole_cases! {
    /// In the order in which they run. In brackets, the kind of fault that a failure shows.
    CASES:
    L0 "load" "describes-itself" load::describes_itself;
    L0 "load" "op-table" load::op_table_is_consistent;
    L0 "load" "device-info-lengths" (OverRead) load::device_info_has_any_length;
    L0 "load" "space-info-lengths" (OverRead) load::space_info_has_any_length;
    L0 "load" "link-info-lengths" (OverRead) load::link_info_has_any_length;
    L0 "load" "open-and-close" load::opens_and_closes;
    L0 "load" "absent-device" load::absent_device_is_refused;
    L0 "load" "unknown-extension" (UnknownValue) load::unknown_extension_breaks_nothing;
    L0 "load" "unknown-values" (UnknownValue) load::unknown_values_are_refused;
    L1 "memory" "figures" memory::figures_are_possible;
    L1 "memory" "placement" memory::allocations_are_aligned_and_apart;
    L1 "memory" "copies" memory::copies_come_back;
    L1 "memory" "parts" memory::copies_stay_within_their_tensor;
    L1 "memory" "fills" memory::fills_stay_within_their_tensor;
    L1 "memory" "too-much" memory::too_much_is_refused;
    L1 "memory" "reuse" memory::freed_memory_can_be_had_again;
    L1 "stream" "order" streams::work_runs_in_order;
    L1 "stream" "events" streams::events_come_to_pass;
    L1 "stream" "event-wait" (EventWait) streams::a_stream_waits_for_an_event;
    L1 "stream" "unrecorded-event" streams::an_unrecorded_event_holds_nobody_up;
    L1 "stream" "two-streams" (StreamRace) streams::two_streams_do_not_mix;
    L1 "stream" "destroyed-with-work" streams::work_survives_its_stream;
    L1 "device" "two-at-once" streams::two_devices_do_not_mix;
}

whole_cases! {
    /// What is left after everything: they run last.
    LAST_CASES:
    L5 "memory" "given-back" memory::memory_is_given_back;
    L1 "device" "leaked threads" ending::no_thread_is_left;
    L1 "device" "close" ending::device_closes;
    L5 "device" "shutdown" ending::threads_end_with_the_backend;
}

/// Why a case fails.
enum Problem {
    /// What it looks for is so.
    Found(String),
    /// Something that it needs, and that other cases test, does not work.
    SetUp(String),
}

impl Problem {
    fn into_outcome(self) -> Outcome {
        match self {
            Self::Found(problem) => Outcome::failed(problem),
            Self::SetUp(problem) => {
                Outcome::Failed(Failure::new(problem.as_str()).of(Fault::SetUp).because_of(problem))
            }
        }
    }
}

impl From<String> for Problem {
    fn from(problem: String) -> Self {
        Self::Found(problem)
    }
}

/// An error of a step on the way to what a case looks for.
fn text(error: impl std::fmt::Display) -> Problem {
    Problem::SetUp(error.to_string())
}

fn ensure(holds: bool, problem: impl FnOnce() -> String) -> Result<(), Problem> {
    if holds { Ok(()) } else { Err(Problem::Found(problem())) }
}

fn bytes(memory: &Allocation, offset: usize, len: usize) -> Tensor {
    Tensor::plain(memory, offset, Format::U8, &[len])
}

/// Bytes that look random; `salt` tells the patterns apart.
fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 167 + salt * 59) >> 3 ^ i) as u8).collect()
}

fn download(device: &OpenDevice, tensor: &Tensor) -> Result<Vec<u8>, Problem> {
    let mut out = vec![0xEE; tensor.bytes()];
    device.download(tensor, &mut out).map_err(text)?;
    Ok(out)
}

fn expect_bytes(what: &str, found: &[u8], wanted: &[u8]) -> Result<(), Problem> {
    match found.iter().zip(wanted).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(i) => {
            let (found, expected) = (found[i], wanted[i]);
            Err(format!("{what}: byte {i} of {} is {found:#04x}, expected {expected:#04x}", wanted.len()).into())
        }
    }
}
