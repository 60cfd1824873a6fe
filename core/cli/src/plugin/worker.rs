//! The process in which one plugin is loaded and asked what it is. A plugin that aborts, hangs or exits takes this process
//! with it, and nothing else.

use deepinfer_runtime::{BackendDetails, BackendReport, BackendState, Candidate, Layers, SearchPath};
use serde::{Deserialize, Serialize};

use crate::args::PluginWorkerArgs;
use crate::failure::Failure;
use crate::process::Link;

/// What the worker says.
#[derive(Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) plugin_report: BackendReport,
}

/// Loads the plugin and sends an [`Answer`].
///
/// # Errors
/// Nobody listens.
pub(crate) fn run(args: &PluginWorkerArgs, link: &mut Link) -> Result<(), Failure> {
    link.end_with_the_other();
    let candidate = Candidate::of_path(&args.path);
    let mut report = BackendReport::of(&candidate, &args.options);
    if args.layers && matches!(report.state, BackendState::Loaded(_)) {
        report.state = under_layers(&candidate, &args.options)
            .map_or_else(|reason| BackendState::Refused { reason }, |details| BackendState::Loaded(Box::new(details)));
    }
    link.say(&Answer { plugin_report: report })
}

/// The backend with the layers of `DEEPINFER_LAYERS` over it.
fn under_layers(candidate: &Candidate, options: &str) -> Result<BackendDetails, String> {
    let backend = candidate.load(options).map_err(|e| e.to_string())?;
    let layers = Layers::from_env().map_err(|e| e.to_string())?;
    let wrapped = layers.wrap(backend, &SearchPath::from_environment()).map_err(|e| e.to_string())?;
    Ok(BackendDetails::of(wrapped))
}
