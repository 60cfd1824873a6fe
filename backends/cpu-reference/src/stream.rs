//! Streams: work is done before the call returns, or later on a queue with random pauses.
//!
//! The second kind is for finding faults elsewhere: a caller that reads a result too early, reuses memory that is still
//! being read, or forgets to let one stream wait for another gets wrong results from it, in another way for every seed.

#![allow(unsafe_code)]

use std::ffi::c_void;

use deepinfer_plugin_api::sdk::{Fault, HostEvent, HostQueue, Rows2d};

use crate::memory;

/// A stream of the processor.
pub struct Stream {
    /// Absent where work is done at once.
    queue: Option<HostQueue>,
}

impl Stream {
    /// Does everything at once.
    pub(crate) fn immediate() -> Self {
        Self { queue: None }
    }

    /// Does everything later, in order.
    pub(crate) fn queued(queue: HostQueue) -> Self {
        Self { queue: Some(queue) }
    }

    pub(crate) fn queue(&self) -> Option<&HostQueue> {
        self.queue.as_ref()
    }

    pub(crate) fn sync(&self) -> Result<(), Fault> {
        self.queue.as_ref().map_or(Ok(()), HostQueue::sync)
    }

    pub(crate) fn record(&self, event: &HostEvent) {
        match &self.queue {
            Some(queue) => queue.record(event),
            None => event.record_now(),
        }
    }

    /// Later work waits for the event. On a stream without a queue there is no later: all streams of a process are of one
    /// kind, so that the event has passed.
    pub(crate) fn wait(&self, event: &HostEvent) {
        if let Some(queue) = &self.queue {
            queue.wait(event);
        }
    }

    /// Runs `work` now or in its turn.
    fn run(&self, what: &'static str, work: impl FnOnce() + Send + 'static) {
        match &self.queue {
            None => work(),
            Some(queue) => queue.submit(what, || {
                work();
                Ok(())
            }),
        }
    }

    /// Copies `bytes`.
    ///
    /// # Safety
    /// They are readable at `src` and writable at `dst` until the stream has passed.
    pub(crate) unsafe fn copy(&self, dst: *mut c_void, src: *const c_void, bytes: u64) {
        let (dst, src) = (dst.expose_provenance(), src.expose_provenance());
        self.run("copy", move || {
            // SAFETY: the same contract; host and device are one memory.
            unsafe { memory::copy(mut_pointer(dst), pointer(src), bytes) }
        });
    }

    /// Copies rows.
    ///
    /// # Safety
    /// Every row is readable at `rows.src` and writable at `rows.dst` until the stream has passed.
    pub(crate) unsafe fn copy_2d(&self, rows: Rows2d) {
        let Rows2d { dst_pitch, src_pitch, width, height, .. } = rows;
        let (dst, src) = (rows.dst.expose_provenance(), rows.src.expose_provenance());
        self.run("copy_2d", move || {
            for row in 0..height {
                // What is addressable fits `usize`.
                let (to, from) = ((row * dst_pitch) as usize, (row * src_pitch) as usize);
                // SAFETY: the same contract.
                unsafe {
                    memory::copy(mut_pointer(dst).wrapping_byte_add(to), pointer(src).wrapping_byte_add(from), width)
                }
            }
        });
    }

    /// Writes `count` times the low `pattern_bytes` (1, 2 or 4) of `pattern`.
    ///
    /// # Safety
    /// They are writable at `dst` until the stream has passed.
    pub(crate) unsafe fn fill(&self, dst: *mut c_void, pattern: u32, pattern_bytes: u32, count: u64) {
        let dst = dst.expose_provenance();
        self.run("fill", move || {
            // SAFETY: the same contract.
            unsafe { memory::fill(mut_pointer(dst), pattern, pattern_bytes, count) }
        });
    }
}

/// An address that crossed to another thread.
fn pointer(address: usize) -> *const c_void {
    std::ptr::with_exposed_provenance(address)
}

/// As [`pointer`].
fn mut_pointer(address: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::abi::DI_COPY_D2D;
    use deepinfer_plugin_api::sdk::Delays;

    use super::*;

    fn streams() -> [Stream; 2] {
        [Stream::immediate(), Stream::queued(HostQueue::start("test", Some(Delays::seeded(5))).unwrap())]
    }

    #[test]
    fn both_kinds_leave_the_same_bytes() {
        for stream in streams() {
            let mut bytes = vec![0_u8; 32];
            let base: *mut c_void = bytes.as_mut_ptr().cast();
            let rows = Rows2d {
                dst: base.wrapping_byte_add(16),
                dst_pitch: 4,
                src: base,
                src_pitch: 8,
                width: 3,
                height: 2,
                kind: DI_COPY_D2D,
            };
            // SAFETY: all ranges lie within the vector, which is not touched before the wait.
            unsafe {
                stream.fill(base, 0x0201, 2, 4);
                stream.copy(base.wrapping_byte_add(9), base, 4);
                stream.copy_2d(rows);
            }
            stream.sync().unwrap();
            assert_eq!(bytes[..16], [1, 2, 1, 2, 1, 2, 1, 2, 0, 1, 2, 1, 2, 0, 0, 0]);
            assert_eq!(bytes[16..], [1, 2, 1, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
    }

    #[test]
    fn an_event_passes_with_the_work_before_it() {
        for stream in streams() {
            let (event, mut byte) = (HostEvent::new(), 0_u8);
            // SAFETY: one byte, not touched before the wait.
            unsafe { stream.fill((&raw mut byte).cast(), 7, 1, 1) };
            stream.record(&event);
            stream.wait(&event);
            event.sync().unwrap();
            assert!(event.query().unwrap());
            // SAFETY: written through a pointer before the event passed.
            assert_eq!(unsafe { (&raw const byte).read_volatile() }, 7);
        }
    }
}
