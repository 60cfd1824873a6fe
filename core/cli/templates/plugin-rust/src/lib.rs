//! {{name}}: a DeepInfer backend.

mod device;
mod ops;

deepinfer_plugin_api::export_backend!(device::{{pascal}}Backend);
