//! What the engine tells about its work, and what telemetry makes of it, against runs of the miniature.

#![forbid(unsafe_code)]

mod device;
mod flight;
mod metrics;
mod observations;
mod runs;
mod spans;
mod trace;
