//! The order of every sum.
//!
//! Element `k` is added to lane `k mod 8`, from the first element on; then the lanes are added pairwise:
//! `((0+4) + (2+6)) + ((1+5) + (3+7))`. All of it in F64, starting from +0. The order depends on the length alone, and
//! eight independent lanes are what a vector unit adds at once, so the fast form and the plain form are one.

use crate::simd::{mul_add, multiversion};

/// Lanes of a sum.
pub(crate) const LANES: usize = 8;

/// Adds the lanes.
#[inline(always)]
pub(crate) fn join(l: [f64; LANES]) -> f64 {
    ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
}

/// The sum of `term(0) .. term(len - 1)`.
#[inline(always)]
pub(crate) fn sum_by(len: usize, term: impl Fn(usize) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    let whole = len - len % LANES;
    for start in (0..whole).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += term(start + lane);
        }
    }
    for (sum, k) in lanes.iter_mut().zip(whole..len) {
        *sum += term(k);
    }
    join(lanes)
}

multiversion! {
    /// The sum of `a[k] * b[k]`.
    ///
    /// # Panics
    /// If the lengths differ.
    fn dot / dot_at(a: &[f32], b: &[f32]) -> f64 = dot_body
}

multiversion! {
    /// The sum of `a[k]^2`.
    fn sum_of_squares / sum_of_squares_at(a: &[f32]) -> f64 = sum_of_squares_body
}

#[inline(always)]
fn dot_body<const FUSED: bool>(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    tile::<1, 1, FUSED>([a], [b])[0][0]
}

#[inline(always)]
fn sum_of_squares_body<const FUSED: bool>(a: &[f32]) -> f64 {
    dot_body::<FUSED>(a, a)
}

multiversion! {
    /// All products of rows of `x` with rows of `w`, both of `k` columns and contiguous:
    /// `out[i * n + j]` is [`dot`]`(x row i, w row j)`, where `n` is the number of rows of `w`.
    ///
    /// # Panics
    /// If a length does not fit; `k` must not be 0.
    fn products / products_at(x: &[f32], w: &[f32], k: usize, out: &mut [f64]) = products_body
}

#[inline(always)]
fn products_body<const FUSED: bool>(x: &[f32], w: &[f32], k: usize, out: &mut [f64]) {
    let (m, n) = (x.len() / k, w.len() / k);
    assert!(x.len() == m * k && w.len() == n * k && out.len() == m * n, "{m} x {n} products of {k} columns");
    // Four accumulators of eight lanes hide the latency of an addition; eight also save loads.
    let mut i = 0;
    while i + 4 <= m {
        columns::<4, 2, FUSED>(x, w, k, i, out);
        i += 4;
    }
    while i < m {
        columns::<1, 4, FUSED>(x, w, k, i, out);
        i += 1;
    }
}

/// Rows `i .. i + M` of the result, `N` columns at a time.
#[inline(always)]
fn columns<const M: usize, const N: usize, const FUSED: bool>(
    x: &[f32],
    w: &[f32],
    k: usize,
    i: usize,
    out: &mut [f64],
) {
    let n = w.len() / k;
    let row = |of: usize| &x[of * k..][..k];
    let column = |of: usize| &w[of * k..][..k];
    let rows = std::array::from_fn::<_, M, _>(|r| row(i + r));
    let mut j = 0;
    while j + N <= n {
        let tile = tile::<M, N, FUSED>(rows, std::array::from_fn(|c| column(j + c)));
        for (r, values) in tile.iter().enumerate() {
            out[(i + r) * n + j..][..N].copy_from_slice(values);
        }
        j += N;
    }
    while j < n {
        let tile = tile::<M, 1, FUSED>(rows, [column(j)]);
        for (r, values) in tile.iter().enumerate() {
            out[(i + r) * n + j] = values[0];
        }
        j += 1;
    }
}

/// `M x N` sums of products at once, each in the order of this module.
#[inline(always)]
fn tile<const M: usize, const N: usize, const FUSED: bool>(x: [&[f32]; M], w: [&[f32]; N]) -> [[f64; N]; M] {
    let mut lanes = [[[0.0; LANES]; N]; M];
    let x_chunks = x.map(|row| row.as_chunks::<LANES>());
    let w_chunks = w.map(|row| row.as_chunks::<LANES>());
    // Equal lengths, said in a way that removes the bounds checks.
    let chunks = x_chunks[0].0.len();
    let x_whole = x_chunks.map(|(whole, _)| &whole[..chunks]);
    let w_whole = w_chunks.map(|(whole, _)| &whole[..chunks]);
    for chunk in 0..chunks {
        let x = x_whole.map(|row| row[chunk].map(f64::from));
        for (j, w) in w_whole.iter().enumerate() {
            let w = w[chunk].map(f64::from);
            for i in 0..M {
                for lane in 0..LANES {
                    lanes[i][j][lane] = mul_add::<FUSED>(x[i][lane], w[lane], lanes[i][j][lane]);
                }
            }
        }
    }
    for (i, (_, x)) in x_chunks.iter().enumerate() {
        for (j, (_, w)) in w_chunks.iter().enumerate() {
            for (lane, (&x, &w)) in x.iter().zip(*w).enumerate() {
                lanes[i][j][lane] = mul_add::<FUSED>(f64::from(x), f64::from(w), lanes[i][j][lane]);
            }
        }
    }
    lanes.map(|row| row.map(join))
}
