//! Kinds of faults, by name: what a failure says of the backend beyond its own case.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A kind of fault. A check that can only fail in one way knows it; of wrong values it is concluded from what the cases that
/// fail have in common ([`crate::findings`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// The process ended.
    Crash,
    /// The process did not answer.
    Hang,
    /// The backend panicked, or an exception ended there, and it said so.
    Panic,
    /// The device is lost: nothing works on it any more in this process.
    DeviceLost,
    /// Memory, copies or streams fail, so that cases cannot be set up.
    SetUp,
    /// A longer argument struct than the plugin's is refused.
    SizeEquality,
    /// A struct is read or written beyond the bytes that it has, or a result depends on memory around a tensor.
    OverRead,
    /// A value that nobody knows is taken for one that has a meaning.
    UnknownValue,
    /// A call that `supports` accepts is declined when it is run.
    LyingSupports,
    /// A stream does not wait for an event.
    EventWait,
    /// Memory outside of the tensors is written.
    OutOfBounds,
    /// A tensor that is only read is written.
    InputWritten,
    /// A call is refused after it has written an output.
    WroteWhenRefused,
    /// Wrong values in rows that are no multiple of a vector.
    RaggedEdge,
    /// Another choice among equal values.
    TieBreak,
    /// A NaN does not reach the result.
    NanSwallowed,
    /// Wrong values with one format only.
    OneFormat,
    /// Wrong values with one kind of content only, as zeros.
    OneContent,
    /// Wrong values without a pattern.
    WrongResult,
    /// Some of an output is left as it was.
    UnwrittenOutput,
    /// The result depends on what lay in the workspace.
    StaleWorkspace,
    /// A row depends on the rows beside it.
    BatchDependent,
    /// The same call gives other bits the next time.
    NotDeterministic,
    /// Gaps between rows change the result.
    Strides,
    /// Work on two streams mixes.
    StreamRace,
    /// Recorded work gives other bits than the calls.
    Replay,
    /// A valid call is refused.
    RefusesValid,
    /// A wrong argument is accepted, or refused without its name.
    AcceptsWrong,
    /// A layer over the backend reports a breach.
    Layer,
    /// Any other rule.
    Rule,
}

impl Fault {
    /// What a layer names in brackets behind its own name, as `validate (out-of-bounds): ..`. Rules that no case checks are
    /// [`Fault::Layer`].
    pub fn of_layer(rule: &str) -> Self {
        match rule {
            "honesty" => Self::LyingSupports,
            "accepted" => Self::AcceptsWrong,
            "value" => Self::WrongResult,
            known => serde_json::from_value(known.into()).unwrap_or(Self::Layer),
        }
    }

    /// The kind that an error has by itself, whatever was called: a panic, or what a layer over the backend reports.
    /// `origin` is `plugin/function`.
    pub(crate) fn of_error(is_panic: bool, origin: &str, message: &str) -> Option<Self> {
        if is_panic {
            return Some(Self::Panic);
        }
        let (plugin, _) = origin.split_once('/')?;
        let (rule, _) = message.strip_prefix(plugin)?.strip_prefix(" (")?.split_once("): ")?;
        Some(Self::of_layer(rule))
    }
}

impl fmt::Display for Fault {
    /// The name, as `ragged-edge`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_report() {
        assert_eq!(Fault::RaggedEdge.to_string(), "ragged-edge");
        assert_eq!(serde_json::to_string(&Fault::NanSwallowed).unwrap(), "\"nan-swallowed\"");
        let named = ["stale-workspace", "honesty", "leak"].map(Fault::of_layer);
        assert_eq!(named, [Fault::StaleWorkspace, Fault::LyingSupports, Fault::Layer]);
        assert_eq!(Fault::of_error(true, "npu/rstd", "panic in rstd: boom"), Some(Fault::Panic));
        let layer = |origin, message| Fault::of_error(false, origin, message);
        assert_eq!(layer("validate/rstd", "validate (value): the backend"), Some(Fault::WrongResult));
        assert_eq!(layer("npu/rstd", "validate (value): the backend"), None);
        assert_eq!(layer("npu/rstd", "npu is broken"), None);
    }
}
