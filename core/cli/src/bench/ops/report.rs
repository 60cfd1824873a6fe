//! Figures of cases, as text and as JSON.

use std::fmt::Write;

use deepinfer_ops::OpError;
use deepinfer_runtime::OpenDevice;
use serde::Serialize;

use super::super::args::OpsArgs;
use super::super::report::{Machine, digits};
use super::case::{Bar, Bound, Case};
use super::measure::Timing;

/// What was measured, and how.
#[derive(Debug, Serialize)]
pub(super) struct Setting {
    backend: String,
    backend_version: String,
    device: String,
    arch: String,
    compute_units: u32,
    memory_bytes: u64,
    repeats: usize,
    rotated_mib: usize,
    scale: usize,
}

impl Setting {
    pub(super) fn of(args: &OpsArgs, device: &OpenDevice) -> Self {
        let (backend, info) = (device.loaded_backend(), device.info());
        Self {
            backend: backend.name().to_owned(),
            backend_version: backend.version().to_owned(),
            device: info.name.clone(),
            arch: info.arch.clone(),
            compute_units: info.compute_units,
            memory_bytes: info.memory_bytes,
            repeats: args.repeats,
            rotated_mib: args.rotate,
            scale: args.scale,
        }
    }

    /// Backend and device.
    pub(super) fn title(&self) -> String {
        format!("backend {} {}, {}", self.backend, self.backend_version, self.device)
    }

    pub(super) fn line(&self, machine: &Machine) -> String {
        let scale = if self.scale == 1 { String::new() } else { format!(", extents divided by {}", self.scale) };
        format!(
            "ops: {}, {machine}; medians of {} samples, {} MiB between two uses of a buffer{scale}",
            self.title(),
            self.repeats,
            self.rotated_mib
        )
    }
}

/// The rate of a copy, which nothing that moves memory exceeds by much.
#[derive(Debug, Serialize)]
pub(super) struct Ceiling {
    /// Bytes that are copied: as many are read, and written.
    bytes: usize,
    /// Bytes read and written in a second, in units of 1e9.
    pub(super) gb_per_s: f64,
    #[serde(flatten)]
    timing: Timing,
}

impl Ceiling {
    pub(super) fn of(bytes: usize, timing: Timing) -> Self {
        Self { bytes, gb_per_s: 2.0 * bytes as f64 / timing.median_us / 1e3, timing }
    }

    pub(super) fn line(&self) -> String {
        let mib = self.bytes as f64 / f64::from(1 << 20);
        format!("copy of {mib} MiB on the device: {} GB/s read and written", digits(self.gb_per_s))
    }
}

/// What came of a case.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    pub(super) name: String,
    pub(super) op: &'static str,
    pub(super) bytes: f64,
    pub(super) flops: f64,
    pub(super) bound: Bound,
    #[serde(flatten)]
    pub(super) measured: Option<Measured>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bar: Option<Bar>,
    /// Whether the bar is met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) met: Option<bool>,
    /// Why the backend does not take the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    declined: Option<String>,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<String>,
    /// Whether nothing can be measured after it.
    #[serde(skip)]
    pub(super) is_lost: bool,
}

/// Figures of a case.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    #[serde(flatten)]
    pub(super) timing: Timing,
    /// Sets of arguments in turn.
    sets: usize,
    /// Whether they are more than a cache holds.
    is_cold: bool,
    pub(super) gb_per_s: f64,
    pub(super) copy_share: f64,
    pub(super) tflops: f64,
}

impl Outcome {
    /// `rotated` is how many bytes were to lie between two uses of a buffer.
    pub(super) fn of(
        case: &Case,
        measured: Result<(usize, Timing), OpError>,
        ceiling: &Ceiling,
        rotated: usize,
    ) -> Self {
        let mut result = Self {
            name: case.name(),
            op: case.op,
            bytes: case.bytes,
            flops: case.flops,
            bound: case.bound,
            measured: None,
            bar: case.bar,
            met: None,
            declined: None,
            failed: None,
            is_lost: false,
        };
        match measured {
            Ok((sets, timing)) => {
                let gb_per_s = case.bytes / timing.median_us / 1e3;
                let tflops = case.flops / timing.median_us / 1e6;
                let is_cold = sets as f64 * case.bytes >= rotated as f64;
                let copy_share = gb_per_s / ceiling.gb_per_s;
                let measured = Measured { timing, sets, is_cold, gb_per_s, copy_share, tflops };
                result.met = case.bar.map(|bar| bar.is_met(&measured));
                result.measured = Some(measured);
            }
            Err(OpError::Unsupported { reason, .. }) => result.declined = Some(reason),
            Err(error) => {
                result.is_lost = matches!(error, OpError::DeviceLost(_) | OpError::Panicked { .. });
                result.failed = Some(error.to_string());
            }
        }
        result
    }
}

