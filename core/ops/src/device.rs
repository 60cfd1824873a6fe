//! What the core needs of an accelerator.

use crate::call::OpCall;
use crate::error::OpError;
use crate::tensor::{Allocation, Tensor};

/// Runs ops in order.
pub trait Dispatch {
    /// Checks the arguments and enqueues the op. Work runs in the order of the calls.
    ///
    /// # Errors
    /// The arguments are wrong, the backend refuses them, or an earlier fault has surfaced.
    fn dispatch(&self, call: &dyn OpCall) -> Result<(), OpError>;
}

/// A device: memory, copies and ops on one stream.
pub trait Device: Dispatch {
    /// Name of the backend.
    fn backend(&self) -> &str;

    /// Allocates `bytes` aligned to 256; the content is undefined.
    ///
    /// # Errors
    /// [`OpError::OutOfMemory`].
    fn allocate(&self, bytes: usize) -> Result<Allocation, OpError>;

    /// Copies `bytes` to the start of `tensor`, in order with ops; the source may be reused on return.
    ///
    /// # Errors
    /// The tensor is smaller, or the device reports a fault.
    fn upload(&self, tensor: &Tensor, bytes: &[u8]) -> Result<(), OpError>;

    /// Waits for the ops before it and copies the start of `tensor` to `bytes`.
    ///
    /// # Errors
    /// The tensor is smaller, or the device reports a fault.
    fn download(&self, tensor: &Tensor, bytes: &mut [u8]) -> Result<(), OpError>;

    /// Sets every byte of `tensor`'s memory, in order with ops.
    ///
    /// # Errors
    /// The device reports a fault.
    fn fill(&self, tensor: &Tensor, byte: u8) -> Result<(), OpError>;

    /// Copies all of `source`, with its scales, to `target`, in order with ops and without a wait. `source` may lie on
    /// another device of the same backend, whose work on it must be over or be waited for by this stream.
    ///
    /// # Errors
    /// The tensors differ in shape or format, have gaps, or lie elsewhere; the device reports a fault.
    fn copy(&self, target: &Tensor, source: &Tensor) -> Result<(), OpError>;

    /// Free and total bytes of device memory.
    ///
    /// # Errors
    /// The device does not answer.
    fn memory(&self) -> Result<(u64, u64), OpError>;
}
