//! What a command that runs an engine tells of it besides results: a trace, figures in the log, dumps of the flight recorder.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use deepinfer_engine::Engine;
use deepinfer_engine::telemetry::{Recorder, STATS_TARGET, Spans, Telemetry, TelemetryConfig};
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::Signals;
use tracing_subscriber::filter::Directive;

use crate::failure::Failure;
use crate::numbers::whole;
use crate::output::Output;

/// Directory for dumps of the flight recorder.
const FLIGHT_VARIABLE: &str = "DEEPINFER_FLIGHT_RECORDER";
/// Longest time between two lines of figures.
const MOST_SECONDS: u64 = 86_400;

/// What is told of a run.
#[derive(Debug, Args)]
#[command(next_help_heading = "Telemetry")]
pub(crate) struct TelemetryArgs {
    /// Write a trace of the run to this file, replacing it; ui.perfetto.dev opens it
    ///
    /// It shows the phases of every step, every request and how full the cache is.
    #[arg(long, value_name = "FILE.json")]
    pub(crate) trace: Option<PathBuf>,

    /// Log throughput, queues and cache to standard error each time the engine has worked for so long; 0 logs once, at the end
    ///
    /// Without this option the line comes every 10 seconds and is shown with RUST_LOG=info.
    ///
    /// The last 256 steps are always remembered. They are written to a file in DEEPINFER_FLIGHT_RECORDER (a directory;
    /// the default is that of temporary files) when a step fails, and when the process gets the signal SIGUSR1.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = whole::<u64>(0..=MOST_SECONDS))]
    pub(crate) stats_interval: Option<u64>,
}

impl TelemetryArgs {
    /// What the log shows besides the usual.
    pub(crate) fn log_directive(&self) -> Option<Directive> {
        self.stats_interval.map(|_| format!("{STATS_TARGET}=info").parse().expect("a valid directive"))
    }

    /// Opens the trace, which must not be one of `others`, and from now on answers SIGUSR1.
    ///
    /// # Errors
    /// The trace cannot be written or would replace what else is used, or the variable names no directory.
    pub(crate) fn open<'a>(&self, others: impl IntoIterator<Item = Option<&'a PathBuf>>) -> Result<Telemeter, Failure> {
        let mut config = TelemetryConfig { dumps: dump_directory()?, ..TelemetryConfig::default() };
        if let Some(path) = &self.trace {
            let mut output = Output::create(path)?;
            if let Some(other) = others.into_iter().flatten().find(|other| output.is_file_at(other)) {
                return Err(same_file(path, other));
            }
            if output.is_stdout() || output.is_same_file(&Output::stdout()?) {
                return Err(Failure::Input(anyhow!(
                    "--trace goes where standard output goes, which is for results; give it a file of its own"
                )));
            }
            output.begin()?;
            config.trace = Some(Box::new(output.file()?) as Box<dyn Write + Send>);
        }
        if let Some(seconds) = self.stats_interval {
            config.stats_interval = (seconds > 0).then(|| Duration::from_secs(seconds));
        }
        let named = || self.trace.as_deref().unwrap_or(Path::new("")).display().to_string();
        let recorder = Recorder::new(config).map_err(|e| Failure::of_write(&named(), &e))?;
        dump_on_signal(recorder.telemetry())?;
        Ok(Telemeter { recorder })
    }
}

/// What listens to an engine that is still to be made. It can be sent to the engine's thread.
pub(crate) struct Telemeter {
    recorder: Recorder,
}

impl Telemeter {
    /// Listens to `engine` from now on.
    pub(crate) fn attach(self, engine: &mut Engine) {
        engine.add_observer(Box::new(self.recorder));
        if Spans::are_wanted() {
            engine.add_observer(Box::new(Spans::new()));
        }
    }
}

fn same_file(trace: &Path, other: &Path) -> Failure {
    Failure::Input(anyhow!(
        "--trace {} is the same file as {}, which would be lost; give the trace a file of its own",
        trace.display(),
        other.display()
    ))
}

/// Where dumps go: the directory in the variable, else that of temporary files.
fn dump_directory() -> Result<PathBuf, Failure> {
    let Some(named) = std::env::var_os(FLIGHT_VARIABLE).filter(|dir| !dir.is_empty()) else {
        return Ok(std::env::temp_dir());
    };
    let directory = PathBuf::from(named);
    if directory.is_dir() {
        return Ok(directory);
    }
    Err(Failure::Input(anyhow!(
        "the variable {FLIGHT_VARIABLE} is {directory:?}, but must name a directory that is there"
    )))
}

/// Writes a dump whenever the process gets SIGUSR1, also while the engine hangs: the handler only wakes a thread.
fn dump_on_signal(telemetry: Telemetry) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGUSR1]).context("cannot answer SIGUSR1").map_err(Failure::Fault)?;
    let answer = move || {
        for _ in signals.forever() {
            telemetry.dump_and_tell("SIGUSR1");
        }
    };
    let thread = std::thread::Builder::new().name("deepinfer-signals".to_owned()).spawn(answer);
    thread.context("the system gives no thread for signals").map_err(Failure::Fault)?;
    Ok(())
}
