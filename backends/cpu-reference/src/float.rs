//! The two dtypes of activations, F32 and BF16, as one type parameter of a kernel.

use deepinfer_plugin_api::numerics::Bf16;
use deepinfer_plugin_api::sdk::tensor::Element;

use crate::simd::{Lanes, multiversion};
use crate::weights::decode_bf16;

/// F32 or BF16.
pub(crate) trait Float: Element {
    /// The same value; exact.
    fn widen(self) -> f64;

    /// Rounds to nearest, ties to even.
    fn from_f32(value: f32) -> Self;

    /// The row as F32: itself, or decoded into `scratch`.
    fn load<'a>(row: &'a [Self], scratch: &'a mut Vec<f32>) -> &'a [f32];

    /// Rounds `values` into `row`, which is as long: to F32 and, for BF16, once more to BF16, as an operator of the
    /// PyTorch reference that computes in F32 does.
    fn round_row(values: &[f64], row: &mut [Self]);

    /// Rounds `values` into `row`, which is as long.
    fn store_row(values: &[f32], row: &mut [Self]);
}

impl Float for f32 {
    #[inline(always)]
    fn widen(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    fn load<'a>(row: &'a [Self], _: &'a mut Vec<f32>) -> &'a [f32] {
        row
    }

    fn round_row(values: &[f64], row: &mut [Self]) {
        round_to_f32(values, row);
    }

    fn store_row(values: &[f32], row: &mut [Self]) {
        row.copy_from_slice(values);
    }
}

impl Float for Bf16 {
    #[inline(always)]
    fn widen(self) -> f64 {
        f64::from(self.to_f32())
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Bf16::from_f32(value)
    }

    fn load<'a>(row: &'a [Self], scratch: &'a mut Vec<f32>) -> &'a [f32] {
        scratch.resize(row.len(), 0.0);
        decode_bf16(row, scratch);
        scratch
    }

    fn round_row(values: &[f64], row: &mut [Self]) {
        round_to_bf16(values, row);
    }

    fn store_row(values: &[f32], row: &mut [Self]) {
        store_as_bf16(values, row);
    }
}

multiversion! {
    /// Rounds each value to F32.
    ///
    /// # Panics
    /// If the lengths differ.
    fn round_to_f32 / round_to_f32_at(values: &[f64], row: &mut [f32]) = round_to_f32_body
}

multiversion! {
    /// Rounds each value to F32 and then to BF16.
    ///
    /// # Panics
    /// If the lengths differ.
    fn round_to_bf16 / round_to_bf16_at(values: &[f64], row: &mut [Bf16]) = round_to_bf16_body
}

multiversion! {
    /// Rounds each value to BF16.
    ///
    /// # Panics
    /// If the lengths differ.
    fn store_as_bf16 / store_as_bf16_at(values: &[f32], row: &mut [Bf16]) = store_as_bf16_body
}

#[inline(always)]
fn round_to_f32_body<V: Lanes>(values: &[f64], row: &mut [f32]) {
    assert_eq!(values.len(), row.len());
    row.iter_mut().zip(values).for_each(|(out, &v)| *out = v as f32);
}

#[inline(always)]
fn round_to_bf16_body<V: Lanes>(values: &[f64], row: &mut [Bf16]) {
    assert_eq!(values.len(), row.len());
    row.iter_mut().zip(values).for_each(|(out, &v)| *out = Bf16::from_f32(v as f32));
}

#[inline(always)]
fn store_as_bf16_body<V: Lanes>(values: &[f32], row: &mut [Bf16]) {
    assert_eq!(values.len(), row.len());
    row.iter_mut().zip(values).for_each(|(out, &v)| *out = Bf16::from_f32(v));
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
    use crate::random;
    use crate::simd::Level;

    #[test]
    fn bf16_is_rounded_through_f32() {
        // Just above the midpoint of two BF16 values: F32 drops the excess, and the tie then goes to even.
        let above_tie = [1.0 + f64::from(2.0f32.powi(-8)) + 2.0f64.powi(-40)];
        let (mut wide, mut narrow) = ([0.0], [Bf16(0)]);
        f32::round_row(&above_tie, &mut wide);
        Bf16::round_row(&above_tie, &mut narrow);
        assert_eq!(wide, [1.0 + 2.0f32.powi(-8)]);
        assert_eq!(narrow, [Bf16::from_f32(1.0)]);
    }

    #[test]
    fn every_vector_width_gives_the_same_bits() {
        let special = [0.0, -0.0, 1e300, -1e-300, f64::INFINITY, f64::NAN, f64::from(f32::MAX) * (1.0 + 1e-9)];
        let values: Vec<f64> = random::floats(82, 1000).iter().map(|&v| f64::from(v) * 1.000_000_01).collect();
        let values = [&special[..], &values].concat();
        let singles: Vec<f32> = values.iter().map(|&v| v as f32).collect();
        let halves: Vec<Bf16> = singles.iter().map(|&v| Bf16::from_f32(v)).collect();
        for &level in Level::available() {
            let (mut wide, mut narrow) = (vec![0.0; values.len()], vec![Bf16(0); values.len()]);
            round_to_f32_at(level, &values, &mut wide);
            assert!(wide.iter().zip(&singles).all(|(a, b)| a.to_bits() == b.to_bits()), "{level:?}");
            round_to_bf16_at(level, &values, &mut narrow);
            assert_eq!(narrow, halves, "{level:?}");
            narrow.fill(Bf16(0));
            store_as_bf16_at(level, &singles, &mut narrow);
            assert_eq!(narrow, halves, "{level:?}");
        }
    }
}
