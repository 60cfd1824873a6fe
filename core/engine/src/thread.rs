//! An engine on a thread of its own, for callers on other threads or in asynchronous code.
//!
//! Models and devices stay on the thread on which they were made. Handles send it requests; each request has a stream of
//! events, which a program awaits or blocks on. The thread alone looks at the clock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use deepinfer_scheduler::{RequestId, Stats};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::engine::{Engine, Event};
use crate::output::{RequestOutput, TokenEvent};
use crate::request::Request;

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

enum Command {
    Submit(Box<Submission>),
    Abort(Ticket),
    ResetPrefixCache,
    Stats(oneshot::Sender<Stats>),
    Stop,
}

struct Submission {
    ticket: Ticket,
    request: Request,
    events: UnboundedSender<StreamEvent>,
    at: Instant,
}

/// A thread that runs an engine. Dropping it ends all requests and waits for the thread.
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
        let (commands, received) = mpsc::channel();
        let (built, outcome) = mpsc::sync_channel(1);
        let work = move || match build() {
            Ok(engine) => {
                if built.send(Ok(())).is_ok() {
                    EngineLoop { engine, running: HashMap::new(), by_ticket: HashMap::new() }.run(&received);
                }
            }
            Err(error) => _ = built.send(Err(error)),
        };
        let thread = std::thread::Builder::new().name("deepinfer-engine".to_owned()).spawn(work);
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
    commands: mpsc::Sender<Command>,
    next: Arc<AtomicU64>,
}

impl EngineHandle {
    /// Submits a request; returns at once. A refusal comes as the stream's only event.
    pub fn submit(&self, request: Request) -> RequestStream {
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
}

/// Events of a request. Dropping it aborts the request.
pub struct RequestStream {
    ticket: Ticket,
    events: UnboundedReceiver<StreamEvent>,
    commands: mpsc::Sender<Command>,
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

/// What the thread does.
struct EngineLoop {
    engine: Engine,
    running: HashMap<RequestId, Running>,
    by_ticket: HashMap<Ticket, RequestId>,
}

struct Running {
    ticket: Ticket,
    events: UnboundedSender<StreamEvent>,
    submitted: Instant,
    first_token: Option<Duration>,
}

impl EngineLoop {
    fn run(mut self, commands: &mpsc::Receiver<Command>) {
        loop {
            // With work to do, commands are looked for between steps; without, there is nothing but to wait for one.
            let mut next = if self.engine.has_work() { commands.try_recv().ok() } else { commands.recv().ok() };
            if next.is_none() && !self.engine.has_work() {
                return;
            }
            while let Some(command) = next {
                match command {
                    Command::Submit(submission) => self.submit(*submission),
                    Command::Abort(ticket) => {
                        if let Some(&id) = self.by_ticket.get(&ticket) {
                            self.engine.abort(id);
                        }
                    }
                    Command::ResetPrefixCache => self.engine.reset_prefix_cache(),
                    // Whoever asked may be gone.
                    Command::Stats(reply) => _ = reply.send(self.engine.stats()),
                    Command::Stop => return,
                }
                next = commands.try_recv().ok();
            }
            self.engine.step();
            self.deliver();
        }
    }

    fn submit(&mut self, submission: Submission) {
        let Submission { ticket, request, events, at } = submission;
        let (name, prompt) = (request.id.clone(), request.prompt_token_ids.clone());
        match self.engine.submit(request) {
            Ok(id) => {
                self.by_ticket.insert(ticket, id);
                self.running.insert(id, Running { ticket, events, submitted: at, first_token: None });
            }
            Err(error) => {
                let times = RequestTimes { first_token: None, finished: at.elapsed() };
                let output = Box::new(RequestOutput::refused(name, prompt, error));
                _ = events.send(StreamEvent::Finished(output, times));
            }
        }
    }

    /// Hands events to their streams. Nobody need listen any more: a stream that was dropped has sent its abort.
    fn deliver(&mut self) {
        for (id, event) in self.engine.events() {
            match event {
                Event::Token(token) => {
                    let Some(running) = self.running.get_mut(&id) else { continue };
                    running.first_token.get_or_insert_with(|| running.submitted.elapsed());
                    _ = running.events.send(StreamEvent::Token(token));
                }
                Event::Finished(output) => {
                    let Some(running) = self.running.remove(&id) else { continue };
                    self.by_ticket.remove(&running.ticket);
                    let finished = running.submitted.elapsed();
                    let times = RequestTimes { first_token: running.first_token, finished };
                    _ = running.events.send(StreamEvent::Finished(output, times));
                }
            }
        }
    }
}
