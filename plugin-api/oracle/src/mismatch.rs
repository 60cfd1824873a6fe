//! An element that is not what it must be.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An element that is not what it must be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mismatch {
    /// Argument.
    pub argument: String,
    /// `scale` when `element` counts scales, otherwise empty.
    pub part: String,
    /// Shape of the argument.
    pub shape: Vec<usize>,
    /// Number of the element, in row-major order.
    pub element: usize,
    /// Its value.
    pub found: String,
    /// Its bits.
    pub found_bits: String,
    /// What it should be.
    pub wanted: String,
    /// Bits of that.
    pub wanted_bits: String,
    /// Distance of the two, and what is allowed; `None` where bits must be equal or one of them is not finite.
    pub distance: Option<Distance>,
}

/// How far a value is from where it should be. All numbers are finite.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distance {
    /// Distance from the exact result.
    pub error: f64,
    /// What the last rounding, to the format of the output, may contribute.
    pub rounding: f64,
    /// Largest error that the contract allows before that rounding.
    pub allowed: f64,
}

impl Distance {
    /// The error that the last rounding does not explain, as a share of what is allowed; `None` if nothing is.
    pub fn share(&self) -> Option<f64> {
        (self.allowed > 0.0).then(|| (self.error - self.rounding).max(0.0) / self.allowed)
    }
}

impl Mismatch {
    /// The error as a share of what is allowed, as [`Distance::share`]; `None` where no error is.
    pub fn share(&self) -> Option<f64> {
        self.distance.as_ref().and_then(Distance::share)
    }

    /// Where the element is, in words: `out[3, 7]`, or `scale 2 of out`.
    pub fn place(&self) -> String {
        match self.part.as_str() {
            "" => format!("{}{:?}", self.argument, self.index()),
            part => format!("{part} {} of {}", self.element, self.argument),
        }
    }

    /// Index of the element in each dimension.
    fn index(&self) -> Vec<usize> {
        let mut rest = self.element;
        let mut index: Vec<usize> = self
            .shape
            .iter()
            .rev()
            .map(|&extent| {
                let i = rest % extent.max(1);
                rest /= extent.max(1);
                i
            })
            .collect();
        index.reverse();
        index
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found, found_bits, wanted, wanted_bits, .. } = self;
        write!(f, "{} is {found} ({found_bits}), expected {wanted} ({wanted_bits}): ", self.place())?;
        let Some(distance) = self.distance else { return f.write_str("no error is allowed") };
        let Distance { error, rounding, allowed } = distance;
        write!(f, "error {error:.3e}, allowed {allowed:.3e} and {rounding:.3e} for the last rounding")?;
        distance.share().map_or(Ok(()), |share| write!(f, ", {share:.3} times the bound"))
    }
}
