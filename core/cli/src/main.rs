//! The `deepinfer` command: text generation, and reports on models and on backends.
//!
//! Results go to standard output; what is told about them (errors, warnings, progress, figures of a run) goes to standard
//! error. The exit code is 0 when the command did its work, 2 when its input was refused (arguments, files, model or
//! accelerator), and 1 when a fault ended it. When the reader of its output goes away, it ends quietly with 0.

#![forbid(unsafe_code)]

mod args;
mod backends;
mod batch;
mod bench;
#[cfg(feature = "chat")]
mod chat;
mod doctor;
mod embedded;
mod failure;
mod generate;
mod inspect;
mod model;
mod numbers;
mod output;
mod parity;
mod plugin;
mod process;
mod prompts;
mod replay;
mod settings;
mod telemetry;
mod terminal;
mod verify;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use deepinfer_runtime::process as own_process;
use tracing_subscriber::filter::{Directive, FilterExt, LevelFilter, dynamic_filter_fn};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::args::{Arguments, Command};
use crate::failure::Failure;
use crate::telemetry::TelemetryArgs;

/// Time for all backends to shut down.
const SHUTDOWN: Duration = Duration::from_secs(10);
/// Exit code that Rust gives a program whose main thread has panicked.
const PANICKED: u8 = 101;

fn main() -> ExitCode {
    let started = Instant::now();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // Help and the version are results, too.
        Err(help) if !help.use_stderr() => {
            return ended(help.print().map_err(|e| Failure::of_write("standard output", &e))).into();
        }
        // Usage errors end the process here, with a sentence and exit code 2.
        Err(usage) => usage.exit(),
    };
    let shown = arguments.command.telemetry().and_then(TelemetryArgs::log_directive);
    log_to_stderr(shown, matches!(arguments.command, Command::ParityWorker));
    own_process::expect_children();
    match &arguments.command {
        Command::ParityWorker => return ended(process::work(parity::worker::run)).into(),
        Command::PluginWorker(args) => return ended(process::work(|link| plugin::worker::run(args, link))).into(),
        Command::VerifyWorker(args) => return ended(process::work(|link| verify::worker::run(args, link))).into(),
        _ => {}
    }
    own_process::own_exit_code();
    let _panic = CodeOfPanic;
    let code = ended(match &arguments.command {
        Command::Generate(args) => generate::run(args, started),
        #[cfg(feature = "chat")]
        Command::Chat(args) => chat::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Backends(args) => backends::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Parity(args) => parity::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Plugin(command) => plugin::run(command),
        Command::Verify(args) => verify::run(args),
        Command::Bench(command) => bench::run(command),
        Command::ParityWorker | Command::PluginWorker(_) | Command::VerifyWorker(_) => {
            unreachable!("workers have ended above")
        }
    });
    // Before plugins get the word once more.
    own_process::set_exit_code(code);
    end_backends();
    code.into()
}

/// Leaves a panic its own exit code.
struct CodeOfPanic;

impl Drop for CodeOfPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            own_process::set_exit_code(PANICKED);
        }
    }
}

/// Lets the backends of this process end their threads. One that does not come to an end must not keep the program, whose
/// work is done.
pub(crate) fn end_backends() {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        deepinfer_runtime::shutdown_all();
        // Nobody waits any more when it took too long.
        let _ = done.send(());
    });
    if wait.recv_timeout(SHUTDOWN).is_err() {
        terminal::warning(&format_args!("a backend did not shut down within {} s", SHUTDOWN.as_secs()));
    }
}

/// The exit code of a command, whose failure is told.
fn ended(result: Result<(), Failure>) -> u8 {
    match result {
        Ok(()) => 0,
        Err(failure) => failure.report(),
    }
}

/// Sends log events to standard error: warnings and errors, or what `RUST_LOG` asks for, and what the arguments ask for; and
/// spans when they end. Errors of plugins are kept, too, where cases are run that take them.
fn log_to_stderr(shown: Option<Directive>, keeps_breaches: bool) {
    let mut filter = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into()).from_env_lossy();
    if let Some(shown) = shown {
        filter = filter.add_directive(shown);
    }
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_span_events(FmtSpan::CLOSE)
        // A closed standard error is no reason to stop.
        .log_internal_errors(false)
        .with_filter(filter.and(dynamic_filter_fn(|event, _| !parity::breaches::holds_back(event))));
    let breaches = keeps_breaches.then(|| parity::breaches::Breaches.with_filter(LevelFilter::ERROR));
    tracing_subscriber::registry().with(lines).with(breaches).init();
}
