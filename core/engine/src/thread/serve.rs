//! What the engine's thread does: it obeys commands, lets the engine work, and hands events to their streams.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use deepinfer_scheduler::{RequestId, Stats};

use crate::engine::{Engine, Event};
use crate::error::EngineError;
use crate::output::RequestOutput;
use crate::request::Request;

use super::sync::{Receiver, UnboundedSender, oneshot};
use super::{RequestTimes, StreamEvent, Ticket};

/// Most commands between two steps, so that those who ask do not hold up those who are being served.
pub(super) const COMMANDS_PER_TURN: usize = 256;

/// What the thread needs of an engine. Tests of the protocol have one that follows a script.
pub(super) trait Serve: 'static {
    fn submit(&mut self, request: Request) -> Result<RequestId, EngineError>;
    fn abort(&mut self, id: RequestId) -> bool;
    fn reset_prefix_cache(&mut self);
    fn stats(&self) -> Stats;
    fn has_work(&self) -> bool;
    fn step(&mut self);
    fn settle(&mut self);
    fn events(&mut self) -> impl Iterator<Item = (RequestId, Event)>;
}

impl Serve for Engine {
    fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        Engine::submit(self, request)
    }

    fn abort(&mut self, id: RequestId) -> bool {
        Engine::abort(self, id)
    }

    fn reset_prefix_cache(&mut self) {
        Engine::reset_prefix_cache(self);
    }

    fn stats(&self) -> Stats {
        Engine::stats(self)
    }

    fn has_work(&self) -> bool {
        Engine::has_work(self)
    }

    fn step(&mut self) {
        Engine::step(self);
    }

    fn settle(&mut self) {
        Engine::settle(self);
    }

    fn events(&mut self) -> impl Iterator<Item = (RequestId, Event)> {
        Engine::events(self)
    }
}

/// What handles and streams ask for.
pub(super) enum Command {
    Submit(Box<Submission>),
    Abort(Ticket),
    ResetPrefixCache,
    Stats(oneshot::Sender<Stats>),
    Pause(oneshot::Sender<()>),
    Resume,
    Stop,
}

pub(super) struct Submission {
    pub(super) ticket: Ticket,
    pub(super) request: Request,
    pub(super) events: UnboundedSender<StreamEvent>,
    pub(super) at: Instant,
}

/// An engine, and whose its requests are.
pub(super) struct Server<S> {
    engine: S,
    running: HashMap<RequestId, Running>,
    by_ticket: HashMap<Ticket, RequestId>,
    is_paused: bool,
}

struct Running {
    ticket: Ticket,
    events: UnboundedSender<StreamEvent>,
    submitted: Instant,
    first_token: Option<Duration>,
}

impl<S: Serve> Server<S> {
    pub(super) fn new(engine: S) -> Self {
        Self { engine, running: HashMap::new(), by_ticket: HashMap::new(), is_paused: false }
    }

    /// Works until it is told to stop, or until there is nobody left who could tell it anything.
    pub(super) fn run(mut self, commands: &Receiver<Command>) {
        while self.turn(commands).is_continue() {}
        self.end_all();
    }

    /// Obeys commands that are there, then lets the engine do a turn of work.
    fn turn(&mut self, commands: &Receiver<Command>) -> ControlFlow<()> {
        let mut next = match self.is_paused || !self.engine.has_work() {
            // There is nothing to do but to wait for a command.
            true => match commands.recv() {
                Ok(command) => Some(command),
                Err(_) => return ControlFlow::Break(()),
            },
            false => commands.try_recv().ok(),
        };
        for left in (0..COMMANDS_PER_TURN).rev() {
            let Some(command) = next else { break };
            self.obey(command)?;
            next = if left > 0 { commands.try_recv().ok() } else { None };
        }
        if !self.is_paused {
            self.engine.step();
        }
        self.deliver();
        ControlFlow::Continue(())
    }

    fn obey(&mut self, command: Command) -> ControlFlow<()> {
        match command {
            Command::Submit(submission) => self.submit(*submission),
            Command::Abort(ticket) => {
                if let Some(&id) = self.by_ticket.get(&ticket) {
                    self.engine.abort(id);
                }
            }
            Command::ResetPrefixCache => self.engine.reset_prefix_cache(),
            // Whoever asked may be gone, here and below.
            Command::Stats(reply) => _ = reply.send(self.engine.stats()),
            Command::Pause(reply) => {
                self.is_paused = true;
                self.engine.settle();
                self.deliver();
                _ = reply.send(());
            }
            Command::Resume => self.is_paused = false,
            Command::Stop => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
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

    /// Ends all requests with what they have, and waits for the device.
    fn end_all(&mut self) {
        let mut ids: Vec<RequestId> = self.running.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.engine.abort(id);
        }
        self.engine.settle();
        self.deliver();
    }
}
