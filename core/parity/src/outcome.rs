//! What came of a case.

use std::fmt;

use deepinfer_oracle::Mismatch;
use serde::{Deserialize, Serialize};

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
}

impl Outcome {
    /// A failure that a sentence tells.
    pub fn failed(problem: impl Into<String>) -> Self {
        Self::Failed(Failure { problem: problem.into(), worst: None })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)?;
        self.worst.as_ref().map_or(Ok(()), |worst| write!(f, ": {worst}"))
    }
}
