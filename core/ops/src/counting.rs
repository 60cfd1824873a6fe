//! A device that computes nothing and counts what it is asked for.

use std::cell::Cell;
use std::sync::Arc;

use crate::call::OpCall;
use crate::device::{Device, Dispatch};
use crate::error::OpError;
use crate::tensor::{Allocation, Tensor};

/// Alignment of allocations, as [`Device::allocate`] promises.
const ALIGN: usize = 256;

/// A device without memory: every allocation succeeds at an address that nothing lies at, ops are checked and not run.
///
/// What a program would take of a real device is known after it ran on this one.
#[derive(Debug)]
pub struct CountingDevice {
    /// End of the last allocation. Addresses begin above 0, which stands for no tensor.
    end: Cell<usize>,
    calls: Cell<u64>,
    /// Bytes of the host's memory.
    host: Cell<u64>,
}

impl CountingDevice {
    /// A device of which nothing was taken.
    pub fn new() -> Self {
        Self { end: Cell::new(ALIGN), calls: Cell::new(0), host: Cell::new(0) }
    }

    /// Bytes of all allocations so far, alignment included; those that were given up count, too, those of the host do not.
    pub fn allocated_bytes(&self) -> u64 {
        (self.end.get() - ALIGN) as u64 - self.host.get()
    }

    /// Bytes of allocations of the host's memory so far.
    pub fn host_bytes(&self) -> u64 {
        self.host.get()
    }

    /// Ops so far.
    pub fn calls(&self) -> u64 {
        self.calls.get()
    }
}

impl Default for CountingDevice {
    fn default() -> Self {
        Self::new()
    }
}

impl Dispatch for CountingDevice {
    fn dispatch(&self, call: &dyn OpCall) -> Result<(), OpError> {
        call.check()?;
        self.calls.set(self.calls.get() + 1);
        Ok(())
    }
}

impl Device for CountingDevice {
    fn backend(&self) -> &str {
        "counting"
    }

    fn allocate(&self, bytes: usize) -> Result<Allocation, OpError> {
        let address = self.end.get();
        let end = bytes.checked_next_multiple_of(ALIGN).and_then(|bytes| address.checked_add(bytes));
        let end = end.ok_or_else(|| OpError::OutOfMemory {
            bytes: bytes as u64,
            reason: "no device has as many addresses".to_owned(),
        })?;
        self.end.set(end);
        // Of no type that exists, so that a tensor which strays to a real device is refused there.
        Ok(Allocation { address, bytes, device_type: 0, device_id: 0, owner: Arc::new(()) })
    }

    fn allocate_host(&self, bytes: usize) -> Result<Option<Allocation>, OpError> {
        let begin = self.end.get();
        let memory = self.allocate(bytes)?;
        self.host.set(self.host.get() + (self.end.get() - begin) as u64);
        Ok(Some(memory))
    }

    fn host_memory(&self) -> Result<Option<u64>, OpError> {
        Ok(Some(u64::MAX))
    }

    fn upload(&self, _: &Tensor, _: &[u8]) -> Result<(), OpError> {
        Ok(())
    }

    fn upload_staged(&self, _: &Tensor, _: &[u8]) -> Result<(), OpError> {
        Ok(())
    }

    fn download(&self, _: &Tensor, bytes: &mut [u8]) -> Result<(), OpError> {
        bytes.fill(0);
        Ok(())
    }

    fn fill(&self, _: &Tensor, _: u8) -> Result<(), OpError> {
        Ok(())
    }

    fn copy(&self, _: &Tensor, _: &Tensor) -> Result<(), OpError> {
        Ok(())
    }

    fn memory(&self) -> Result<(u64, u64), OpError> {
        Ok((u64::MAX, u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_counted_and_lie_apart() {
        let device = CountingDevice::new();
        let first = device.allocate(1).unwrap();
        let second = device.allocate(300).unwrap();
        assert_eq!(device.allocated_bytes(), 256 + 512);
        assert!(first.address > 0 && second.address == first.address + 256);
        assert!(matches!(device.allocate(usize::MAX), Err(OpError::OutOfMemory { .. })));
        device.allocate_host(257).unwrap();
        assert_eq!((device.allocated_bytes(), device.host_bytes()), (256 + 512, 512));
    }
}
