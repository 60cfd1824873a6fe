//! The order of every sum.
//!
//! Element `k` is added to lane `k mod 8`, from the first element on; then the lanes are added pairwise:
//! `((0+4) + (2+6)) + ((1+5) + (3+7))`. All of it in F64, starting from +0. The order depends on the length alone, and
//! eight independent lanes are what a vector unit adds at once, so the fast form and the plain form are one.

use crate::simd::{LANES, Lanes, Plain, multiversion};

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
    Plain(lanes).join()
}

/// The sum of `a[k] * b[k]`, as plainly as it can be said.
#[cfg(test)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    sum_by(a.len(), |k| f64::from(a[k]) * f64::from(b[k]))
}

multiversion! {
    /// The sum of `a[k]^2`.
    fn sum_of_squares / sum_of_squares_at(a: &[f32]) -> f64 = sum_of_squares_body
}

#[inline(always)]
fn sum_of_squares_body<V: Lanes>(a: &[f32]) -> f64 {
    tile::<V, 1, 1>([a], [a])[0][0]
}

multiversion! {
    /// All products of rows of `x` with rows of `w`, both of `k` columns and contiguous:
    /// `out[i * n + j]` is the sum of `x[i, k] * w[j, k]`, where `n` is the number of rows of `w`.
    ///
    /// # Panics
    /// If a length does not fit; `k` must not be 0.
    fn products / products_at(x: &[f32], w: &[f32], k: usize, out: &mut [f64]) = products_body
}

#[inline(always)]
fn products_body<V: Lanes>(x: &[f32], w: &[f32], k: usize, out: &mut [f64]) {
    let (m, n) = (x.len() / k, w.len() / k);
    assert!(x.len() == m * k && w.len() == n * k && out.len() == m * n, "{m} x {n} products of {k} columns");
    // An addition takes four cycles and two start in each: eight sums at once keep the adders busy. They hold their
    // lanes in registers.
    let mut i = 0;
    while i + 4 <= m {
        columns::<V, 4, 2>(x, w, k, i, out);
        i += 4;
    }
    while i < m {
        columns::<V, 1, 4>(x, w, k, i, out);
        i += 1;
    }
}

/// Rows `i .. i + M` of the result, `N` columns at a time.
#[inline(always)]
fn columns<V: Lanes, const M: usize, const N: usize>(x: &[f32], w: &[f32], k: usize, i: usize, out: &mut [f64]) {
    let n = w.len() / k;
    let rows: [&[f32]; M] = std::array::from_fn(|r| &x[(i + r) * k..][..k]);
    let column = |j: usize| &w[j * k..][..k];
    let mut j = 0;
    while j + N <= n {
        let tile = tile::<V, M, N>(rows, std::array::from_fn(|c| column(j + c)));
        for (r, values) in tile.iter().enumerate() {
            out[(i + r) * n + j..][..N].copy_from_slice(values);
        }
        j += N;
    }
    while j < n {
        let tile = tile::<V, M, 1>(rows, [column(j)]);
        for (r, values) in tile.iter().enumerate() {
            out[(i + r) * n + j] = values[0];
        }
        j += 1;
    }
}

/// `M x N` sums of products at once, each in the order of this module. The rows have equal lengths.
#[inline(always)]
fn tile<V: Lanes, const M: usize, const N: usize>(x: [&[f32]; M], w: [&[f32]; N]) -> [[f64; N]; M] {
    let mut sums = [[V::splat(0.0); N]; M];
    let chunks = x[0].len() / LANES;
    // The same bound for all removes the checks from the loop.
    let x_whole = x.map(|row| &row.as_chunks::<LANES>().0[..chunks]);
    let w_whole = w.map(|row| &row.as_chunks::<LANES>().0[..chunks]);
    for chunk in 0..chunks {
        let (mut x, mut w) = ([&[0.0; LANES]; M], [&[0.0; LANES]; N]);
        (0..M).for_each(|i| x[i] = &x_whole[i][chunk]);
        (0..N).for_each(|j| w[j] = &w_whole[j][chunk]);
        add_chunk(&mut sums, x, w);
    }
    let rest = chunks * LANES;
    if rest < x[0].len() {
        // The last lanes add a product of zeros, which changes no sum: none is -0.
        let (x, w) = (x.map(|row| padded(&row[rest..])), w.map(|row| padded(&row[rest..])));
        add_chunk(&mut sums, x.each_ref(), w.each_ref());
    }
    let mut joined = [[0.0; N]; M];
    for (joined, sums) in joined.iter_mut().zip(sums) {
        for (joined, sum) in joined.iter_mut().zip(sums) {
            *joined = sum.join();
        }
    }
    joined
}

