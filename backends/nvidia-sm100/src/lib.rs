//! NVIDIA GPUs, with the Blackwell data-centre generation (`sm_100`) as the aim.
//!
//! This version finds the driver and its devices and has no kernels: every op of the catalogue is missing, and a device
//! cannot be opened. The driver is looked for when it is asked about, so that the plugin builds and loads on machines
//! without CUDA.

#![deny(unsafe_code)]

mod driver;

deepinfer_plugin_api::export_backend!(deepinfer_plugin_api::sdk::ProbeOnly<driver::Nvidia>);
