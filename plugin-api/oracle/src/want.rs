//! What the outputs of a call must be.

use deepinfer_plugin_api::Format;

use crate::tensor::HostTensor;

/// What an element of an output must be.
#[derive(Clone, Copy, Debug)]
pub enum Element {
    /// Within `slack` of `value` before the rounding to the output's format.
    Near {
        /// Exact result.
        value: f64,
        /// Largest error before the last rounding.
        slack: f64,
    },
    /// This integer.
    Int(i64),
    /// These bits of an F32.
    Bits(u32),
    /// As before the call.
    Kept,
    /// The contract does not say.
    Any,
}

impl Element {
    /// A value with a relative error.
    pub(crate) fn relative(value: f64, error: f64) -> Self {
        Element::Near { value, slack: error * value.abs() }
    }
}

/// What an output must be.
pub enum Want {
    /// These bits.
    Exact(HostTensor),
    /// These bits, but any NaN for a NaN.
    ExactButNan(HostTensor),
    /// One rule per element.
    Elements(Vec<Element>),
    /// The FP8 quantisation of values between these bounds.
    Fp8Between(Vec<f32>, Vec<f32>),
}

/// Wanted outputs by argument.
pub type Wants = Vec<(&'static str, Want)>;

/// Half the distance of neighbouring values of a float format at `x`.
pub(crate) fn half_ulp(format: Format, x: f64) -> f64 {
    let precision = if format == Format::Bf16 { 8 } else { 24 };
    let exponent = if x == 0.0 || !x.is_finite() { -126 } else { (x.abs().log2().floor() as i32).max(-126) };
    2f64.powi(exponent - precision)
}
