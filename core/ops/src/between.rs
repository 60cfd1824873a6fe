//! Devices that stand between a model and another device, to watch or to change what passes.

use crate::call::OpCall;
use crate::device::{Device, Dispatch, Download};
use crate::error::OpError;
use crate::recorded::Recorded;
use crate::scope::Scope;
use crate::tensor::{Allocation, Tensor};

/// A device that hands on what it does not change: whoever implements this is a [`Device`]. Each method does what the device
/// below does; errors are those of the methods of [`Device`] and [`Dispatch`] that they are named after.
#[allow(clippy::missing_errors_doc)]
pub trait Between {
    /// The device below.
    fn inner(&self) -> &dyn Device;

    /// [`Dispatch::dispatch`].
    fn on_dispatch(&self, call: &dyn OpCall) -> Result<(), OpError> {
        self.inner().dispatch(call)
    }

    /// [`Device::allocate`].
    fn on_allocate(&self, bytes: usize) -> Result<Allocation, OpError> {
        self.inner().allocate(bytes)
    }

    /// [`Device::download_later`].
    fn on_download_later(&self, tensor: &Tensor) -> Result<Box<dyn Download>, OpError> {
        self.inner().download_later(tensor)
    }

    /// [`Device::copy`].
    fn on_copy(&self, target: &Tensor, source: &Tensor) -> Result<(), OpError> {
        self.inner().copy(target, source)
    }

    /// [`Device::scope`].
    fn on_scope(&self, scope: Scope) {
        self.inner().scope(scope);
    }

    /// Whether work may be recorded: an op passes here once then, however often it runs. By default it may not, so that
    /// whoever stands between sees everything.
    fn lets_record(&self) -> bool {
        false
    }
}

impl<T: Between> Dispatch for T {
    fn dispatch(&self, call: &dyn OpCall) -> Result<(), OpError> {
        self.on_dispatch(call)
    }
}

impl<T: Between> Device for T {
    fn backend(&self) -> &str {
        self.inner().backend()
    }

    fn allocate(&self, bytes: usize) -> Result<Allocation, OpError> {
        self.on_allocate(bytes)
    }

    fn allocate_host(&self, bytes: usize) -> Result<Option<Allocation>, OpError> {
        self.inner().allocate_host(bytes)
    }

    fn host_memory(&self) -> Result<Option<u64>, OpError> {
        self.inner().host_memory()
    }

    fn upload(&self, tensor: &Tensor, bytes: &[u8]) -> Result<(), OpError> {
        self.inner().upload(tensor, bytes)
    }

    fn download(&self, tensor: &Tensor, bytes: &mut [u8]) -> Result<(), OpError> {
        self.inner().download(tensor, bytes)
    }

    fn upload_staged_with(&self, tensor: &Tensor, len: usize, write: &mut dyn FnMut(&mut [u8])) -> Result<(), OpError> {
        self.inner().upload_staged_with(tensor, len, write)
    }

    fn download_later(&self, tensor: &Tensor) -> Result<Box<dyn Download>, OpError> {
        self.on_download_later(tensor)
    }

    fn fill(&self, tensor: &Tensor, byte: u8) -> Result<(), OpError> {
        self.inner().fill(tensor, byte)
    }

    fn copy(&self, target: &Tensor, source: &Tensor) -> Result<(), OpError> {
        self.on_copy(target, source)
    }

    fn memory(&self) -> Result<(u64, u64), OpError> {
        self.inner().memory()
    }

    fn captures(&self) -> bool {
        self.lets_record() && self.inner().captures()
    }

    fn record_work(&self, work: &mut dyn FnMut() -> Result<(), OpError>) -> Result<Option<Recorded>, OpError> {
        if self.lets_record() { self.inner().record_work(work) } else { Ok(None) }
    }

    fn launch_recorded(&self, recorded: &Recorded) -> Result<(), OpError> {
        self.inner().launch_recorded(recorded)
    }

    fn scope(&self, scope: Scope) {
        self.on_scope(scope);
    }
}
