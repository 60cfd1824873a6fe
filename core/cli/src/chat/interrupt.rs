//! Ctrl-C.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll, Wake};
use std::thread::Thread;
use std::time::Duration;

use anyhow::Context;

use crate::failure::Failure;

/// Time in which Ctrl-C is noticed.
pub(crate) const POLL: Duration = Duration::from_millis(50);

/// Whether Ctrl-C was pressed. While this exists, and after it, that does not end the program.
pub(crate) struct Interrupts(Arc<AtomicBool>);

impl Interrupts {
    /// Takes Ctrl-C over.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn catch() -> Result<Self, Failure> {
        let pressed = Arc::new(AtomicBool::new(false));
        let taken = signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&pressed));
        taken.context("cannot take over Ctrl-C").map_err(Failure::Fault)?;
        Ok(Self(pressed))
    }

    /// Whether it was pressed since the last call.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }

    /// Waits for a future; `None` if Ctrl-C was pressed before, and the future has not ended.
    pub(crate) fn wait<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let waker = Arc::new(Unpark(std::thread::current())).into();
        let mut context = TaskContext::from_waker(&waker);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Some(output);
            }
            if self.take() {
                return None;
            }
            std::thread::park_timeout(POLL);
        }
    }
}

/// Wakes a thread that waits for a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
