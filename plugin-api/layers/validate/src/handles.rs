//! The objects that the layer hands out instead of those of the backend.
//!
//! A handle is a number that is never given twice, so that one that was destroyed is recognised for ever, and one of
//! somebody else is never taken for ours. Nobody dereferences it.

use std::collections::BTreeMap;
use std::fmt;

/// What a handle stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    Device = 1,
    Buffer = 2,
    Stream = 3,
    Event = 4,
    Plan = 5,
    Graph = 6,
    Exec = 7,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Kind::Device => "device",
            Kind::Buffer => "buffer",
            Kind::Stream => "stream",
            Kind::Event => "event",
            Kind::Plan => "plan",
            Kind::Graph => "graph",
            Kind::Exec => "launchable graph",
        }
    }
}

/// Low bits of a handle hold the kind.
const KIND_BITS: u32 = 4;

/// A handle: the `n`th object of its kind, from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Handle {
    pub(crate) kind: Kind,
    pub(crate) number: usize,
}

impl Handle {
    /// As it crosses the boundary.
    pub(crate) fn address(self) -> usize {
        self.number << KIND_BITS | self.kind as usize
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{}", self.kind.name(), self.number)
    }
}

/// Why an address is no live object of its kind; the end of a sentence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lost {
    Null(Kind),
    Gone(Handle),
    Foreign(Kind, usize),
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lost::Null(kind) => write!(f, "a null {}", kind.name()),
            Lost::Gone(handle) => write!(f, "{handle}, which was destroyed"),
            Lost::Foreign(kind, address) => write!(f, "a {} {address:#x} that this backend never made", kind.name()),
        }
    }
}

/// The live objects of one kind.
#[derive(Debug)]
pub(crate) struct Table<T> {
    kind: Kind,
    made: usize,
    live: BTreeMap<usize, T>,
}

impl<T> Table<T> {
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, made: 0, live: BTreeMap::new() }
    }

    pub(crate) fn insert(&mut self, object: T) -> Handle {
        self.made += 1;
        self.live.insert(self.made, object);
        Handle { kind: self.kind, number: self.made }
    }

    /// The handle that crosses the boundary as `address`.
    pub(crate) fn find(&self, address: usize) -> Result<Handle, Lost> {
        let number = address >> KIND_BITS;
        let handle = Handle { kind: self.kind, number };
        match address {
            0 => Err(Lost::Null(self.kind)),
            _ if handle.address() != address || number == 0 || number > self.made => {
                Err(Lost::Foreign(self.kind, address))
            }
            _ if !self.live.contains_key(&number) => Err(Lost::Gone(handle)),
            _ => Ok(handle),
        }
    }

    pub(crate) fn get(&self, handle: Handle) -> Option<&T> {
        self.live.get(&handle.number)
    }

    pub(crate) fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        self.live.get_mut(&handle.number)
    }

    pub(crate) fn remove(&mut self, handle: Handle) -> Option<T> {
        self.live.remove(&handle.number)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.live.iter().map(|(&number, object)| (Handle { kind: self.kind, number }, object))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Handle, &mut T)> {
        let kind = self.kind;
        self.live.iter_mut().map(move |(&number, object)| (Handle { kind, number }, object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_recognised_after_its_end_and_others_are_not_taken_for_it() {
        let (mut streams, mut events) = (Table::new(Kind::Stream), Table::new(Kind::Event));
        let (first, second) = (streams.insert("a"), streams.insert("b"));
        let event = events.insert("e");
        assert_eq!(streams.find(second.address()), Ok(second));
        assert_eq!(streams.remove(first), Some("a"));
        let third = streams.insert("c");
        assert_ne!(third, first, "numbers are not given again");
        let lost = |address| streams.find(address).unwrap_err().to_string();
        assert_eq!(lost(first.address()), "stream #1, which was destroyed");
        assert_eq!(lost(0), "a null stream");
        for foreign in [event.address(), 0x7fff_1234_5678, 3, (4 << KIND_BITS) | 3] {
            assert_eq!(lost(foreign), format!("a stream {foreign:#x} that this backend never made"));
        }
    }
}
