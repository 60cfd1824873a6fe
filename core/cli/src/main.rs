//! The `deepinfer` command: text generation, and reports on models and on backends.
//!
//! Results go to standard output; what is told about them (errors, warnings, progress, figures of a run) goes to standard
//! error. The exit code is 0 when the command did its work, 2 when its input was refused (arguments, files, model or
//! accelerator), and 1 when a fault ended it. When the reader of its output goes away, it ends quietly with 0.

#![forbid(unsafe_code)]

mod args;
mod backends;
mod batch;
mod embedded;
mod failure;
mod generate;
mod inspect;
mod model;
mod output;
mod terminal;

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::args::{Arguments, Command};

fn main() -> ExitCode {
    let started = Instant::now();
    // Usage errors end the process here, with a sentence and exit code 2.
    let arguments = Arguments::parse();
    log_to_stderr();
    let result = match &arguments.command {
        Command::Generate(args) => generate::run(args, started),
        Command::Inspect(args) => inspect::run(args),
        Command::Backends(args) => backends::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Sends log events to standard error: warnings and errors, or what `RUST_LOG` asks for.
fn log_to_stderr() {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into()).from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        // A closed standard error is no reason to stop.
        .log_internal_errors(false)
        .init();
}
