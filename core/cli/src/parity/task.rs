//! Everything that can be tested, by name: cases of ops, and cases of a backend as a whole.

use std::fmt;

use deepinfer_parity::{Case, Level};

use super::worker::Target;
use super::{miniature, whole};

/// A case of a backend as a whole.
pub(crate) struct WholeCase {
    /// What is tested, in the place of an op.
    pub(crate) subject: &'static str,
    pub(crate) name: &'static str,
    pub(crate) level: Level,
    pub(crate) run: fn(&Target) -> deepinfer_parity::Outcome,
}

/// What a worker is asked to do.
#[derive(Clone, Copy)]
pub(crate) enum Task {
    Whole(&'static WholeCase),
    Op(Case),
    /// Loads the backend with an option that it cannot know; needs a process in which it is not loaded yet.
    UnknownOption,
}

/// Cases of a backend as a whole that run before those of its ops.
pub(crate) fn first_cases() -> impl Iterator<Item = &'static WholeCase> {
    whole::CASES.iter().chain(miniature::CASES)
}

/// Those that run after everything else.
pub(crate) fn last_cases() -> impl Iterator<Item = &'static WholeCase> {
    whole::LAST_CASES.iter()
}

/// Of the last cases the last: it closes the device that the cases of ops have used.
pub(crate) const CLOSE: &str = "device/close";

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
            Self::UnknownOption => "load",
        }
    }

    pub(crate) fn level(&self) -> Level {
        match self {
            Self::Whole(case) => case.level,
            Self::Op(case) => case.check.level(),
            Self::UnknownOption => Level::L0,
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(case) => write!(f, "{}/{}", case.subject, case.name),
            Self::Op(case) => case.fmt(f),
            Self::UnknownOption => f.write_str("load/unknown-option"),
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
        assert_eq!(last_cases().last().map(|case| Task::Whole(case).to_string()).as_deref(), Some(CLOSE));
        assert!(Task::parse("device/open", 1).is_none());
    }
}
