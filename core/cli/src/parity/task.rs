//! Everything that can be tested, by name: cases of ops, and cases of a backend as a whole.

use std::fmt;

use deepinfer_parity::{Case, Check, Fault, Level};
use deepinfer_runtime::conformance::Core;

use super::worker::Target;
use super::{miniature, whole};

pub(crate) use whole::{CLOSE, SHUTDOWN};

/// A case of a backend as a whole.
pub(crate) struct WholeCase {
    /// What is tested, in the place of an op.
    pub(crate) subject: &'static str,
    pub(crate) name: &'static str,
    pub(crate) level: Level,
    /// The kind of fault that a failure shows, if there is only one.
    pub(crate) fault: Option<Fault>,
    pub(crate) run: fn(&Target) -> deepinfer_parity::Outcome,
}

/// What a worker is asked to do.
#[derive(Clone, Copy)]
pub(crate) enum Task {
    Whole(&'static WholeCase),
    Op(Case),
    /// Loads the backend with an option that it cannot know; needs a process in which it is not loaded yet.
    UnknownOption,
    /// Shakes hands as another core would; needs such a process, too.
    Handshake(Core),
}

/// Cases of a backend as a whole that run before those of its ops.
pub(crate) fn first_cases() -> impl Iterator<Item = &'static WholeCase> {
    whole::CASES.iter().chain(miniature::CASES)
}

/// Those that run after everything else.
pub(crate) fn last_cases() -> impl Iterator<Item = &'static WholeCase> {
    whole::LAST_CASES.iter()
}

/// Cases for which the backend is loaded once more, in a process of their own.
pub(crate) fn load_cases() -> impl Iterator<Item = Task> {
    std::iter::once(Task::UnknownOption).chain(Core::ALL.into_iter().map(Task::Handshake))
}

impl Task {
    /// The task of a name, if a worker runs it.
    pub(crate) fn parse(name: &str, seed: u64) -> Option<Self> {
        let whole = first_cases().chain(last_cases()).map(Task::Whole).find(|task| task.to_string() == name);
        whole.or_else(|| Case::parse(name, seed).map(Task::Op))
    }

    /// Op, or what else is tested.
    pub(crate) fn subject(&self) -> &'static str {
        match self {
            Self::Whole(case) => case.subject,
            Self::Op(case) => case.op,
            Self::UnknownOption | Self::Handshake(_) => "load",
        }
    }

    pub(crate) fn level(&self) -> Level {
        match self {
            Self::Whole(case) => case.level,
            Self::Op(case) => case.check.level(),
            Self::UnknownOption | Self::Handshake(_) => Level::L0,
        }
    }

    /// The kind of fault that a failure shows, whatever it is that fails.
    pub(crate) fn fault(&self) -> Option<Fault> {
        match self {
            Self::Whole(case) => case.fault,
            Self::Op(_) | Self::UnknownOption | Self::Handshake(_) => None,
        }
    }

    /// Whether it does what no core does, so that a layer has reason to report it.
    pub(crate) fn breaks_rules(&self) -> bool {
        match self {
            Self::Op(case) => {
                matches!(case.check, Check::StructSize | Check::UnknownValue | Check::Refusal | Check::Malformed)
            }
            Self::Whole(case) => {
                matches!(case.name, "unknown-extension" | "unknown-values" | "unrecorded-event" | "destroyed-with-work")
            }
            Self::UnknownOption | Self::Handshake(_) => true,
        }
    }

    /// Whether a worker runs it, of which the backend is loaded as usual.
    pub(crate) fn is_for_a_worker(&self) -> bool {
        !matches!(self, Self::UnknownOption | Self::Handshake(_))
    }

    /// Whether its worker may have run nothing before.
    pub(crate) fn wants_a_fresh_worker(&self) -> bool {
        matches!(self, Self::Whole(case) if format!("{}/{}", case.subject, case.name) == SHUTDOWN)
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(case) => write!(f, "{}/{}", case.subject, case.name),
            Self::Op(case) => case.fmt(f),
            Self::UnknownOption => f.write_str("load/unknown-option"),
            Self::Handshake(core) => write!(f, "load/{}", core.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_tasks() {
        let mut names: Vec<String> =
            first_cases().chain(last_cases()).map(|case| Task::Whole(case).to_string()).collect();
        names.push("rstd/rows/3".to_owned());
        for name in &names {
            assert_eq!(Task::parse(name, 1).unwrap().to_string(), *name);
        }
        let last: Vec<String> = last_cases().map(|case| Task::Whole(case).to_string()).collect();
        assert_eq!(last[last.len() - 2..], [CLOSE, SHUTDOWN]);
        assert!(last_cases().map(Task::Whole).any(|task| task.wants_a_fresh_worker()));
        assert!(Task::parse("device/open", 1).is_none());
    }
}
