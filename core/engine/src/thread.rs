//! An engine on a thread of its own, for callers on other threads or in asynchronous code.
//!
//! Models and devices stay on the thread on which they were made. Handles send it commands through one channel, in whose
//! order it obeys them; each request has a channel of its own for its events, which a program awaits or blocks on. Nothing
//! else is shared but the counter that names requests. The thread alone looks at the clock.
//!
//! What every stream can rely on: its last event is [`StreamEvent::Finished`], and after that it ends; it ends without one
//! only if the engine was gone before it looked at the request. The tests run this protocol, with a scripted engine, under
//! a hundred thousand schedules and more.
//!
//! Nobody waits for a reader: events that are not read stay in memory, at most one for each token. What bounds the memory of
//! many requests is the engine's `max_num_queued_reqs` and `max_num_queued_tokens`, beyond which a request is refused, and
//! `max_tokens`.

mod serve;
mod sync;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use deepinfer_scheduler::Stats;

use crate::engine::Engine;
use crate::output::{RequestOutput, TokenEvent};
use crate::request::Request;

use self::serve::{Command, Serve, Server, Submission};
use self::sync::{Arc, AtomicU64, JoinHandle, Ordering, Receiver, Sender, UnboundedReceiver};
use self::sync::{Builder, channel, oneshot, unbounded_channel};

/// When things happened to a request, counted from when it was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RequestTimes {
    /// Until the first token of any completion; `None` if there was none.
    pub first_token: Option<Duration>,
    /// Until the last completion ended.
    pub finished: Duration,
}

/// News of a submitted request.
#[derive(Debug)]
pub enum StreamEvent {
    /// A completion has a token more.
    Token(TokenEvent),
    /// The request has ended, or was refused; nothing comes after it.
    Finished(Box<RequestOutput>, RequestTimes),
}

/// Names a request of an [`EngineThread`].
type Ticket = u64;

/// A thread that runs an engine. Dropping it ends all requests with what they have, and waits for the thread.
pub struct EngineThread {
    handle: EngineHandle,
    thread: Option<JoinHandle<()>>,
}

impl EngineThread {
    /// Starts a thread, builds an engine there and waits for it.
    ///
    /// # Errors
    /// What `build` says.
    ///
    /// # Panics
    /// If `build` does, or if the system gives no thread.
    pub fn spawn<E: Send + 'static>(build: impl FnOnce() -> Result<Engine, E> + Send + 'static) -> Result<Self, E> {
        Self::serve(build)
    }

    fn serve<S: Serve, E: Send + 'static>(build: impl FnOnce() -> Result<S, E> + Send + 'static) -> Result<Self, E> {
        let (commands, received): (_, Receiver<Command>) = channel();
        let (built, outcome) = channel();
        let work = move || match build() {
            Ok(engine) => {
                if built.send(Ok(())).is_ok() {
                    Server::new(engine).run(&received);
                }
            }
            Err(error) => _ = built.send(Err(error)),
        };
        let thread = Builder::new().name("deepinfer-engine".to_owned()).spawn(work);
        let thread = thread.unwrap_or_else(|error| panic!("the system gives no thread for the engine: {error}"));
        match outcome.recv() {
            Ok(outcome) => outcome?,
            Err(_) => match thread.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => unreachable!("the thread reports before it ends"),
            },
        }
        let handle = EngineHandle { commands, next: Arc::new(AtomicU64::new(0)) };
        Ok(Self { handle, thread: Some(thread) })
    }

    /// A handle, of which there can be many, on any thread.
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        _ = self.handle.commands.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

/// Sends requests to an [`EngineThread`].
#[derive(Clone)]
pub struct EngineHandle {
    commands: Sender<Command>,
    next: Arc<AtomicU64>,
}

impl EngineHandle {
    /// Submits a request; returns at once. A refusal comes as the stream's only event.
    pub fn submit(&self, request: Request) -> RequestStream {
        // Tickets need be different, and nothing is read behind them: no order is asked of the counter.
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, events) = unbounded_channel();
        let submission = Submission { ticket, request, events: sender, at: Instant::now() };
        // Without an engine the sender is dropped, and the stream ends at once.
        _ = self.commands.send(Command::Submit(Box::new(submission)));
        RequestStream { ticket, events, commands: self.commands.clone() }
    }

    /// Forgets all cached pages.
    pub fn reset_prefix_cache(&self) {
        _ = self.commands.send(Command::ResetPrefixCache);
    }

    /// Numbers of the engine, after the turn of work that it is at; an error if the engine is gone.
    pub fn stats(&self) -> oneshot::Receiver<Stats> {
        let (sender, receiver) = oneshot::channel();
        _ = self.commands.send(Command::Stats(sender));
        receiver
    }

    /// Stops between two steps. Answers when no step is in flight and all tokens drawn so far are in their streams; an error
    /// if the engine is gone. Until [`resume`](Self::resume), whoever calls it, requests are still taken, refused and
    /// aborted, but none goes on. A second pause changes nothing.
    pub fn pause(&self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        _ = self.commands.send(Command::Pause(sender));
        receiver
    }

    /// Goes on after a [`pause`](Self::pause).
    pub fn resume(&self) {
        _ = self.commands.send(Command::Resume);
    }
}

/// Events of a request. Dropping it aborts the request.
pub struct RequestStream {
    ticket: Ticket,
    events: UnboundedReceiver<StreamEvent>,
    commands: Sender<Command>,
}

impl RequestStream {
    /// The next event; `None` after the last, or when the engine's thread has ended.
    pub async fn next(&mut self) -> Option<StreamEvent> {
        self.events.recv().await
    }

    /// As [`RequestStream::next`], on a thread that may block.
    ///
    /// # Panics
    /// In asynchronous code.
    pub fn next_blocking(&mut self) -> Option<StreamEvent> {
        self.events.blocking_recv()
    }

    /// Ends the request with what it has; the stream goes on to its last event.
    pub fn abort(&self) {
        _ = self.commands.send(Command::Abort(self.ticket));
    }
}

impl Drop for RequestStream {
    fn drop(&mut self) {
        self.abort();
    }
}