/// Adds the products of eight columns. Plain loops: a closure would hide the vectors from the optimiser.
#[inline(always)]
fn add_chunk<V: Lanes, const M: usize, const N: usize>(
    sums: &mut [[V; N]; M],
    x: [&[f32; LANES]; M],
    w: [&[f32; LANES]; N],
) {
    let mut wide = [V::splat(0.0); N];
    for (wide, w) in wide.iter_mut().zip(w) {
        *wide = V::widen(w);
    }
    for (sums, x) in sums.iter_mut().zip(x) {
        let x = V::widen(x);
        for (sum, w) in sums.iter_mut().zip(wide) {
            *sum = x.mul_add(w, *sum);
        }
    }
}

/// Fewer than eight values, and zeros.
#[inline(always)]
fn padded(values: &[f32]) -> [f32; LANES] {
    let mut chunk = [0.0; LANES];
    chunk[..values.len()].copy_from_slice(values);
    chunk
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;
    use crate::simd::Level;

    /// The order as the module states it, one addition at a time.
    fn in_order(terms: impl Iterator<Item = f64>) -> f64 {
        let mut lanes = [0.0; 8];
        terms.enumerate().for_each(|(k, term)| lanes[k % 8] += term);
        let [a, b, c, d, e, f, g, h] = lanes;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }

    /// Values whose sum shows the order: large ones that cancel beside small ones, zeros of both signs, subnormals.
    fn adversarial(seed: u64, count: usize) -> Vec<f32> {
        let values = random::floats(seed, count);
        let choices = random::indices(seed, count, 8);
        let factors = [1.0, -1.0, 1e30, -1e30, 1e-30, 0.0, -0.0, 1e-42];
        values.iter().zip(choices).map(|(v, choice)| v * factors[choice as usize]).collect()
    }

    fn same(a: f64, b: f64) -> bool {
        a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
    }

    #[test]
    fn terms_are_added_in_the_stated_order() {
        // Products use nearly all bits of F64, so that additions round and the order shows.
        let terms = |len: usize| -> Vec<f64> {
            let (a, b) = (adversarial(1, len), adversarial(6, len));
            a.into_iter().zip(b).map(|(a, b)| f64::from(a) * f64::from(b)).collect()
        };
        for len in (0..40).chain([255, 256, 1000]) {
            let terms = terms(len);
            assert!(same(sum_by(len, |k| terms[k]), in_order(terms.iter().copied())), "{len} terms");
        }
        let terms = terms(1000);
        assert!(!same(terms.iter().sum(), in_order(terms.iter().copied())), "the terms show no order");
    }

    #[test]
    fn every_vector_width_gives_the_bits_of_the_plain_order() {
        for &level in Level::available() {
            for len in (1..40).chain([255, 256, 1000]) {
                let (mut a, b) = (adversarial(2, len), adversarial(3, len));
                for last in [a[len - 1], f32::NAN, f32::INFINITY, f32::MAX] {
                    a[len - 1] = last;
                    let mut product = [f64::NAN];
                    products_at(level, &a, &b, len, &mut product);
                    assert!(same(product[0], dot(&a, &b)), "{level:?}, {len}, {last}");
                    assert!(same(sum_of_squares_at(level, &a), dot(&a, &a)), "{level:?}, {len}, {last}");
                }
            }
            assert_eq!(sum_of_squares_at(level, &[]).to_bits(), 0.0_f64.to_bits());
        }
    }

    #[test]
    fn products_are_the_dots_of_all_pairs() {
        for &level in Level::available() {
            for k in [1, 7, 8, 32, 100] {
                for (m, n) in [(1, 1), (3, 5), (4, 2), (4, 3), (9, 11), (0, 3), (3, 0)] {
                    let (x, w) = (adversarial(4, m * k), adversarial(5, n * k));
                    let mut out = vec![f64::NAN; m * n];
                    products_at(level, &x, &w, k, &mut out);
                    for (at, &value) in out.iter().enumerate() {
                        let expected = dot(&x[at / n * k..][..k], &w[at % n * k..][..k]);
                        assert!(same(value, expected), "{level:?}, {m} x {n} x {k}, element {at}");
                    }
                }
            }
        }
    }
}
