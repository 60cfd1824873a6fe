//! What the core needs of an accelerator.

use crate::call::OpCall;
use crate::error::OpError;
use crate::recorded::Recorded;
use crate::scope::Scope;
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

    /// Allocates `bytes` of the host's memory that ops and copies of this device reach as they do its own, only slower; aligned
    /// to 256, the content is undefined. `None` if the device has no such memory, which is the default.
    ///
    /// # Errors
    /// [`OpError::OutOfMemory`].
    fn allocate_host(&self, _bytes: usize) -> Result<Option<Allocation>, OpError> {
        Ok(None)
    }

    /// Bytes that [`Device::allocate_host`] may find free; `None` if there is no such memory.
    ///
    /// # Errors
    /// The device does not answer.
    fn host_memory(&self) -> Result<Option<u64>, OpError> {
        Ok(None)
    }

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

    /// Copies `len` bytes to the start of `tensor`, in order with ops and without a wait. `write` is called once, with memory
    /// of the host that holds anything and that the device reads when its turn comes; that memory is used again for
    /// later uploads, so that a program which does the same again and again allocates nothing.
    ///
    /// A device that has no such memory waits, which is what the default does.
    ///
    /// # Errors
    /// As [`Device::upload`]; a tensor that is too small is refused before `write` is called.
    fn upload_staged_with(&self, tensor: &Tensor, len: usize, write: &mut dyn FnMut(&mut [u8])) -> Result<(), OpError> {
        let mut bytes = vec![0; len];
        write(&mut bytes);
        self.upload(tensor, &bytes)
    }

    /// As [`Device::upload`], without a wait: the bytes are copied on the host first, see
    /// [`Device::upload_staged_with`].
    ///
    /// # Errors
    /// As [`Device::upload`].
    fn upload_staged(&self, tensor: &Tensor, bytes: &[u8]) -> Result<(), OpError> {
        self.upload_staged_with(tensor, bytes.len(), &mut |staged| staged.copy_from_slice(bytes))
    }

    /// Queues a copy of all of `tensor`, without its scales, to memory of the host, in order with ops and without a wait.
    /// What comes later on this stream may overwrite the tensor. The default waits at once.
    ///
    /// # Errors
    /// The device reports a fault, or has no memory for it. Faults of the work before the copy come from
    /// [`Download::wait`].
    fn download_later(&self, tensor: &Tensor) -> Result<Box<dyn Download>, OpError> {
        let mut bytes = vec![0; tensor.bytes()];
        self.download(tensor, &mut bytes)?;
        Ok(Box::new(Arrived(bytes)))
    }

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

    /// Whether recorded work is queued by one call of the backend, so that recording what is done again and again pays.
    fn captures(&self) -> bool {
        false
    }

    /// Records the ops, fills and copies between tensors that `work` asks of this device, instead of queueing them. `work`
    /// is called once; it may not allocate, upload, download or wait. Tensors keep their addresses and shapes, and the calls
    /// their scalars; the content of memory may change from launch to launch. The recording keeps the memory alive.
    ///
    /// `None` if the device does not record, which is the default; then `work` was not called.
    ///
    /// # Errors
    /// The first error of `work`; the device has no memory for the recording, or is lost.
    fn record_work(&self, _work: &mut dyn FnMut() -> Result<(), OpError>) -> Result<Option<Recorded>, OpError> {
        Ok(None)
    }

    /// Queues recorded work of this device again, in order with everything else.
    ///
    /// # Errors
    /// As the ops of the recording, or it is of another device.
    fn launch_recorded(&self, recorded: &Recorded) -> Result<(), OpError> {
        Err(OpError::Unsupported {
            backend: self.backend().to_owned(),
            op: format!("{recorded:?}"),
            reason: "this device has not recorded them".to_owned(),
        })
    }

    /// The calls from here on belong to this part of a step. It is told to those who stand between a model and its device
    /// and want to name what they see; a device need not know.
    fn scope(&self, _scope: Scope) {}
}

/// Bytes on their way to the host, of [`Device::download_later`]. Dropping it does not wait, nor take the copy back.
pub trait Download {
    /// Whether [`Download::wait`] would return at once; does not block.
    ///
    /// # Errors
    /// As [`Download::wait`].
    fn is_done(&mut self) -> Result<bool, OpError>;

    /// Blocks until the bytes are there, and with them everything that was queued before the copy. Called again, it gives
    /// the same answer without a wait.
    ///
    /// # Errors
    /// The first fault of that work which no other wait has reported; the bytes are then undefined. Work that was queued
    /// after the copy may have failed for the same reason and reports that itself. After [`OpError::DeviceLost`] nothing on
    /// this device works.
    fn wait(&mut self) -> Result<&[u8], OpError>;
}

/// A download that is over.
struct Arrived(Vec<u8>);

impl Download for Arrived {
    fn is_done(&mut self) -> Result<bool, OpError> {
        Ok(true)
    }

    fn wait(&mut self) -> Result<&[u8], OpError> {
        Ok(&self.0)
    }
}
