//! What a backend leaves behind: threads, after its devices are closed and after it is shut down.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use deepinfer_ops::Device;
use deepinfer_parity::{Check, cases, run_case};
use deepinfer_runtime::{OpenDevice, conformance};

use super::{Problem, bytes, ensure, text};
use crate::parity::worker::Target;

/// The case that closes the device that the cases of ops have used: the last one of their process.
pub(crate) const CLOSE: &str = "device/close";
/// The case that ends the backend: it has a process of its own, in which nothing else has started threads.
pub(crate) const SHUTDOWN: &str = "device/shutdown";

/// Threads before any plugin was loaded.
static AT_FIRST: OnceLock<Option<usize>> = OnceLock::new();

/// Counts the threads of this process; to be called before the backend is loaded.
pub(crate) fn count_threads() {
    AT_FIRST.get_or_init(threads);
}

/// Threads of this process; `None` where the system does not tell.
fn threads() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
}

/// Threads once those that are ending have ended, a moment later at most.
fn settled_threads(wanted: usize) -> Option<usize> {
    let until = Instant::now() + Duration::from_millis(100);
    loop {
        match threads() {
            Some(count) if count > wanted && Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            count => return count,
        }
    }
}

/// Two calls of every op. Whether their results are right is the matter of the ops' own cases.
fn run_ops(target: &Target, device: &OpenDevice) {
    for op in target.ops().filter(|op| !target.is_deadly(op)) {
        for case in cases(op, Check::Value, 0, Some(2)) {
            run_case(device, &case);
        }
    }
}

/// Opens, works and closes several times. Threads that the first time leaves behind are a pool that is kept; more of them
/// each time are a leak.
pub(super) fn no_thread_is_left(target: &Target) -> Result<(), Problem> {
    target.close_shared();
    let Some(before) = threads() else { return Ok(()) };
    let mut after = Vec::new();
    for _ in 0..4 {
        let device = target.open()?;
        let memory = device.allocate(4096).map_err(text)?;
        device.fill(&bytes(&memory, 0, 4096), 1).map_err(text)?;
        device.record_event().map_err(text)?.wait().map_err(text)?;
        run_ops(target, &device);
        drop(memory);
        drop(device);
        after.extend(settled_threads(after.first().copied().unwrap_or(before)));
    }
    ensure(after.last() <= after.first(), || {
        format!(
            "the process has {before} threads before the device is opened, and after it is closed for the first, \
                 second, third and fourth time {after:?}"
        )
    })
}

pub(super) fn device_closes(target: &Target) -> Result<(), Problem> {
    target.close_shared();
    Ok(())
}

/// Works, closes, and shuts the backend down, which joins every thread that it has started. A backend without the function
/// has none to join but for a pool that it keeps.
pub(super) fn threads_end_with_the_backend(target: &Target) -> Result<(), Problem> {
    target.close_shared();
    let device = target.open()?;
    run_ops(target, &device);
    device.synchronize().map_err(text)?;
    drop(device);
    target.backend.shutdown().map_err(|error| format!("the backend does not shut down: {error}"))?;
    let Some(Some(at_first)) = AT_FIRST.get().filter(|_| conformance::has_shutdown(target.backend)) else {
        return Ok(());
    };
    let left = settled_threads(*at_first).unwrap_or(*at_first);
    ensure(left <= *at_first, || {
        format!("the process had {at_first} threads before the backend was loaded, and has {left} after its shutdown")
    })
}
