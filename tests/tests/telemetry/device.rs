//! A device on which something happens at a draw.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender};

use deepinfer_ops::{Between, Device, Dispatch, Download, OpCall, OpError, Tensor};
use deepinfer_runtime::OpenDevice;
use deepinfer_tests::open_device;

/// What happens at a draw, by its number.
pub(crate) enum Mishap {
    /// These are refused.
    Refused(std::ops::Range<usize>),
    /// The program panics.
    Panic(usize),
    /// Its results do not come before somebody says so.
    Late(usize, Option<(Sender<()>, Receiver<()>)>),
}

pub(crate) struct Unlucky {
    inner: OpenDevice,
    mishap: Mishap,
    draws: Cell<usize>,
    /// The next results come late.
    late: Cell<Option<(Sender<()>, Receiver<()>)>>,
}

pub(crate) fn unlucky(mishap: Mishap) -> Rc<dyn Device> {
    let (mishap, late) = match mishap {
        Mishap::Late(at, signals) => (Mishap::Late(at, None), signals),
        other => (other, None),
    };
    Rc::new(Unlucky { inner: open_device(), mishap, draws: Cell::new(0), late: Cell::new(late) })
}

impl Between for Unlucky {
    fn inner(&self) -> &dyn Device {
        &self.inner
    }

    fn on_dispatch(&self, call: &dyn OpCall) -> Result<(), OpError> {
        if call.info().name == "fused_sample" {
            let draw = self.draws.replace(self.draws.get() + 1);
            match &self.mishap {
                Mishap::Refused(draws) if draws.contains(&draw) => {
                    let (origin, message) = ("unlucky/fused_sample".to_owned(), "not today".to_owned());
                    return Err(OpError::Backend { origin, message });
                }
                Mishap::Panic(at) if *at == draw => panic!("this is what the test is about"),
                _ => {}
            }
        }
        self.inner.dispatch(call)
    }

    fn on_download_later(&self, tensor: &Tensor) -> Result<Box<dyn Download>, OpError> {
        let download = self.inner.download_later(tensor)?;
        match &self.mishap {
            Mishap::Late(at, _) if self.draws.get() == at + 1 => match self.late.take() {
                Some((waiting, go_on)) => Ok(Box::new(Late { download, waiting, go_on })),
                None => Ok(download),
            },
            _ => Ok(download),
        }
    }
}

struct Late {
    download: Box<dyn Download>,
    waiting: Sender<()>,
    go_on: Receiver<()>,
}

impl Download for Late {
    fn is_done(&mut self) -> Result<bool, OpError> {
        Ok(false)
    }

    fn wait(&mut self) -> Result<&[u8], OpError> {
        self.waiting.send(()).expect("somebody waits for this");
        self.go_on.recv().expect("somebody ends the wait");
        self.download.wait()
    }
}
