//! What a contract allows in a call, with the numbers of the op's reflection row.

use deepinfer_plugin_api::Contract;
use deepinfer_plugin_api::contract::{UNIT_ROUNDOFF, gamma};

use crate::call::Call;
use crate::want::Element;

/// The numbers of a contract in one call.
#[derive(Clone, Copy)]
pub(crate) struct Bound {
    factor: f64,
    terms: usize,
    ulps: f64,
}

impl Bound {
    /// Of a call that is well formed.
    pub(crate) fn of(call: &Call) -> Self {
        let Contract { factor, ulps, terms, .. } = call.op.contract;
        let extents = call.extents().unwrap_or_else(|error| panic!("{error}"));
        Self { factor, terms: (terms.count)(&extents) as usize, ulps: f64::from(ulps) }
    }

    /// The error of a sum whose terms have magnitudes that sum to `magnitude`.
    pub(crate) fn sum_error(self, magnitude: f64) -> f64 {
        self.sum_error_of(self.terms, magnitude)
    }

    /// The error of a sum of another length than the contract's.
    pub(crate) fn sum_error_of(self, terms: usize, magnitude: f64) -> f64 {
        self.factor * gamma(terms) * magnitude
    }

    /// A sum, with the error that it may have.
    pub(crate) fn sum(self, value: f64, magnitude: f64) -> Element {
        Element::Near { value, slack: self.sum_error(magnitude) }
    }

    /// The ulps of the contract as a relative error: a unit in the last place of F32 is at most twice the unit roundoff.
    pub(crate) fn relative(self) -> f64 {
        2.0 * self.ulps * UNIT_ROUNDOFF
    }
}
