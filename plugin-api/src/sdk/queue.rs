//! Queues of a backend in host memory: what a stream is where no vendor's library provides one.
//!
//! A [`HostQueue`] is a thread that does pieces of work in the order in which they were submitted; a [`HostEvent`] is a
//! point in a queue that others wait for. Work that fails does not stop the queue: its first fault is kept until
//! somebody waits for the queue or for an event behind it, and is reported once, with the name of the work.
//!
//! With [`Delays`] a queue pauses at random before each piece of work and again before it counts as done. Results that
//! depend on an order that nobody asked for then change from seed to seed.

mod delays;
mod event;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::sdk::contain::panic_fault;
use crate::sdk::{Fault, FaultCode};

pub use delays::Delays;
pub use event::HostEvent;

/// A piece of work.
type Work = Box<dyn FnOnce() -> Result<(), Fault> + Send>;

/// An ordered queue of work with a thread of its own. Dropping it finishes the work and joins the thread.
///
/// Any thread may submit. Work must not wait for its own queue.
pub struct HostQueue {
    lane: Arc<Lane>,
    worker: Option<JoinHandle<()>>,
}

/// What the queue, its thread and the events recorded on it share.
struct Lane {
    state: Mutex<State>,
    /// Work came, or the queue closes.
    submitted: Condvar,
    /// Work is done.
    finished: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(&'static str, Work)>,
    /// Pieces of work so far.
    submitted: u64,
    /// Of them, those that are done.
    done: u64,
    /// The first fault that nobody has heard of, and which piece of work it was.
    fault: Option<(u64, Fault)>,
    closing: bool,
}

impl Lane {
    /// Nothing runs while the lock is held, so that a panic cannot leave half a change behind.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `number` pieces of work are done.
    fn wait(&self, number: u64) {
        let mut state = self.lock();
        while state.done < number {
            state = self.finished.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The fault among the first `number` pieces of work, unless it was reported before.
    fn take_fault(&self, number: u64) -> Result<(), Fault> {
        match self.lock().fault.take_if(|(failed, _)| *failed <= number) {
            Some((_, fault)) => Err(fault),
            None => Ok(()),
        }
    }

    /// The life of the thread.
    fn work(&self, mut delays: Option<Delays>) {
        let mut pause = || delays.as_mut().into_iter().for_each(Delays::pause);
        while let Some((what, work)) = self.next() {
            pause();
            let result = catch_unwind(AssertUnwindSafe(work));
            let result = result.unwrap_or_else(|payload| Err(panic_fault(what, &*payload)));
            pause();
            let mut state = self.lock();
            state.done += 1;
            if let (Err(fault), None) = (result, &state.fault) {
                state.fault = Some((state.done, fault.or_origin(what)));
            }
            drop(state);
            self.finished.notify_all();
        }
    }

    /// The next piece of work, when it comes; `None` when the queue is closed and empty.
    fn next(&self) -> Option<(&'static str, Work)> {
        let mut state = self.lock();
        loop {
            if let Some(work) = state.waiting.pop_front() {
                return Some(work);
            }
            if state.closing {
                return None;
            }
            state = self.submitted.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl HostQueue {
    /// Starts a queue whose thread has this name. Without delays it works as fast as it can.
    ///
    /// # Errors
    /// [`FaultCode::OutOfMemory`]: the system starts no thread.
    pub fn start(name: &str, delays: Option<Delays>) -> Result<Self, Fault> {
        let lane = Arc::new(Lane { state: Mutex::default(), submitted: Condvar::new(), finished: Condvar::new() });
        let theirs = lane.clone();
        let worker = std::thread::Builder::new().name(name.to_owned()).spawn(move || theirs.work(delays));
        let worker = worker.map_err(|error| {
            Fault::new(FaultCode::OutOfMemory, format!("the system starts no thread for the queue {name:?}: {error}"))
        })?;
        Ok(Self { lane, worker: Some(worker) })
    }

    /// Adds work behind all that was submitted before; `what` names it in faults, usually an op.
    pub fn submit(&self, what: &'static str, work: impl FnOnce() -> Result<(), Fault> + Send + 'static) {
        let mut state = self.lane.lock();
        state.waiting.push_back((what, Box::new(work)));
        state.submitted += 1;
        drop(state);
        self.lane.submitted.notify_one();
    }

    /// Blocks until everything submitted so far is done.
    ///
    /// # Errors
    /// The first fault of that work that was not reported before. The queue goes on.
    pub fn sync(&self) -> Result<(), Fault> {
        let number = self.lane.lock().submitted;
        self.lane.wait(number);
        self.lane.take_fault(number)
    }

    /// Whether everything submitted so far is done; does not block.
    ///
    /// # Errors
    /// As [`HostQueue::sync`], when it is.
    pub fn query(&self) -> Result<bool, Fault> {
        let State { submitted, done, .. } = *self.lane.lock();
        if done < submitted {
            return Ok(false);
        }
        self.lane.take_fault(submitted).map(|()| true)
    }

    /// Lets the event pass when everything submitted so far is done. What waits for an earlier record of the event goes
    /// on waiting for that one.
    pub fn record(&self, event: &HostEvent) {
        let point = event.move_to(&self.lane);
        self.submit("event_record", move || {
            point.pass();
            Ok(())
        });
    }

    /// Lets later work of this queue wait until the event, as it was recorded last, has passed. One that was never
    /// recorded has passed. The caller does not wait.
    pub fn wait(&self, event: &HostEvent) {
        let point = event.point();
        self.submit("event_wait", move || {
            point.wait();
            Ok(())
        });
    }
}

impl Drop for HostQueue {
    fn drop(&mut self) {
        self.lane.lock().closing = true;
        self.lane.submitted.notify_one();
        if let Some(worker) = self.worker.take() {
            // The thread contains the panics of its work.
            let _ = worker.join();
        }
    }
}
