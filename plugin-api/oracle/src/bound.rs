//! What a contract allows in a call, with the numbers of the op's reflection row.

use deepinfer_plugin_api::contract::gamma;
use deepinfer_plugin_api::{ArgError, Contract};

use crate::call::Call;
use crate::want::Element;

/// The numbers of a contract in one call, for an accumulator.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    factor: f64,
    terms: usize,
    ulps: f64,
    unit: f64,
}

impl Bound {
    /// Of a call, for an accumulator with this unit roundoff. What the contract allows is that of
    /// [`UNIT_ROUNDOFF`](deepinfer_plugin_api::contract::UNIT_ROUNDOFF); with a smaller one an implementation is held to what
    /// its wider accumulator can do.
    ///
    /// # Errors
    /// The call is malformed.
    pub fn of(call: &Call, unit: f64) -> Result<Self, ArgError> {
        let Contract { factor, ulps, terms, .. } = call.op.contract;
        let terms = usize::try_from((terms.count)(&call.extents()?)).unwrap_or(0);
        Ok(Self { factor, terms, ulps: f64::from(ulps), unit })
    }

    /// The unit roundoff.
    pub(crate) fn unit(self) -> f64 {
        self.unit
    }

    /// The relative error of `k` successive roundings.
    pub(crate) fn roundings(self, k: usize) -> f64 {
        gamma(k, self.unit)
    }

    /// The error of a sum whose terms have magnitudes that sum to `magnitude`.
    pub(crate) fn sum_error(self, magnitude: f64) -> f64 {
        self.sum_error_of(self.terms, magnitude)
    }

    /// The error of a sum of another length than the contract's.
    pub(crate) fn sum_error_of(self, terms: usize, magnitude: f64) -> f64 {
        self.factor * self.roundings(terms) * magnitude
    }

    /// A sum, with the error that it may have.
    pub(crate) fn sum(self, value: f64, magnitude: f64) -> Element {
        Element::Near { value, slack: self.sum_error(magnitude) }
    }

    /// The ulps of the contract as a relative error: a unit in the last place is at most twice the unit roundoff.
    pub(crate) fn relative(self) -> f64 {
        2.0 * self.ulps * self.unit
    }
}