impl Bar {
    fn is_met(self, measured: &Measured) -> bool {
        match self {
            Bar::Microseconds(most) => measured.timing.median_us <= most,
            Bar::CopyShare(least) => measured.copy_share >= least,
            Bar::Teraflops(least) => measured.tflops >= least,
            Bar::Passes(most) => measured.copy_share >= most.recip(),
        }
    }

    /// The bar, and the figure that it is held against.
    fn text(self, measured: &Measured) -> String {
        match self {
            Bar::Microseconds(most) => format!("{most} us bar: {}", digits(measured.timing.median_us)),
            Bar::CopyShare(least) => format!("{} % bar: {:.1}", least * 100.0, measured.copy_share * 100.0),
            Bar::Teraflops(least) => format!("{least} TFLOP/s bar: {}", digits(measured.tflops)),
            Bar::Passes(most) => format!("{most} passes bar: {:.2}", measured.copy_share.recip()),
        }
    }
}

/// Columns of the table, whose widths must be known before the first figure is.
pub(super) struct Layout {
    name: usize,
}

impl Layout {
    pub(super) fn of(cases: &[Case]) -> Self {
        Self { name: cases.iter().map(|case| case.name().len()).max().unwrap_or(0) }
    }

    pub(super) fn head(&self) -> String {
        self.columns("case", ["median us", "10 %", "90 %", "GB/s", "of copy", "TFLOP/s"].map(str::to_owned), "")
    }

    fn columns(&self, name: &str, cells: [String; 6], end: &str) -> String {
        let mut line = format!("  {name:<width$}", width = self.name);
        for cell in cells {
            // Writing to a string cannot fail.
            let _ = write!(line, "  {cell:>9}");
        }
        let _ = write!(line, "  {end}");
        line.trim_end().to_owned()
    }

    pub(super) fn line(&self, result: &Outcome) -> String {
        let Some(measured) = &result.measured else {
            let (how, why) = match &result.failed {
                Some(why) => ("failed", why.as_str()),
                None => ("declined", result.declined.as_deref().unwrap_or_default()),
            };
            return format!("  {:<width$}  {how}: {why}", result.name, width = self.name);
        };
        let Measured { timing, gb_per_s, copy_share, tflops, .. } = measured;
        let tflops = if result.flops > 0.0 { digits(*tflops) } else { "-".to_owned() };
        let mark = if measured.is_cold { "" } else { "*" };
        let cells = [
            digits(timing.median_us) + mark,
            digits(timing.tenth_us),
            digits(timing.ninetieth_us),
            digits(*gb_per_s),
            format!("{:.1} %", copy_share * 100.0),
            tflops,
        ];
        let bar = result.bar.map_or_else(String::new, |bar| {
            let verdict = if result.met == Some(true) { "met" } else { "missed" };
            format!("{} {verdict}", bar.text(measured))
        });
        self.columns(&result.name, cells, &bar)
    }
}

/// All of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) bench: &'static str,
    pub(super) machine: Machine,
    #[serde(flatten)]
    pub(super) setting: Setting,
    pub(super) copy: Ceiling,
    pub(super) cases: Vec<Outcome>,
}

impl Report {
    /// One line about all cases.
    pub(super) fn summary(&self) -> String {
        let count = |of: &dyn Fn(&Outcome) -> bool| self.cases.iter().filter(|result| of(result)).count();
        let (met, with_bar) = (count(&|result| result.met == Some(true)), count(&|result| result.met.is_some()));
        let measured = count(&|result| result.measured.is_some());
        let mut line = format!("{measured} of {} cases measured, {met} of {with_bar} bars met", self.cases.len());
        let any = |of: &dyn Fn(&Measured) -> bool| self.cases.iter().filter_map(|r| r.measured.as_ref()).any(of);
        if any(&|measured| !measured.is_cold) {
            line.push_str("; * so small that all sets of its arguments fit into a cache");
        }
        if any(&|measured| !measured.timing.is_captured) {
            line.push_str(
                "; not every call could be captured, and of those that were not, small ones show the host's time",
            );
        }
        line
    }
}
