//! Work that a device has recorded, to be queued again as a whole.

use std::any::Any;
use std::fmt;

/// What [`Device::record_work`](crate::Device::record_work) made; the device that made it queues it.
pub struct Recorded {
    work: Box<dyn Any>,
    steps: usize,
    is_captured: bool,
}

impl Recorded {
    /// `work` of `steps` ops, fills and copies, as the device keeps it; `is_captured` if one call of the backend queues it.
    pub fn new(work: impl Any, steps: usize, is_captured: bool) -> Self {
        Self { work: Box::new(work), steps, is_captured }
    }

    /// The work as the device that made it knows it.
    pub fn work<T: Any>(&self) -> Option<&T> {
        self.work.downcast_ref()
    }

    /// Ops, fills and copies in it.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Whether one call of the backend queues all of it.
    pub fn is_captured(&self) -> bool {
        self.is_captured
    }
}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} recorded steps{}", self.steps, if self.is_captured { ", captured" } else { "" })
    }
}
