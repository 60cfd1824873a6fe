//! Numerical contracts: what the result of an op may differ from the exact one.

use crate::extents::Extents;

/// Class of a numerical contract.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Equal bits.
    Exact,
    /// [`Contract::ulps`] from the exact result.
    Ulp,
    /// An error derived from the length of a sum and the magnitudes of its terms.
    Bound,
    /// A distribution from which results are drawn.
    Dist,
}

/// The numerical contract of an op. Beside what it allows, every output may be half a unit in the last place of its format
/// off: the last rounding.
#[derive(Clone, Copy, Debug)]
pub struct Contract {
    /// Class.
    pub class: Class,
    /// Units in the last place of F32: all that an ULP contract allows, and what a BOUND allows beside its sum. 0 if none.
    pub ulps: u32,
    /// Of a BOUND: `c` in the allowed error `c * gamma(k) * S`, with [`gamma`] and `S` the sum of the magnitudes of the `k`
    /// terms. 0 in other classes.
    pub factor: f64,
    /// Of a BOUND: `k`.
    pub terms: Terms,
    /// How the numbers compose where an op has several stages; empty where it has one.
    pub bound: &'static str,
    /// Accumulator.
    pub accumulator: &'static str,
    /// Where values are rounded.
    pub rounding: &'static str,
    /// Whether subnormal operands and results are kept.
    pub denormals: &'static str,
    /// NaN and infinity policy.
    pub nan: &'static str,
    /// What happens when an index occurs twice.
    pub duplicates: &'static str,
}

/// Length of a sum.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// As the catalogue writes it; empty for [`Terms::NONE`].
    pub text: &'static str,
    /// The same, of a call with these extents.
    pub count: fn(&Extents) -> i64,
}

impl Terms {
    /// Of an op whose contract is no BOUND.
    pub const NONE: Terms = Terms { text: "", count: |_| 0 };
}

/// Unit roundoff of F32, the narrowest accumulator that a contract allows.
pub const UNIT_ROUNDOFF: f64 = 1.0 / (1 << 24) as f64;

/// Largest relative error of `k` successive roundings with unit roundoff `u`: `k u / (1 - k u)`. A sum of `k` products, in any
/// order, is within that times the sum of the magnitudes (Higham, Accuracy and Stability of Numerical Algorithms,
/// section 3.1).
///
/// Infinite where `k u` reaches 1: no sum of that length has a bound.
pub fn gamma(k: usize, u: f64) -> f64 {
    let ku = k as f64 * u;
    if ku < 1.0 { ku / (1.0 - ku) } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gamma_is_a_little_more_than_the_sum_of_roundings() {
        assert_eq!(gamma(0, UNIT_ROUNDOFF), 0.0);
        assert!(gamma(1, UNIT_ROUNDOFF) > UNIT_ROUNDOFF && gamma(1, UNIT_ROUNDOFF) < UNIT_ROUNDOFF * (1.0 + 1e-7));
        assert!((gamma(1 << 23, UNIT_ROUNDOFF) - 1.0).abs() < 1e-12);
        assert_eq!(gamma(1 << 24, UNIT_ROUNDOFF), f64::INFINITY);
    }
}
