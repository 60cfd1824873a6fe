//! The command as a user runs it: arguments, files and pipes in; text, exit codes and sentences out.
//!
//! Commands that compute need the plugin of the processor beside the binary. `cargo test --workspace` builds it; alone:
//! `cargo build -p deepinfer-cpu-reference`.

mod accelerators;
mod ascend;
mod batches;
mod bench;
mod broken_models;
#[cfg(feature = "chat")]
mod chat;
mod checkpoint;
mod command;
mod containment;
mod hidden_faults;
mod liar;
mod lines;
mod models;
mod nvidia;
mod parity;
mod plugins;
mod replay;
mod reports;
mod scaffold;
mod settings;
mod telemetry;
mod usage;
mod verify;
