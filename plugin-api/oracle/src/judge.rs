//! Holding what a backend wrote to the oracle.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use deepinfer_plugin_api::contract::UNIT_ROUNDOFF;
use deepinfer_plugin_api::{ArgError, Role};

use crate::bound::Bound;
use crate::call::{Call, Value};
use crate::compare::compare;
use crate::mismatch::Mismatch;
use crate::ops::oracle_of;
use crate::tensor::HostTensor;
use crate::want::Wants;

/// Written arguments of a call, by name.
pub type Outputs = BTreeMap<&'static str, HostTensor>;

/// Why there is no answer to what a call must give.
#[derive(Debug, thiserror::Error)]
pub enum OracleError {
    /// An op of a vendor.
    #[error("there is no oracle of {op}; only ops of the catalogue have one")]
    NoOracle {
        /// Op.
        op: &'static str,
    },
    /// Formats, ranks or extents are wrong.
    #[error("{0}")]
    Malformed(#[from] ArgError),
    /// A value of the arguments, such as an index, breaks a rule of the op's semantics.
    #[error("{op}: the values of the arguments break a rule of the op, as an index beyond its extent does: {reason}")]
    Values {
        /// Op.
        op: &'static str,
        /// Where the oracle stopped.
        reason: String,
    },
}

/// Why outputs are not those of the oracle.
#[derive(Debug, thiserror::Error)]
pub enum Disagreement {
    /// There is nothing to hold them to.
    #[error(transparent)]
    Oracle(#[from] OracleError),
    /// An output is missing, or has another format or shape than the call gave it.
    #[error("{argument} is {found}, but the call has it as {wanted}")]
    Shape {
        /// Output.
        argument: &'static str,
        /// What came, or `missing`.
        found: String,
        /// What the call says.
        wanted: String,
    },
    /// The worst element that is beyond the contract.
    #[error("{0}")]
    Beyond(Box<Mismatch>),
}

impl Call {
    /// What the outputs must be by the contract.
    ///
    /// # Errors
    /// As [`Call::wants_of`].
    pub fn wants(&self) -> Result<Wants, OracleError> {
        self.wants_of(UNIT_ROUNDOFF)
    }

    /// What the outputs must be where sums have an accumulator with this unit roundoff.
    ///
    /// # Errors
    /// The op has no oracle, the call is malformed, or a value in it breaks a rule of the op. The last is noticed as a panic
    /// of the oracle, which is caught here; its message also goes to the panic hook.
    pub fn wants_of(&self, unit: f64) -> Result<Wants, OracleError> {
        let op = self.op.name;
        let oracle = oracle_of(op).ok_or(OracleError::NoOracle { op })?;
        let bound = Bound::of(self, unit)?;
        catch_unwind(AssertUnwindSafe(|| oracle(self, bound))).map_err(|payload| {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let reason = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned();
            OracleError::Values { op, reason }
        })
    }

    /// Names of the arguments that the op writes and that are present.
    pub fn written(&self) -> impl Iterator<Item = &'static str> {
        let is_written = |name: &&'static str| matches!(self.args.get(name), Some(Value::Tensor(_)));
        self.op.args.iter().filter(|arg| arg.role != Role::In).map(|arg| arg.name).filter(is_written)
    }

    /// Holds outputs to the oracle. Gives the largest error that the last rounding does not explain, as a share of what the
    /// contract allows: 0 where bits must be equal and are, 1 at the bound.
    ///
    /// # Errors
    /// There is no answer, or the first output that is beyond the contract, by its worst element.
    pub fn judge(&self, found: &Outputs) -> Result<f64, Disagreement> {
        let wants = self.wants()?;
        let mut worst = 0f64;
        for name in self.written() {
            let before = self.tensor(name);
            let text = |tensor: &HostTensor| format!("{}{:?}", tensor.format, tensor.shape);
            let found = found.get(name).filter(|found| text(found) == text(before)).ok_or_else(|| {
                let found = found.get(name).map_or_else(|| "missing".to_owned(), text);
                Disagreement::Shape { argument: name, found, wanted: text(before) }
            })?;
            let want = wants.iter().find(|(argument, _)| *argument == name);
            let (_, want) = want.unwrap_or_else(|| panic!("the oracle of {} gives no {name}", self.op.name));
            worst = worst.max(compare(name, want, found, before).map_err(Disagreement::Beyond)?);
        }
        Ok(worst)
    }
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::{Format, op_by_name};

    use super::*;

    fn combine(row: i32) -> Call {
        let mut call = Call::new(op_by_name("moe_combine").expect("an op of the catalogue"));
        call.set("y", Value::Tensor(HostTensor::floats(Format::F32, &[1, 2], &[1.0, 2.0])));
        call.set("row_of", Value::Tensor(HostTensor::i32(&[1, 1], &[row])));
        call.set("shared", Value::Absent);
        call.set("out", Value::Tensor(HostTensor::filled(Format::F32, &[1, 2], 0xFF)));
        call
    }

    #[test]
    fn outputs_are_held_to_the_oracle() {
        let found = |values: &[f32]| Outputs::from([("out", HostTensor::floats(Format::F32, &[1, 2], values))]);
        assert_eq!(combine(0).judge(&found(&[1.0, 2.0])).expect("the right sum"), 0.0);
        let wrong = combine(0).judge(&found(&[1.0, 3.0])).expect_err("a wrong sum").to_string();
        assert!(wrong.contains("out[0, 1] is 3e0"), "{wrong}");
        let missing = combine(0).judge(&Outputs::new()).expect_err("no output").to_string();
        assert_eq!(missing, "out is missing, but the call has it as F32[1, 2]");
    }

    #[test]
    fn a_call_without_an_answer_says_why() {
        let beyond = combine(7).wants().err().expect("there is no row 7").to_string();
        assert!(beyond.contains("moe_combine") && beyond.contains("index out of bounds"), "{beyond}");
        let mut malformed = combine(0);
        malformed.set("out", Value::Tensor(HostTensor::filled(Format::F32, &[1, 3], 0)));
        let malformed = malformed.wants().err().expect("three columns").to_string();
        assert!(malformed.contains("out has shape [1, 3]"), "{malformed}");
    }
}
