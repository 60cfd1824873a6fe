//! Models of what threads share. Every use is a point at which shuttle may let another thread go on.
//!
//! The channels have the semantics of `std::sync::mpsc` and `tokio::sync`: unbounded, first in first out; a receiver that
//! goes takes unread messages with it, and whatever those hold; a receiver without senders reads what is left, and then the
//! end. They are written here because shuttle's own keep the unread messages of a receiver that is gone.

use std::collections::VecDeque;
use std::sync::Mutex;

use shuttle::sync::atomic::AtomicBool;
use shuttle::sync::mpsc;
use shuttle::thread::yield_now;

pub(crate) use shuttle::sync::Arc;
pub(crate) use shuttle::sync::atomic::{AtomicU64, Ordering};
pub(crate) use shuttle::thread::{Builder, JoinHandle};

/// The other side is gone.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// A channel. No thread changes while the lock is held: it is there for the compiler.
struct Shared<T> {
    state: Mutex<State<T>>,
    /// Read in order to let shuttle choose a thread.
    point: AtomicBool,
    /// Wakes the receiver, when it waits.
    bell: mpsc::Sender<()>,
}

struct State<T> {
    messages: VecDeque<T>,
    senders: usize,
    has_receiver: bool,
    /// Whether the receiver waits for the bell.
    is_waiting: bool,
}

pub(crate) struct Sender<T>(Arc<Shared<T>>);

pub(crate) struct Receiver<T> {
    shared: Arc<Shared<T>>,
    bell: mpsc::Receiver<()>,
}

pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = State { messages: VecDeque::new(), senders: 1, has_receiver: true, is_waiting: false };
    let (bell, heard) = mpsc::channel();
    let shared = Arc::new(Shared { state: Mutex::new(state), point: AtomicBool::new(false), bell });
    (Sender(shared.clone()), Receiver { shared, bell: heard })
}

impl<T> Shared<T> {
    /// Acts on the channel, after a point at which threads may change.
    fn with<R>(&self, act: impl FnOnce(&mut State<T>) -> R) -> R {
        self.point.load(Ordering::SeqCst);
        self.unseen(act)
    }

    /// Acts on the channel in a way that no other thread can see the time of, so that there are fewer schedules.
    fn unseen<R>(&self, act: impl FnOnce(&mut State<T>) -> R) -> R {
        act(&mut self.state.lock().expect("no thread panics with it"))
    }

    /// Wakes the receiver, if it waited.
    fn ring(&self, was_waiting: bool) {
        if was_waiting {
            // A receiver that waits has its end of the bell.
            _ = self.bell.send(());
        }
    }
}

impl<T> Sender<T> {
    pub(crate) fn send(&self, message: T) -> Result<(), Gone> {
        let (refused, was_waiting) = self.0.with(|state| {
            if !state.has_receiver {
                return (Some(message), false);
            }
            state.messages.push_back(message);
            (None, std::mem::take(&mut state.is_waiting))
        });
        self.0.ring(was_waiting);
        // What a refused message holds may be other channels: it goes when this one is not locked.
        if refused.is_some() { Err(Gone) } else { Ok(()) }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.unseen(|state| state.senders += 1);
        Self(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let leave = |state: &mut State<T>| {
            state.senders -= 1;
            state.senders == 0 && std::mem::take(&mut state.is_waiting)
        };
        let is_last = self.0.unseen(|state| state.senders == 1);
        let was_waiting = if is_last { self.0.with(leave) } else { self.0.unseen(leave) };
        self.0.ring(was_waiting);
    }
}

impl<T> Receiver<T> {
    pub(crate) fn recv(&self) -> Result<T, Gone> {
        loop {
            let found = self.shared.with(|state| match state.messages.pop_front() {
                Some(message) => Some(Ok(message)),
                None if state.senders == 0 => Some(Err(Gone)),
                None => {
                    state.is_waiting = true;
                    None
                }
            });
            match found {
                Some(found) => return found,
                None => self.bell.recv().expect("the channel has the other end of the bell"),
            }
        }
    }

    /// A message, if there is one. Who asks in vain will ask again: others go first.
    pub(crate) fn try_recv(&self) -> Result<T, Gone> {
        let found = self.shared.with(|state| state.messages.pop_front());
        if found.is_none() {
            yield_now();
        }
        found.ok_or(Gone)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let unread = self.shared.with(|state| {
            state.has_receiver = false;
            std::mem::take(&mut state.messages)
        });
        drop(unread);
    }
}

pub(crate) type UnboundedSender<T> = Sender<T>;

pub(crate) struct UnboundedReceiver<T>(Receiver<T>);

pub(crate) fn unbounded_channel<T>() -> (UnboundedSender<T>, UnboundedReceiver<T>) {
    let (sender, receiver) = channel();
    (sender, UnboundedReceiver(receiver))
}

impl<T> UnboundedReceiver<T> {
    pub(crate) async fn recv(&mut self) -> Option<T> {
        self.blocking_recv()
    }

    pub(crate) fn blocking_recv(&mut self) -> Option<T> {
        self.0.recv().ok()
    }
}

pub(crate) mod oneshot {
    pub(crate) use super::Sender;

    pub struct Receiver<T>(super::Receiver<T>);

    pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
        let (sender, receiver) = super::channel();
        (sender, Receiver(receiver))
    }

    impl<T> Receiver<T> {
        pub(crate) fn blocking_recv(self) -> Result<T, super::Gone> {
            self.0.recv()
        }
    }
}
