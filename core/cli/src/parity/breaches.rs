//! What layers over a backend report where no call can fail for it: events of the log, kept for the case at hand.

use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use deepinfer_parity::Fault;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Name of the plugin and its line.
static REPORTED: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// Keeps the errors that plugins log.
pub(crate) struct Breaches;

impl<S: Subscriber> Layer<S> for Breaches {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() != Level::ERROR || event.metadata().target() != "deepinfer::plugin" {
            return;
        }
        let mut line = Line::default();
        event.record(&mut line);
        REPORTED.lock().unwrap_or_else(PoisonError::into_inner).push((line.plugin, line.message));
    }
}

/// Takes what these plugins have reported since the last time; what others have is forgotten.
pub(crate) fn take(plugins: &[String]) -> Vec<String> {
    let reported = std::mem::take(&mut *REPORTED.lock().unwrap_or_else(PoisonError::into_inner));
    reported.into_iter().filter(|(plugin, _)| plugins.contains(plugin)).map(|(_, message)| message).collect()
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
        assert_eq!(kind("other", sentence), None);
        assert_eq!(kind("validate", "validate is unusable (code 3)"), None);
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
        assert_eq!(take(&["watcher".to_owned()]), ["two bytes behind out"]);
        assert!(take(&["npu".to_owned()]).is_empty(), "what was reported is taken once");
    }
}
