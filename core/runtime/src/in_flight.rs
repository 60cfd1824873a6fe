//! What queued work of a stream still reads or writes on the host, and the downloads that tell how far it has come.
//!
//! Every download ends with a *mark*, an event in the stream. Whatever was queued before a mark that has passed is over, so
//! that a program which only ever waits for downloads gets its memory back as one that waits for the stream does.

#![allow(unsafe_code)]

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use deepinfer_ops::{Download, OpError};

use crate::backend::PluginError;
use crate::device::op_error;
use crate::memory::{Opened, Progress};
use crate::stream::{Event, HostBytes};

/// Staged uploads and downloads that may be pending. A stream on which nobody waits must not collect memory without end.
const MOST_PENDING: usize = 256;

/// Shared by a stream and its downloads.
#[derive(Default)]
pub(crate) struct InFlight {
    state: Mutex<State>,
    /// Waits of the host for this stream.
    waits: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Marks so far; what is queued now is over when the next one has passed.
    marks: u64,
    /// With the number of the mark behind it.
    pending: VecDeque<(u64, Held)>,
    /// Memory that no work touches.
    free_bytes: Vec<HostBytes>,
    /// Events that have passed.
    free_events: Vec<Event>,
}

/// What is kept until a mark has passed.
enum Held {
    Anything(Arc<dyn Any + Send + Sync>),
    Bytes(HostBytes),
    Event(Event),
}

impl InFlight {
    /// Keeps something until the work queued so far is over.
    pub(crate) fn keep(&self, what: Arc<dyn Any + Send + Sync>) {
        self.state().hold(Held::Anything(what));
    }

    /// Keeps staged bytes until the work queued so far is over, then uses them again.
    pub(crate) fn keep_bytes(&self, bytes: HostBytes) {
        self.state().hold(Held::Bytes(bytes));
    }

    /// Whether a caller should wait before it stages more.
    pub(crate) fn is_full(&self) -> bool {
        self.state().pending.len() >= MOST_PENDING
    }

    /// Memory of at least `len` bytes that no work touches.
    pub(crate) fn bytes(&self, opened: &Arc<Opened>, len: usize) -> HostBytes {
        let mut state = self.state();
        let fits = state.free_bytes.iter().enumerate().filter(|(_, bytes)| bytes.len() >= len);
        match fits.min_by_key(|(_, bytes)| bytes.len()).map(|(index, _)| index) {
            Some(index) => state.free_bytes.swap_remove(index),
            None => {
                // Steps grow a little all the time; powers of two keep the buffers few. None of the free ones is large
                // enough: the largest of them makes room.
                let largest = (0..state.free_bytes.len()).max_by_key(|&index| state.free_bytes[index].len());
                largest.map(|index| state.free_bytes.swap_remove(index));
                HostBytes::new(opened, len.next_power_of_two().max(256))
            }
        }
    }

    /// An event that has passed, to be recorded again.
    pub(crate) fn event(&self) -> Option<Event> {
        self.state().free_events.pop()
    }

    /// The number of a mark that is recorded now.
    pub(crate) fn mark(&self) -> u64 {
        let mut state = self.state();
        state.marks += 1;
        state.marks
    }

    /// A mark has passed.
    pub(crate) fn passed(&self, mark: u64) {
        self.state().release(mark);
    }

    /// The stream has run dry.
    pub(crate) fn passed_all(&self) {
        self.state().release(u64::MAX);
    }

    /// The host is about to block.
    pub(crate) fn count_wait(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    /// How often the host has blocked.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn hold(&mut self, what: Held) {
        self.pending.push_back((self.marks + 1, what));
    }

    /// Lets go what is over when `mark` has passed.
    fn release(&mut self, mark: u64) {
        while self.pending.front().is_some_and(|&(number, _)| number <= mark) {
            match self.pending.pop_front() {
                Some((_, Held::Bytes(bytes))) => self.free_bytes.push(bytes),
                Some((_, Held::Event(event))) => self.free_events.push(event),
                Some((_, Held::Anything(what))) => drop(what),
                None => {}
            }
        }
    }
}

