//! Weighted sums of rows, channel by channel: what hyper-connections do to the copies of the stream.
//!
//! A sum starts from +0 and takes the rows in order. All in F64, where a product of two F32 values is exact.

use crate::float::Float;
use crate::simd::{Lanes, multiversion};

/// Channels that are summed at a time.
pub(crate) const BLOCK: usize = 64;

/// One block of a row.
pub(crate) type Block = [f64; BLOCK];

/// The part of `row` from channel `start` on, as far as it reaches; the rest of `block` is left as it is.
#[inline(always)]
pub(crate) fn load<T: Float>(row: &[T], start: usize, block: &mut Block) {
    block.iter_mut().zip(&row[start..]).for_each(|(out, &v)| *out = v.widen());
}

/// Rounds `block` into `row` from channel `start` on, as far as it reaches.
#[inline(always)]
pub(crate) fn store<T: Float>(block: &Block, row: &mut [T], start: usize) {
    let row = &mut row[start..];
    let len = row.len().min(BLOCK);
    T::round_row(&block[..len], &mut row[..len]);
}

multiversion! {
    /// The sum of `weights[i] * rows[i]`.
    fn blend / blend_at(weights: &[f32], rows: &[Block]) -> Block = blend_body
}

#[inline(always)]
fn blend_body<V: Lanes>(weights: &[f32], rows: &[Block]) -> Block {
    let mut sums = [0.0; BLOCK];
    for (&weight, row) in weights.iter().zip(rows) {
        let weight = f64::from(weight);
        sums.iter_mut().zip(row).for_each(|(sum, v)| *sum += weight * v);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;
    use crate::simd::Level;

    #[test]
    fn every_vector_width_gives_the_same_bits() {
        let mut rows = [[0.0; BLOCK]; 5];
        let values = random::floats(80, 5 * BLOCK);
        // Rows of very different size, so that a wrong order would round differently.
        for (row, values) in rows.iter_mut().zip(values.chunks(BLOCK)) {
            load(values, 0, row);
        }
        rows[1].iter_mut().for_each(|v| *v *= 2.0f64.powi(60));
        rows[3].iter_mut().for_each(|v| *v *= -2.0f64.powi(58));
        let weights = random::floats(81, 5);
        let plain: Vec<f64> =
            (0..BLOCK).map(|k| (0..5).fold(0.0, |sum, i| sum + f64::from(weights[i]) * rows[i][k])).collect();
        for &level in Level::available() {
            assert_eq!(blend_at(level, &weights, &rows)[..], plain, "{level:?}");
        }
    }
}
