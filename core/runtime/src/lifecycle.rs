//! Whether a backend still runs: it may be shut down once, when none of its devices is open.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use deepinfer_plugin_api::abi::DI_E_INVALID;

use crate::backend::PluginError;

/// State of a backend, shared by all stacks of layers over it.
#[derive(Default)]
pub(crate) struct Lifecycle(Mutex<State>);

#[derive(Default)]
struct State {
    open_devices: usize,
    has_ended: bool,
}

/// An open device. While one exists, its backend is not shut down.
pub(crate) struct Lease(Arc<Lifecycle>);

impl Lifecycle {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    /// The backend was shut down.
    pub(crate) fn check(&self) -> Result<(), PluginError> {
        if self.state().has_ended { Err(fault("the backend was shut down".to_owned())) } else { Ok(()) }
    }

    /// Holds the backend open for a device; taken before the device is opened, given back after it is closed.
    ///
    /// # Errors
    /// As [`Lifecycle::check`].
    pub(crate) fn lease(self: &Arc<Self>) -> Result<Lease, PluginError> {
        let mut state = self.state();
        if state.has_ended {
            return Err(fault("the backend was shut down".to_owned()));
        }
        state.open_devices += 1;
        Ok(Lease(Arc::clone(self)))
    }

    /// Marks the end; `false` if it has ended before.
    ///
    /// # Errors
    /// A device is open.
    pub(crate) fn end(&self) -> Result<bool, PluginError> {
        let mut state = self.state();
        match state.open_devices {
            0 => Ok(!std::mem::replace(&mut state.has_ended, true)),
            1 => Err(fault("a device is still open".to_owned())),
            open => Err(fault(format!("{open} devices are still open"))),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.state().open_devices -= 1;
    }
}

fn fault(message: String) -> PluginError {
    PluginError { code: DI_E_INVALID, flags: 0, vendor_code: 0, message, origin: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_ends_once_and_only_without_open_devices() {
        let life = Arc::new(Lifecycle::default());
        let devices = [life.lease().unwrap(), life.lease().unwrap()];
        assert_eq!(life.end().unwrap_err().message, "2 devices are still open");
        let [first, second] = devices;
        drop(first);
        assert_eq!(life.end().unwrap_err().message, "a device is still open");
        drop(second);
        assert!(life.check().is_ok() && life.end().unwrap());
        assert!(!life.end().unwrap(), "a second time is no error, and nothing to do");
        assert!(life.check().is_err() && life.lease().is_err());
    }
}