/// A copy to the host that was queued, with the event behind it.
pub(crate) struct PendingDownload {
    opened: Arc<Opened>,
    progress: Arc<Progress>,
    in_flight: Arc<InFlight>,
    mark: u64,
    /// Retirements before the event was recorded.
    since: u64,
    /// Taken when the download is dropped.
    parts: Option<(HostBytes, Event)>,
    len: usize,
    /// Known once it is over.
    outcome: Option<Result<(), OpError>>,
}

impl PendingDownload {
    /// The copy to the first `len` of `bytes` is queued, `event` recorded behind it as the mark of this number.
    pub(crate) fn new(
        (opened, progress, in_flight): (&Arc<Opened>, &Arc<Progress>, &Arc<InFlight>),
        (mark, since): (u64, u64),
        (bytes, event): (HostBytes, Event),
        len: usize,
    ) -> Self {
        let (opened, progress, in_flight) = (opened.clone(), progress.clone(), in_flight.clone());
        Self { opened, progress, in_flight, mark, since, parts: Some((bytes, event)), len, outcome: None }
    }

    /// Takes over what a wait or a query said.
    fn end(&mut self, function: &str, result: Result<(), PluginError>) -> Result<(), OpError> {
        // After a fault, too: the work is over, however it ended.
        self.in_flight.passed(self.mark);
        self.opened.passed_event(&self.progress, self.since);
        let outcome = result.map_err(|error| op_error(&self.opened, function, 0, &error));
        self.outcome = Some(outcome.clone());
        outcome
    }

    fn event(&self) -> &Event {
        &self.parts.as_ref().expect("taken by drop alone").1
    }
}

impl Download for PendingDownload {
    fn is_done(&mut self) -> Result<bool, OpError> {
        match &self.outcome {
            Some(outcome) => outcome.clone().map(|()| true),
            None => match self.event().is_done() {
                Ok(false) => Ok(false),
                Ok(true) => self.end("event_query", Ok(())).map(|()| true),
                Err(error) => self.end("event_query", Err(error)).map(|()| true),
            },
        }
    }

    fn wait(&mut self) -> Result<&[u8], OpError> {
        match &self.outcome {
            Some(outcome) => outcome.clone()?,
            None => {
                self.in_flight.count_wait();
                let result = self.event().wait();
                self.end("event_sync", result)?;
            }
        }
        let (bytes, _) = self.parts.as_ref().expect("taken by drop alone");
        Ok(&bytes[..self.len])
    }
}

impl Drop for PendingDownload {
    fn drop(&mut self) {
        let Some((bytes, event)) = self.parts.take() else { return };
        let mut state = self.in_flight.state();
        if self.outcome.is_some() {
            state.free_bytes.push(bytes);
            state.free_events.push(event);
        } else {
            // The copy may still be on its way.
            state.pending.push_back((self.mark, Held::Bytes(bytes)));
            state.pending.push_back((self.mark, Held::Event(event)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_goes_with_the_mark_behind_it() {
        let in_flight = InFlight::default();
        let (first, second) = (Arc::new(1), Arc::new(2));
        in_flight.keep(first.clone());
        let one = in_flight.mark();
        in_flight.keep(second.clone());
        let two = in_flight.mark();
        assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (2, 2));
        in_flight.passed(one);
        assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (1, 2));
        in_flight.passed(one);
        assert_eq!(Arc::strong_count(&second), 2);
        in_flight.passed(two);
        assert_eq!(Arc::strong_count(&second), 1);
        in_flight.keep(first.clone());
        in_flight.passed_all();
        assert_eq!(Arc::strong_count(&first), 1);
    }

    #[test]
    fn a_stream_that_nobody_waits_for_is_full_some_time() {
        let in_flight = InFlight::default();
        (0..MOST_PENDING).for_each(|_| in_flight.keep(Arc::new(())));
        assert!(in_flight.is_full());
        in_flight.passed_all();
        assert!(!in_flight.is_full());
    }
}
