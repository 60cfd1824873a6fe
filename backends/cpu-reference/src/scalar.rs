//! Scalar functions in f64, built on `libm` so that every platform computes the same bits.

/// `1 / (1 + exp(-x))`. Large magnitudes go to 0 and 1, NaN stays NaN.
#[inline]
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

/// `ln(1 + exp(x))`, and `x` itself above 20 as PyTorch does: there the two differ by less than 2e-10 of `x`.
#[inline]
pub(crate) fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { libm::log1p(libm::exp(x)) }
}

/// `1 / sqrt(mean + eps)` for the sum of `count` squares.
#[inline]
pub(crate) fn inverse_root_mean(sum_of_squares: f64, count: usize, eps: f32) -> f64 {
    1.0 / (sum_of_squares / count as f64 + f64::from(eps)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sigmoid_limits() {
        assert_eq!([sigmoid(f64::NEG_INFINITY), sigmoid(-800.0), sigmoid(0.0)], [0.0, 0.0, 0.5]);
        assert_eq!([sigmoid(f64::INFINITY), sigmoid(800.0)], [1.0, 1.0]);
        assert!(sigmoid(f64::NAN).is_nan());
        assert!((sigmoid(1.5) + sigmoid(-1.5) - 1.0).abs() < 1e-15);
    }

    #[test]
    fn softplus_limits() {
        assert_eq!(softplus(0.0), std::f64::consts::LN_2);
        assert_eq!(softplus(f64::NEG_INFINITY), 0.0);
        assert_eq!(softplus(f64::INFINITY), f64::INFINITY);
        assert!(softplus(f64::NAN).is_nan());
        let (below, above) = (softplus(20.0), softplus(20.0f64.next_up()));
        assert!(below > above && (below - above) / above < 2e-10);
    }
}
