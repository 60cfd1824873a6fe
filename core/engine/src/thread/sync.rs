//! What the threads share: channels, a counter, and the engine's thread itself. In tests of the protocol these are models that
//! let a scheduler decide, at every use, which thread goes on.

#[cfg(test)]
pub(crate) use super::tests::sync::*;
#[cfg(not(test))]
pub(crate) use {
    std::sync::Arc,
    std::sync::atomic::{AtomicU64, Ordering},
    std::sync::mpsc::{Receiver, Sender, channel},
    std::thread::{Builder, JoinHandle},
    tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    tokio::sync::oneshot,
};
