//! A device with somebody listening, who may also break it.

use std::cell::RefCell;
use std::rc::Rc;

use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::{Model, Numerics};
use deepinfer_ops::{Between, Device, Dispatch, Download, OpCall, OpError, Tensor};
use deepinfer_runtime::OpenDevice;
use deepinfer_tests::{miniature, open_device};

/// Who listens. What is refused here does not reach the device.
pub(crate) trait Tap {
    /// An op is about to be queued.
    fn op(&mut self, _device: &OpenDevice, _call: &dyn OpCall) -> Result<(), OpError> {
        Ok(())
    }

    /// A copy on the device is about to be queued.
    fn copy(&mut self) -> Result<(), OpError> {
        Ok(())
    }

    /// A copy to the host has been queued; an error is what waiting for it gives.
    fn download(&mut self) -> Result<(), OpError> {
        Ok(())
    }
}

/// The device of the tests, with a tap.
pub(crate) struct Tapped<T> {
    inner: OpenDevice,
    tap: Rc<RefCell<T>>,
}

/// The miniature on a device with `tap`.
pub(crate) fn model<T: Tap + 'static>(tap: &Rc<RefCell<T>>) -> Model {
    let device = Rc::new(Tapped { inner: open_device(), tap: tap.clone() });
    let checkpoint = Checkpoint::open(&miniature()).expect("the miniature");
    Model::load(device, &checkpoint, Numerics::DEPLOY, &mut |_, _| {}).expect("the miniature loads").0
}

impl<T: Tap> Between for Tapped<T> {
    fn inner(&self) -> &dyn Device {
        &self.inner
    }

    fn on_dispatch(&self, call: &dyn OpCall) -> Result<(), OpError> {
        self.tap.borrow_mut().op(&self.inner, call)?;
        self.inner.dispatch(call)
    }

    fn on_download_later(&self, tensor: &Tensor) -> Result<Box<dyn Download>, OpError> {
        let download = self.inner.download_later(tensor)?;
        match self.tap.borrow_mut().download() {
            Ok(()) => Ok(download),
            Err(error) => Ok(Box::new(Lost(error))),
        }
    }

    fn on_copy(&self, target: &Tensor, source: &Tensor) -> Result<(), OpError> {
        self.tap.borrow_mut().copy()?;
        self.inner.copy(target, source)
    }
}

/// A download that does not arrive.
struct Lost(OpError);

impl Download for Lost {
    fn is_done(&mut self) -> Result<bool, OpError> {
        Err(self.0.clone())
    }

    fn wait(&mut self) -> Result<&[u8], OpError> {
        Err(self.0.clone())
    }
}
