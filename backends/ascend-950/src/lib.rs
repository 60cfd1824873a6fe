//! Huawei Ascend NPUs, with the Ascend 950 as the aim.
//!
//! This version finds the runtime of CANN and its devices and has no kernels: every op of the catalogue is missing, and a
//! device cannot be opened. CANN is looked for when it is asked about, so that the plugin builds and loads on machines
//! without it.

#![deny(unsafe_code)]

mod acl;

deepinfer_plugin_api::export_backend!(deepinfer_plugin_api::sdk::ProbeOnly<acl::Ascend>);
