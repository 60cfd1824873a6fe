//! A device that does one thing wrong.

use std::rc::Rc;

use deepinfer_ops::{Between, Device, OpCall, OpError, Tensor};

/// What is done wrong. Both methods do it right unless a bug says otherwise.
pub(crate) trait Bug {
    /// Runs an op.
    fn run(&self, device: &dyn Device, call: &dyn OpCall) -> Result<(), OpError> {
        device.dispatch(call)
    }

    /// Copies a tensor.
    fn copy(&self, device: &dyn Device, target: &Tensor, source: &Tensor) -> Result<(), OpError> {
        device.copy(target, source)
    }
}

/// A device with a bug.
pub(crate) struct Mutant<B> {
    pub(crate) inner: Rc<dyn Device>,
    pub(crate) bug: B,
}

impl<B: Bug> Between for Mutant<B> {
    fn inner(&self) -> &dyn Device {
        self.inner.as_ref()
    }

    fn on_dispatch(&self, call: &dyn OpCall) -> Result<(), OpError> {
        self.bug.run(self.inner.as_ref(), call)
    }

    fn on_copy(&self, target: &Tensor, source: &Tensor) -> Result<(), OpError> {
        self.bug.copy(self.inner.as_ref(), target, source)
    }
}

/// A tensor argument that is there.
pub(crate) fn argument(call: &dyn OpCall, name: &str) -> Option<Tensor> {
    let mut found = None;
    call.tensors(&mut |arg, tensor| {
        if arg == name {
            found = Some(tensor.clone());
        }
    });
    found
}

/// The bytes of a tensor, without its scales.
pub(crate) fn bytes(device: &dyn Device, tensor: &Tensor) -> Result<Vec<u8>, OpError> {
    let mut bytes = vec![0; tensor.bytes()];
    device.download(tensor, &mut bytes)?;
    Ok(bytes)
}

/// The numbers of a tensor of I32.
pub(crate) fn ints(device: &dyn Device, tensor: &Tensor) -> Result<Vec<i32>, OpError> {
    Ok(bytes(device, tensor)?.as_chunks().0.iter().map(|&b| i32::from_le_bytes(b)).collect())
}

/// The numbers of a tensor of F32.
pub(crate) fn floats(device: &dyn Device, tensor: &Tensor) -> Result<Vec<f32>, OpError> {
    Ok(bytes(device, tensor)?.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect())
}

/// The numbers of a tensor of BF16.
pub(crate) fn halves(device: &dyn Device, tensor: &Tensor) -> Result<Vec<f32>, OpError> {
    Ok(bytes(device, tensor)?.as_chunks().0.iter().map(|&[a, b]| f32::from_le_bytes([0, 0, a, b])).collect())
}

/// Runs `call` while `tensor`, an input of it, holds `numbers`.
pub(crate) fn run_with(
    device: &dyn Device,
    call: &dyn OpCall,
    tensor: &Tensor,
    numbers: &[i32],
) -> Result<(), OpError> {
    let own = bytes(device, tensor)?;
    let others: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    device.upload(tensor, &others)?;
    device.dispatch(call)?;
    device.upload(tensor, &own)
}
