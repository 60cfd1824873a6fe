//! Products of rows with the rows of a weight matrix, cut into independent pieces.
//!
//! Every element is the sum of the products of its two rows in the order of [`sum`], rounded to F32 and then to the format
//! of the output, so the cut decides speed and nothing else. A weight row is decoded once per piece, into scratch that holds a few rows.

use std::ops::Range;

use deepinfer_plugin_api::sdk::tensor::{FloatRowMut, FloatRows};

use crate::parallel;
use crate::sum;
use crate::weights::{Weights, load_columns};

/// Rows of the input in a piece: enough to spread the cost of decoding weights, few enough to stay in the cache.
const ROWS: usize = 64;

/// F32 values of decoded weights in the scratch of a piece.
const WEIGHT_VALUES: usize = 8192;

/// Rough times, for the cut alone: decoding one weight, and one multiplication with its addition.
const DECODE_PS: usize = 150;
const MULTIPLY_PS: usize = 60;

/// One matrix product: `out[i, j] = x[rows[i], columns] . weight[outputs[j], :]`.
pub(crate) struct Product<'a> {
    pub(crate) x: FloatRows<'a>,
    /// Rows of `x`.
    pub(crate) rows: Range<usize>,
    /// Columns of `x`, as many as the weights have.
    pub(crate) columns: Range<usize>,
    pub(crate) weight: Weights<'a>,
    /// Rows of `weight`.
    pub(crate) outputs: Range<usize>,
    /// One row per row of `x`, one element per output.
    pub(crate) out: Vec<FloatRowMut<'a>>,
}

/// Runs `products`, on several threads if that pays.
pub(crate) fn run(products: Vec<Product<'_>>) {
    let cost_ps: usize = products.iter().map(Product::cost_ps).sum();
    let piece_ps = cost_ps.div_ceil(parallel::pieces(cost_ps / 1000));
    let pieces: Vec<_> = products.into_iter().flat_map(|product| product.cut(piece_ps)).collect();
    parallel::for_each_row_with(pieces, piece_ps / 1000, Scratch::default, |scratch, _, piece| piece.run(scratch));
}

/// Buffers of a piece: input rows, weight rows, one input row before its columns are taken, and sums.
#[derive(Default)]
struct Scratch {
    x: Vec<f32>,
    weight: Vec<f32>,
    row: Vec<f32>,
    sums: Vec<f64>,
}

impl<'a> Product<'a> {
    fn cost_ps(&self) -> usize {
        let weights = self.columns.len() * self.outputs.len();
        weights * (DECODE_PS * self.rows.len().div_ceil(ROWS) + MULTIPLY_PS * self.rows.len())
    }

    /// Pieces of at most [`ROWS`] rows and of about `piece_ps`.
    fn cut(mut self, piece_ps: usize) -> Vec<Product<'a>> {
        let blocks = self.rows.len().div_ceil(ROWS);
        let ranges = self.cost_ps().div_ceil(piece_ps.max(1)).div_ceil(blocks.max(1)).max(1);
        let width = self.outputs.len().div_ceil(ranges).max(1);
        let mut pieces = Vec::with_capacity(blocks * ranges);
        for start in self.rows.clone().step_by(ROWS) {
            let rows = start..self.rows.end.min(start + ROWS);
            let mut block: Vec<_> = self.out.drain(..rows.len()).collect();
            for first in self.outputs.clone().step_by(width) {
                let outputs = first..self.outputs.end.min(first + width);
                let out = block.iter_mut().map(|row| take_front(row, outputs.len())).collect();
                let (rows, columns) = (rows.clone(), self.columns.clone());
                pieces.push(Product { x: self.x, rows, columns, weight: self.weight, outputs, out });
            }
        }
        pieces
    }

    fn run(mut self, scratch: &mut Scratch) {
        let k = self.columns.len();
        if k == 0 {
            self.out.iter_mut().for_each(FloatRowMut::zero);
            return;
        }
        scratch.x.resize(self.rows.len() * k, 0.0);
        for (row, out) in self.rows.clone().zip(scratch.x.chunks_exact_mut(k)) {
            load_columns(&self.x, row, self.columns.clone(), out, &mut scratch.row);
        }
        let step = (WEIGHT_VALUES / k).clamp(4, 64);
        for first in self.outputs.clone().step_by(step) {
            let outputs = first..self.outputs.end.min(first + step);
            scratch.weight.resize(outputs.len() * k, 0.0);
            for (row, out) in outputs.clone().zip(scratch.weight.chunks_exact_mut(k)) {
                self.weight.decode(row, out);
            }
            scratch.sums.resize(self.rows.len() * outputs.len(), 0.0);
            sum::products(&scratch.x, &scratch.weight, k, &mut scratch.sums);
            let at = first - self.outputs.start;
            for (out, sums) in self.out.iter_mut().zip(scratch.sums.chunks_exact(outputs.len())) {
                store(out, at, sums);
            }
        }
    }
}

/// Rounds `sums` into `out[at ..]`.
fn store(out: &mut FloatRowMut<'_>, at: usize, sums: &[f64]) {
    match out {
        FloatRowMut::F32(row) => row[at..].iter_mut().zip(sums).for_each(|(out, &sum)| *out = sum as f32),
        FloatRowMut::Bf16(_) => sums.iter().enumerate().for_each(|(j, &sum)| out.set(at + j, sum as f32)),
    }
}

/// Splits the first `count` elements off.
pub(crate) fn take_front<'a>(row: &mut FloatRowMut<'a>, count: usize) -> FloatRowMut<'a> {
    match row {
        FloatRowMut::F32(slice) => {
            let (front, back) = std::mem::take(slice).split_at_mut(count);
            *slice = back;
            FloatRowMut::F32(front)
        }
        FloatRowMut::Bf16(slice) => {
            let (front, back) = std::mem::take(slice).split_at_mut(count);
            *slice = back;
            FloatRowMut::Bf16(front)
        }
    }
}
