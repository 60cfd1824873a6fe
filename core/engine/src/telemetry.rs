#![doc = include_str!("../TELEMETRY.md")]

mod dump;
mod flight;
mod lifecycle;
mod metrics;
pub(crate) mod observer;
mod recorder;
mod spans;
mod stats_line;
mod trace;

pub use dump::DumpError;
pub use metrics::{Histogram, Metric, MetricValue, Metrics};
pub use observer::{Observation, StepObserver, StepPhase};
pub use recorder::{Recorder, Telemetry, TelemetryConfig};
pub use spans::Spans;
pub use stats_line::STATS_TARGET;
