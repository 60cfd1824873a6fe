//! The process in which one plugin is loaded and asked what it is. A plugin that aborts, hangs or exits takes this process
//! with it, and nothing else.
//!
//! It ends when its standard input does, so that it does not outlive the program that started it.

use std::io::{Read, Write, stdin, stdout};

use deepinfer_runtime::{BackendDetails, BackendReport, BackendState, Candidate, Layers, SearchPath};
use serde::{Deserialize, Serialize};

use crate::args::PluginWorkerArgs;
use crate::failure::Failure;

/// What the worker says, on a line of its own.
#[derive(Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) plugin_report: BackendReport,
}

/// Loads the plugin and writes an [`Answer`] to standard output.
///
/// # Errors
/// Nobody listens.
pub(crate) fn run(args: &PluginWorkerArgs) -> Result<(), Failure> {
    std::thread::spawn(|| {
        // Nothing comes: this returns when the program that asks is gone.
        let _ = stdin().lock().read(&mut [0]);
        std::process::exit(1);
    });
    let candidate = Candidate::of_path(&args.path);
    let mut report = BackendReport::of(&candidate, &args.options);
    if args.layers && matches!(report.state, BackendState::Loaded(_)) {
        report.state = under_layers(&candidate, &args.options)
            .map_or_else(|reason| BackendState::Refused { reason }, |details| BackendState::Loaded(Box::new(details)));
    }
    // The line feed in front ends whatever the plugin has printed.
    let answer = serde_json::to_string(&Answer { plugin_report: report }).map_err(Failure::fault)?;
    let mut out = stdout().lock();
    let written = out.write_all(format!("\n{answer}\n").as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| Failure::of_write("the report on a plugin", &e))
}

/// The backend with the layers of `DEEPINFER_LAYERS` over it.
fn under_layers(candidate: &Candidate, options: &str) -> Result<BackendDetails, String> {
    let backend = candidate.load(options).map_err(|e| e.to_string())?;
    let layers = Layers::from_env().map_err(|e| e.to_string())?;
    let wrapped = layers.wrap(backend, &SearchPath::from_environment()).map_err(|e| e.to_string())?;
    Ok(BackendDetails::of(wrapped))
}
