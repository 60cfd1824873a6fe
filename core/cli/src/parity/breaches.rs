//! What layers over a backend report: events of the log, kept for the case at hand. A call goes on after a breach, so that
//! its case comes to the conclusion to which it comes without layers.

use std::fmt::Debug;
use std::sync::{Mutex, OnceLock, PoisonError};

use deepinfer_parity::{Failure, Fault, Outcome};
use deepinfer_runtime::Layers;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::terminal;

/// Name of the validation layer.
const VALIDATE: &str = "validate";
/// Target of what plugins log.
const TARGET: &str = "deepinfer::plugin";

/// Layers of this process whose errors are kept and not printed.
static WATCHED: OnceLock<Vec<String>> = OnceLock::new();
/// Lines that are kept for one case; the first of a layer is what counts.
const MOST_REPORTED: usize = 1000;
/// Name of the plugin and its line.
static REPORTED: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// Keeps the errors that plugins log.
pub(crate) struct Breaches;

impl<S: Subscriber> Layer<S> for Breaches {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() != Level::ERROR || event.metadata().target() != TARGET {
            return;
        }
        let mut line = Line::default();
        event.record(&mut line);
        if WATCHED.get().is_some_and(|layers| !layers.contains(&line.plugin)) {
            // Its line was held back with those of the layers.
            terminal::error(&format_args!("{}: {}", line.plugin, line.message));
        }
        let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() < MOST_REPORTED {
            reported.push((line.plugin, line.message));
        }
    }
}

/// The layers as cases want them: the validation layer tells what it finds and lets the call go on, and keeps no bundles,
/// which is the affair of the cases; unless it is told otherwise.
pub(crate) fn that_go_on(layers: Layers) -> Layers {
    layers.with_default(VALIDATE, "on", "log").with_default(VALIDATE, "bundles", "none")
}

/// From here on, errors of these layers belong to cases and are not printed as they come.
pub(crate) fn watch(layers: Vec<String>) {
    if !layers.is_empty() {
        // Once in a process.
        let _ = WATCHED.set(layers);
    }
}

/// Whether an event may be one that [`watch`] keeps from being printed.
pub(crate) fn holds_back(event: &Metadata<'_>) -> bool {
    WATCHED.get().is_some() && *event.level() == Level::ERROR && event.target() == TARGET
}

/// The outcome of a case during which a layer has reported something. What the case concludes stands; a wrong value is what
/// the layer calls it, if that says more.
pub(crate) fn join(outcome: Outcome, layer: &str, breach: String) -> Outcome {
    let fault = kind(layer, &breach).unwrap_or(Fault::Layer);
    match outcome {
        Outcome::Failed(failure) if failure.fault.is_some() => Outcome::Failed(failure),
        Outcome::Failed(failure) if matches!(fault, Fault::Layer | Fault::WrongResult) => Outcome::Failed(failure),
        Outcome::Failed(failure) => Outcome::Failed(Failure { problem: breach, ..failure }.of(fault)),
        _ => Outcome::Failed(Failure::new(breach).of(fault)),
    }
}

/// Takes what these plugins have reported since the last time; what others have is forgotten.
pub(crate) fn take(plugins: &[String]) -> Vec<(String, String)> {
    let mut reported = std::mem::take(&mut *REPORTED.lock().unwrap_or_else(PoisonError::into_inner));
    reported.retain(|(plugin, _)| plugins.contains(plugin));
    reported
}

/// The kind of fault in a sentence that a layer has written: `LAYER (KIND): ..`, perhaps within another sentence.
pub(crate) fn kind(layer: &str, sentence: &str) -> Option<Fault> {
    let (_, rest) = sentence.split_once(&format!("{layer} ("))?;
    rest.split_once("): ").map(|(kind, _)| Fault::of_layer(kind))
}

#[derive(Default)]
struct Line {
    plugin: String,
    message: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "plugin" {
            value.clone_into(&mut self.plugin);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.message = text,
            "plugin" if self.plugin.is_empty() => self.plugin = text.trim_matches('"').to_owned(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn a_layer_names_the_kind() {
        let sentence = "a valid call was refused: validate/x: validate (out-of-bounds): the backend broke a rule in x";
        assert_eq!(kind("validate", sentence), Some(Fault::OutOfBounds));
        assert_eq!(kind("validate", "validate (leak): two buffers"), Some(Fault::Layer));
        assert_eq!(kind("validate", "validate (value): out[3] is 1"), Some(Fault::WrongResult));
        assert_eq!(kind("other", sentence), None);
        assert_eq!(kind("validate", "validate is unusable (code 3)"), None);
    }

    #[test]
    fn what_a_case_concludes_stands() {
        let failed = |fault: Option<Fault>| Outcome::Failed(Failure { fault, ..Failure::new("own") });
        let joined = |outcome: Outcome, kind: &str| {
            let Outcome::Failed(failure) = join(outcome, "validate", format!("validate ({kind}): found")) else {
                panic!("it passes")
            };
            (failure.fault, failure.problem)
        };
        let passed = || Outcome::Passed { share: None };
        let (own, found) = ("own".to_owned(), |kind: &str| format!("validate ({kind}): found"));
        assert_eq!(joined(passed(), "leak"), (Some(Fault::Layer), found("leak")));
        assert_eq!(joined(passed(), "out-of-bounds"), (Some(Fault::OutOfBounds), found("out-of-bounds")));
        assert_eq!(joined(failed(Some(Fault::BatchDependent)), "value"), (Some(Fault::BatchDependent), own.clone()));
        assert_eq!(joined(failed(None), "value"), (None, own));
        let stale = "stale-workspace";
        assert_eq!(joined(failed(None), stale), (Some(Fault::StaleWorkspace), found(stale)));
    }

    #[test]
    fn errors_of_the_plugins_that_are_asked_for() {
        let subscriber = tracing_subscriber::registry().with(Breaches);
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!(target: "deepinfer::plugin", plugin = "watcher", "{}", "two bytes behind out");
            tracing::error!(target: "deepinfer::plugin", plugin = "npu", "not a breach");
            tracing::warn!(target: "deepinfer::plugin", plugin = "watcher", "only a warning");
            tracing::error!(plugin = "watcher", "not of a plugin");
        });
        let line = ("watcher".to_owned(), "two bytes behind out".to_owned());
        assert_eq!(take(&["watcher".to_owned()]), [line]);
        assert!(take(&["npu".to_owned()]).is_empty(), "what was reported is taken once");
    }
}
