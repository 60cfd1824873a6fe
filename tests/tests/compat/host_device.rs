//! The raw backend as a device of the core: ops go through its tables, memory is the host's own.

use std::cell::UnsafeCell;
use std::sync::Arc;

use deepinfer_ops::{Allocation, Device, Dispatch, OpCall, OpError, Place, Tensor};
use deepinfer_plugin_api::abi::{DI_DEVICE_CPU, DI_E_UNSUPPORTED};

use crate::raw_host::{RawBackend, RawError};

const BLOCK: usize = 256;

#[repr(C, align(256))]
#[derive(Clone)]
struct Block([u8; BLOCK]);

impl Default for Block {
    fn default() -> Self {
        Self([0; BLOCK])
    }
}

/// Memory of an allocation; tensors write it through their addresses.
struct Memory(Vec<UnsafeCell<Block>>);

// SAFETY: the tests that use it have one thread.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Dispatch for RawBackend {
    fn dispatch(&self, call: &dyn OpCall) -> Result<(), OpError> {
        let (mut outcome, mut op) = (Ok(()), "");
        call.with_raw(Place { device_type: DI_DEVICE_CPU, device_id: 0 }, &mut |info, args| {
            op = info.name;
            // SAFETY: `with_raw` gives complete arguments, checked; what they point to lives until it returns.
            outcome = unsafe { self.run(info, args) };
        })?;
        outcome.map_err(|RawError { code, message }| match code {
            DI_E_UNSUPPORTED => OpError::Unsupported { backend: "raw".to_owned(), op: op.to_owned(), reason: message },
            _ => OpError::Backend { origin: op.to_owned(), message },
        })
    }
}

impl Device for RawBackend {
    fn backend(&self) -> &str {
        "raw"
    }

    fn allocate(&self, bytes: usize) -> Result<Allocation, OpError> {
        let blocks = (0..bytes.div_ceil(BLOCK).max(1)).map(|_| UnsafeCell::default()).collect();
        let memory = Memory(blocks);
        let address = memory.0.as_ptr().expose_provenance();
        let owner = Arc::new(memory);
        Ok(Allocation { address, bytes, device_type: DI_DEVICE_CPU, device_id: 0, owner })
    }

    fn upload(&self, tensor: &Tensor, bytes: &[u8]) -> Result<(), OpError> {
        assert!(bytes.len() <= tensor.bytes());
        let target = std::ptr::with_exposed_provenance_mut::<u8>(tensor.address());
        // SAFETY: within the tensor's memory, which is this process's and lives as long as the tensor.
        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn download(&self, tensor: &Tensor, bytes: &mut [u8]) -> Result<(), OpError> {
        assert!(bytes.len() <= tensor.bytes());
        let source = std::ptr::with_exposed_provenance::<u8>(tensor.address());
        // SAFETY: as above.
        unsafe { source.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn fill(&self, tensor: &Tensor, byte: u8) -> Result<(), OpError> {
        let target = std::ptr::with_exposed_provenance_mut::<u8>(tensor.address());
        // SAFETY: as above.
        unsafe { target.write_bytes(byte, tensor.bytes()) };
        Ok(())
    }

    fn copy(&self, target: &Tensor, source: &Tensor) -> Result<(), OpError> {
        let mut bytes = vec![0; source.bytes()];
        self.download(source, &mut bytes)?;
        self.upload(target, &bytes)?;
        match source.scale() {
            Some(_) => self.copy(&target.scale_as_bytes(), &source.scale_as_bytes()),
            None => Ok(()),
        }
    }

    fn memory(&self) -> Result<(u64, u64), OpError> {
        Ok((0, 0))
    }
}
