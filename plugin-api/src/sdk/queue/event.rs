//! Points in queues.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Lane;
use crate::sdk::Fault;

/// A point in a [`HostQueue`](super::HostQueue), moved by each record. One that was never recorded has passed.
#[derive(Default)]
pub struct HostEvent {
    point: Mutex<Arc<Point>>,
}

/// One record of an event. Each has its own, so that whoever waits for it is not released by another.
#[derive(Default)]
pub(super) struct Point {
    passed_at: Mutex<Option<Instant>>,
    changed: Condvar,
    /// The queue and how many pieces of work came before. `None`: there is nothing to wait for.
    origin: Option<(Arc<Lane>, u64)>,
}

impl Point {
    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.passed_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pass(&self) {
        *self.lock() = Some(Instant::now());
        self.changed.notify_all();
    }

    pub(super) fn wait(&self) {
        if self.origin.is_none() {
            return;
        }
        let mut passed_at = self.lock();
        while passed_at.is_none() {
            passed_at = self.changed.wait(passed_at).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The unreported fault of the work before the point, which must have passed.
    fn fault(&self) -> Result<(), Fault> {
        self.origin.as_ref().map_or(Ok(()), |(lane, number)| lane.take_fault(*number))
    }
}

impl HostEvent {
    /// An event that has passed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records the event where all work is done: on the stream of a backend that runs it at once.
    pub fn record_now(&self) {
        let point = Point::default();
        point.pass();
        *self.lock() = Arc::new(point);
    }

    /// Moves the event behind all work that the queue has now.
    pub(super) fn move_to(&self, lane: &Arc<Lane>) -> Arc<Point> {
        let number = lane.lock().submitted;
        let point = Arc::new(Point { origin: Some((lane.clone(), number)), ..Point::default() });
        *self.lock() = point.clone();
        point
    }

    pub(super) fn point(&self) -> Arc<Point> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Point>> {
        self.point.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the event has passed; does not block.
    ///
    /// # Errors
    /// When it has: the first fault of the work before it on its queue that was not reported before.
    pub fn query(&self) -> Result<bool, Fault> {
        let point = self.point();
        if point.origin.is_some() && point.lock().is_none() {
            return Ok(false);
        }
        point.fault().map(|()| true)
    }

    /// Blocks until the event has passed.
    ///
    /// # Errors
    /// As [`HostEvent::query`].
    pub fn sync(&self) -> Result<(), Fault> {
        let point = self.point();
        point.wait();
        point.fault()
    }

    /// Time from one event to another; nothing when `to` came first.
    ///
    /// # Errors
    /// One of them was not recorded or has not passed.
    pub fn elapsed(from: &Self, to: &Self) -> Result<Duration, Fault> {
        let when = |event: &Self, name: &str| {
            let passed_at = *event.point().lock();
            passed_at.ok_or_else(|| {
                Fault::invalid(format!("the {name} event was not recorded or has not passed; wait for it first"))
            })
        };
        let from = when(from, "first")?;
        Ok(when(to, "second")?.saturating_duration_since(from))
    }
}
