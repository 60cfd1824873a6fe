//! FP8 with one UE8M0 scale per 32 x 32 tile: the stored format of dense weights.
//!
//! A matrix has `rows` x `cols` elements in row-major order. Its scales form a row-major matrix of
//! `ceil(rows / 32)` x `ceil(cols / 32)` bytes; tiles at the lower and right edges may be partial. Scale rule, rounding and
//! the treatment of NaN and infinity are those of an FP8 [`group`], with the tile as the group.

use std::ops::Range;

use crate::{group, scale, ue8m0};

/// Rows and columns of a full tile.
pub const TILE: usize = 32;

/// The number of scale bytes of a matrix: `ceil(rows / 32) * ceil(cols / 32)`.
#[inline]
#[must_use]
pub const fn scale_count(rows: usize, cols: usize) -> usize {
    rows.div_ceil(TILE) * cols.div_ceil(TILE)
}

/// Quantises the matrix `w` to E4M3 `codes` of the same shape and one scale byte per tile.
///
/// # Panics
///
/// If `w` or `codes` do not hold `rows * cols` elements or `scales` does not hold [`scale_count`] bytes.
pub fn quantize_fp8_tiles(w: &[f32], rows: usize, cols: usize, codes: &mut [u8], scales: &mut [u8]) {
    assert_shape(rows, cols, w.len(), codes.len(), scales.len());
    for (scale, tile) in scales.iter_mut().zip(tiles(rows, cols)) {
        let largest = tile.segments(cols).map(|segment| scale::amax(&w[segment]));
        // Infinity and NaN of one row must survive: take the maximum with the same function.
        *scale = scale::fp8(largest.fold(0.0, |a, b| scale::amax(&[a, b])));
        let reciprocal = ue8m0::decode_reciprocal(*scale);
        for segment in tile.segments(cols) {
            group::encode_fp8(&w[segment.clone()], reciprocal, &mut codes[segment]);
        }
    }
}

/// The values of a tiled matrix: `out[r, c] = e4m3(codes[r, c]) * ue8m0(scales[r / 32, c / 32])`, rounded once (exact unless
/// the product leaves the range of binary32).
///
/// # Panics
///
/// If `codes` or `out` do not hold `rows * cols` elements or `scales` does not hold [`scale_count`] bytes.
pub fn dequantize_fp8_tiles(codes: &[u8], scales: &[u8], rows: usize, cols: usize, out: &mut [f32]) {
    assert_shape(rows, cols, out.len(), codes.len(), scales.len());
    for (&scale, tile) in scales.iter().zip(tiles(rows, cols)) {
        let scale = ue8m0::decode(scale);
        for segment in tile.segments(cols) {
            group::decode_fp8(&codes[segment.clone()], scale, &mut out[segment]);
        }
    }
}

/// The part of a matrix that shares a scale.
struct Tile {
    rows: Range<usize>,
    cols: Range<usize>,
}

impl Tile {
    /// The places of the rows of the tile in the row-major storage of a matrix with `stride` columns.
    fn segments(&self, stride: usize) -> impl Iterator<Item = Range<usize>> + use<'_> {
        self.rows.clone().map(move |row| row * stride + self.cols.start..row * stride + self.cols.end)
    }
}

/// All tiles of a matrix in the order of their scales.
fn tiles(rows: usize, cols: usize) -> impl Iterator<Item = Tile> {
    let edges = |length: usize| (0..length).step_by(TILE).map(move |start| start..length.min(start + TILE));
    edges(rows).flat_map(move |rows| edges(cols).map(move |cols| Tile { rows: rows.clone(), cols }))
}

fn assert_shape(rows: usize, cols: usize, values: usize, codes: usize, scales: usize) {
    let (elements, tiles) = (rows * cols, scale_count(rows, cols));
    assert!(
        values == elements && codes == elements && scales == tiles,
        "a {rows} x {cols} matrix has {elements} values, {elements} codes and {tiles} tile scales, \
         got {values}, {codes} and {scales}",
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(w: &[f32], rows: usize, cols: usize) -> (Vec<u8>, Vec<u8>, Vec<f32>) {
        let (mut codes, mut scales, mut out) = (vec![0; w.len()], vec![0; scale_count(rows, cols)], vec![0.0; w.len()]);
        quantize_fp8_tiles(w, rows, cols, &mut codes, &mut scales);
        dequantize_fp8_tiles(&codes, &scales, rows, cols, &mut out);
        (codes, scales, out)
    }

    #[test]
    fn a_nan_marks_its_tile_alone() {
        let (rows, cols) = (40, 70);
        let mut w = vec![1.0; rows * cols];
        w[33 * cols + 65] = -f32::NAN;
        let (codes, scales, out) = round_trip(&w, rows, cols);
        assert_eq!(scales, [119, 119, 119, 119, 119, ue8m0::NAN]);
        assert_eq!([codes[33 * cols + 65], codes[33 * cols + 66]], [0xFF, 0x7F]);
        for (i, value) in out.iter().enumerate() {
            assert_eq!(value.is_nan(), i / cols >= 32 && i % cols >= 64, "element {i}");
        }
    }

    #[test]
    fn empty_matrices_have_no_scales() {
        for (rows, cols) in [(0, 0), (0, 40), (40, 0)] {
            assert_eq!(round_trip(&[], rows, cols), (vec![], vec![], vec![]));
        }
    }

    #[test]
    #[should_panic(expected = "a 33 x 2 matrix has 66 values, 66 codes and 2 tile scales, got 66, 66 and 1")]
    fn too_few_scales_panic() {
        quantize_fp8_tiles(&[0.0; 66], 33, 2, &mut [0; 66], &mut [0; 1]);
    }

    proptest! {
        /// Element by element, as the definition reads.
        #[test]
        fn codes_and_scales_follow_the_definition(
            rows in 1usize..70, cols in 1usize..70, seed in prop::collection::vec(-1e3f32..1e3, 97),
        ) {
            let w: Vec<f32> = (0..rows * cols).map(|i| seed[i % 97] * 2f32.powi(i as i32 % 40 - 20)).collect();
            let (codes, scales, out) = round_trip(&w, rows, cols);
            let across = cols.div_ceil(TILE);
            let mut largest = vec![0f32; scales.len()];
            for (i, x) in w.iter().enumerate() {
                let tile = i / cols / TILE * across + i % cols / TILE;
                largest[tile] = largest[tile].max(x.abs());
            }
            for (i, x) in w.iter().enumerate() {
                let tile = i / cols / TILE * across + i % cols / TILE;
                prop_assert_eq!(scales[tile], scale::fp8(largest[tile]));
                let scale = ue8m0::decode(scales[tile]);
                prop_assert_eq!(codes[i], crate::e4m3::encode(x / scale));
                prop_assert_eq!(out[i], crate::e4m3::decode(codes[i]) * scale);
            }
        }
    }
}
