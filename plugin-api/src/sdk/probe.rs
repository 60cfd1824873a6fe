//! A backend that finds its devices but has no kernels for them yet.

#![allow(unsafe_code)]

use std::convert::Infallible;
use std::ffi::c_void;
use std::marker::PhantomData;

use crate::sdk::{Backend, DeviceInfo, Fault};

/// Looks for devices. With [`ProbeOnly`] this is the first step of a new backend: it builds without the vendor's toolkit,
/// loads everywhere, and says what it sees.
pub trait Probe: Send + Sync + 'static {
    /// Name by which users select the backend.
    const NAME: &'static str;
    /// Version of the plugin.
    const VERSION: &'static str;

    /// Lists devices; creates no context.
    ///
    /// # Errors
    /// Says why there is none.
    fn devices() -> Result<Vec<DeviceInfo>, Fault>;
}

/// The backend of a [`Probe`]. Its devices cannot be opened, so that everything that an open device makes is a type
/// without values, and the functions that would take one cannot be reached.
pub struct ProbeOnly<P>(PhantomData<P>);

impl<P: Probe> Backend for ProbeOnly<P> {
    const NAME: &'static str = P::NAME;
    const VERSION: &'static str = P::VERSION;
    type Device = Infallible;
    type Buffer = Infallible;
    type Stream = Infallible;
    type Event = Infallible;

    fn start(options: &str) -> Result<Self, Fault> {
        if options.is_empty() {
            return Ok(Self(PhantomData));
        }
        Err(Fault::invalid(format!("{} takes no options, but was given {options:?}", P::NAME)))
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, Fault> {
        P::devices()
    }

    fn open_device(&self, _index: u32) -> Result<Infallible, Fault> {
        Err(Fault::unsupported(format!("{} {} finds devices but has no kernels for them yet", P::NAME, P::VERSION)))
    }

    fn memory(&self, device: &Infallible, _space: u32) -> Result<(u64, u64), Fault> {
        match *device {}
    }

    fn alloc(&self, device: &Infallible, _: u32, _: u64, _: u64) -> Result<(Infallible, *mut c_void), Fault> {
        match *device {}
    }

    fn create_stream(&self, device: &Infallible) -> Result<Infallible, Fault> {
        match *device {}
    }

    fn sync_stream(&self, stream: &Infallible) -> Result<(), Fault> {
        match *stream {}
    }

    fn create_event(&self, device: &Infallible) -> Result<Infallible, Fault> {
        match *device {}
    }

    fn record_event(&self, event: &Infallible, _: &Infallible) -> Result<(), Fault> {
        match *event {}
    }

    fn wait_event(&self, stream: &Infallible, _: &Infallible) -> Result<(), Fault> {
        match *stream {}
    }

    fn query_event(&self, event: &Infallible) -> Result<bool, Fault> {
        match *event {}
    }

    fn sync_event(&self, event: &Infallible) -> Result<(), Fault> {
        match *event {}
    }

    unsafe fn copy(&self, s: &Infallible, _: *mut c_void, _: *const c_void, _: u64, _: u32) -> Result<(), Fault> {
        match *s {}
    }

    unsafe fn fill(&self, s: &Infallible, _: *mut c_void, _: u32, _: u32, _: u64) -> Result<(), Fault> {
        match *s {}
    }
}
