//! The two dtypes of activations, F32 and BF16, as one type parameter of a kernel.

use deepinfer_plugin_api::numerics::Bf16;
use deepinfer_plugin_api::sdk::tensor::Element;

/// F32 or BF16.
pub(crate) trait Float: Element {
    /// The same value; exact.
    fn to_f32(self) -> f32;

    /// The nearest value, ties to even.
    fn from_f32(value: f32) -> Self;

    /// The row as F32: itself, or decoded into `scratch`.
    fn load<'a>(row: &'a [Self], scratch: &'a mut Vec<f32>) -> &'a [f32];

    /// The same value; exact.
    #[inline(always)]
    fn widen(self) -> f64 {
        f64::from(self.to_f32())
    }

    /// Rounds to F32 and, for BF16, once more to BF16, as an operator of the PyTorch reference that computes in F32 does.
    #[inline(always)]
    fn round(value: f64) -> Self {
        Self::from_f32(value as f32)
    }
}

impl Float for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    fn load<'a>(row: &'a [Self], _: &'a mut Vec<f32>) -> &'a [f32] {
        row
    }
}

impl Float for Bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        Bf16::to_f32(self)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Bf16::from_f32(value)
    }

    fn load<'a>(row: &'a [Self], scratch: &'a mut Vec<f32>) -> &'a [f32] {
        scratch.clear();
        scratch.extend(row.iter().map(|v| v.to_f32()));
        scratch
    }
}

/// Calls a function that is generic over [`Float`] with the type of a tensor: `by_float!(a.x, run(&mut a))`.
///
/// A tensor of any other format is taken as F32, which the typed views then refuse with a sentence.
macro_rules! by_float {
    ($tensor:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match deepinfer_plugin_api::Shaped::format(&$tensor) {
            Some(deepinfer_plugin_api::Format::Bf16) => {
                $function::<deepinfer_plugin_api::numerics::Bf16>($($argument),*)
            }
            _ => $function::<f32>($($argument),*),
        }
    };
}
pub(crate) use by_float;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_is_rounded_through_f32() {
        // Just above the midpoint of two BF16 values: F32 drops the excess, and the tie then goes to even.
        let above_tie = 1.0 + f64::from(2.0f32.powi(-8)) + 2.0f64.powi(-40);
        assert_eq!(<Bf16 as Float>::round(above_tie), Bf16::from_f32(1.0));
        assert_eq!(<f32 as Float>::round(above_tie), 1.0 + 2.0f32.powi(-8));
    }
}
