//! What came of a case.

use std::fmt;

use deepinfer_oracle::Mismatch;
use serde::{Deserialize, Serialize};

use crate::fault::Fault;

/// What came of a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It holds.
    Passed {
        /// Largest error as a share of what the contract allows ([`deepinfer_oracle::Distance::share`]), where there is an oracle.
        share: Option<f64>,
    },
    /// The backend declines this form of the op: lasting, and not a failure.
    Unsupported {
        /// Its reason.
        reason: String,
    },
    /// It did not run, because cases of the op before it have cost too much time or too many processes, or the device.
    NotTried {
        /// Why.
        reason: String,
    },
    /// It does not hold.
    Failed(Failure),
}

/// Why a case fails.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// A sentence.
    pub problem: String,
    /// The worst element, where values differ from those of an oracle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst: Option<Box<Mismatch>>,
    /// What kind of fault it shows, where the case alone can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// What the backend itself said, or how its process ended, where that is why it fails: of several cases it may be the same
    /// ([`crate::essence`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Failure {
    /// A failure that a sentence tells.
    pub fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), worst: None, fault: None, error: None }
    }

    /// The same, because of an error.
    pub fn because_of(self, error: impl Into<String>) -> Self {
        Self { error: Some(error.into()), ..self }
    }

    /// The same, of a kind.
    pub fn of(self, fault: Fault) -> Self {
        Self { fault: Some(fault), ..self }
    }
}

impl Outcome {
    /// A failure that a sentence tells.
    pub fn failed(problem: impl Into<String>) -> Self {
        Self::Failed(Failure::new(problem))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)?;
        self.worst.as_ref().map_or(Ok(()), |worst| write!(f, ": {worst}"))
    }
}
