//! What was found: who broke which rule, where.

use std::fmt;
use std::path::PathBuf;

use deepinfer_plugin_api::sdk::{Fault, FaultCode};
use serde::Serialize;

/// A rule of the boundary.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Rule {
    /// Sizes of structs, ids and versions of ops.
    Struct,
    /// Formats, ranks and extents of the catalogue.
    Shape,
    /// Elements lie within `nbytes`.
    Nbytes,
    /// Tensors lie in live memory of the device.
    Memory,
    /// Written arguments overlap nothing else.
    Overlap,
    /// Memory that is marked so is not written.
    ReadOnly,
    /// Objects are alive and belong to the device.
    Lifetime,
    /// One thread at a time uses a stream.
    Thread,
    /// Plans are used for what they were made for.
    Plan,
    /// The workspace is what the plan asked for.
    Workspace,
    /// During capture nothing allocates or waits.
    Capture,
    /// Everything is given back.
    Leak,
    /// What `supports` says is true.
    Honesty,
    /// Error objects are whole.
    ErrorObject,
    /// Results are written where the caller wants them, and nowhere else.
    OutPointer,
    /// Nothing is written outside of written arguments.
    OutOfBounds,
    /// Arguments that are only read stay as they are.
    InputWritten,
    /// The numerical contract.
    Value,
    /// Results do not depend on what the workspace held.
    StaleWorkspace,
    /// Wrong values are refused.
    Accepted,
}

impl Rule {
    /// Name in messages and reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Rule::Struct => "struct",
            Rule::Shape => "shape",
            Rule::Nbytes => "nbytes",
            Rule::Memory => "memory",
            Rule::Overlap => "overlap",
            Rule::ReadOnly => "read-only",
            Rule::Lifetime => "lifetime",
            Rule::Thread => "thread",
            Rule::Plan => "plan",
            Rule::Workspace => "workspace",
            Rule::Capture => "capture",
            Rule::Leak => "leak",
            Rule::Honesty => "honesty",
            Rule::ErrorObject => "error-object",
            Rule::OutPointer => "out-pointer",
            Rule::OutOfBounds => "out-of-bounds",
            Rule::InputWritten => "input-written",
            Rule::Value => "value",
            Rule::StaleWorkspace => "stale-workspace",
            Rule::Accepted => "accepted",
        }
    }
}

/// Who broke a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Culprit {
    /// Whoever calls the layer.
    Core,
    /// What the layer wraps.
    Backend,
}

/// A broken rule. `problem` is a sentence without its end; the rest is context, empty where there is none.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) rule: Rule,
    pub(crate) by: Culprit,
    /// Op or function of the boundary.
    pub(crate) call: String,
    /// Implementation, of an op.
    pub(crate) implementation: String,
    /// Number of the call among all op calls; 0 when it is none.
    pub(crate) number: u64,
    pub(crate) argument: String,
    pub(crate) problem: String,
    /// Seed of the sampling.
    pub(crate) seed: u64,
    /// File with the call.
    pub(crate) bundle: Option<PathBuf>,
}

impl Finding {
    /// One without context.
    pub(crate) fn new(rule: Rule, by: Culprit, call: &str, problem: impl Into<String>) -> Self {
        Self {
            rule,
            by,
            call: call.to_owned(),
            implementation: String::new(),
            number: 0,
            argument: String::new(),
            problem: problem.into(),
            seed: 0,
            bundle: None,
        }
    }

    /// About an argument.
    pub(crate) fn about(mut self, argument: &str) -> Self {
        argument.clone_into(&mut self.argument);
        self
    }

    /// The sentence; `backend` is the name to give to `deepinfer replay`.
    pub(crate) fn sentence(&self, backend: &str) -> String {
        let who = match self.by {
            Culprit::Core => "the caller",
            Culprit::Backend => "the backend",
        };
        let mut text = format!("validate ({}): {who} broke a rule in {}", self.rule.name(), self.call);
        if !self.implementation.is_empty() {
            text.push_str(&format!(" ({})", self.implementation));
        }
        if self.number > 0 {
            text.push_str(&format!(", call {}", self.number));
        }
        text.push_str(": ");
        if !self.problem.starts_with(&self.argument) {
            text.push_str(&format!("{} ", self.argument));
        }
        text.push_str(&self.problem);
        if let Some(bundle) = &self.bundle {
            text.push_str(&format!(
                "; seed {}; run it again with: deepinfer replay {} --backend {backend}",
                self.seed,
                bundle.display()
            ));
        }
        text
    }

    /// The error of a call that fails for it.
    pub(crate) fn fault(&self, backend: &str) -> Fault {
        let code = match self.by {
            Culprit::Core => FaultCode::Invalid,
            Culprit::Backend => FaultCode::Internal,
        };
        Fault::new(code, self.sentence(backend)).or_origin(&self.call)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_sentence_with_its_context() {
        let bare = Finding::new(Rule::Leak, Culprit::Core, "device_close", "device #1 still has buffer #3");
        let text = "validate (leak): the caller broke a rule in device_close: device #1 still has buffer #3";
        assert_eq!(bare.sentence("cpu"), text);
        let finding = Finding {
            implementation: "tiled".to_owned(),
            number: 17,
            seed: 4,
            bundle: Some("/tmp/x.bundle".into()),
            ..Finding::new(Rule::Value, Culprit::Backend, "rstd", "[3] is 1, expected 2").about("out")
        };
        assert_eq!(
            finding.sentence("./x.so"),
            "validate (value): the backend broke a rule in rstd (tiled), call 17: out [3] is 1, expected 2; seed 4; \
             run it again with: deepinfer replay /tmp/x.bundle --backend ./x.so"
        );
        assert_eq!(finding.fault("cpu").code, FaultCode::Internal);
        assert_eq!(serde_json::to_value(&finding).unwrap()["rule"], "value");
    }

    #[test]
    fn names_in_reports_are_those_of_messages() {
        for rule in [Rule::OutOfBounds, Rule::StaleWorkspace, Rule::Struct, Rule::ErrorObject, Rule::ReadOnly] {
            assert_eq!(serde_json::to_value(rule).unwrap(), rule.name());
        }
    }
}
