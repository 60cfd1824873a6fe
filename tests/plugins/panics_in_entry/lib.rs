//! A backend that panics while it starts; with any option, when it is asked for its devices.

#![allow(unsafe_code, reason = "the trait has functions that are unsafe to call; no device exists to call them with")]

use std::convert::Infallible;
use std::ffi::c_void;

use deepinfer_plugin_api::sdk::{Backend, DeviceInfo, Fault};

/// The backend.
#[derive(Debug)]
pub struct Panics;

impl Backend for Panics {
    const NAME: &'static str = "panics";
    const VERSION: &'static str = "1.0.0";
    type Device = Infallible;
    type Buffer = Infallible;
    type Stream = Infallible;
    type Event = Infallible;

    fn start(options: &str) -> Result<Self, Fault> {
        assert!(!options.is_empty(), "a bug of the entry");
        Ok(Self)
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, Fault> {
        panic!("a bug of the search for devices")
    }

    fn open_device(&self, _: u32) -> Result<Infallible, Fault> {
        Err(Fault::unsupported("there is no device"))
    }

    fn memory(&self, device: &Infallible, _: u32) -> Result<(u64, u64), Fault> {
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

deepinfer_plugin_api::export_backend!(Panics);
