//! Log-probabilities and largest logits of a row.

use serde::Serialize;

/// The log-probability of a token and of the best alternatives, from the raw logits, before temperature.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenLogprob {
    /// The token.
    pub token_id: u32,
    /// Its natural log-probability.
    pub logprob: f32,
    /// The best tokens with theirs, best first.
    pub top: Vec<(u32, f32)>,
}

/// The `k` largest logits, largest first; of equal ones the lower id comes first.
pub(crate) fn largest(logits: &[f32], k: usize) -> Vec<(u32, f32)> {
    let k = k.min(logits.len());
    if k == 0 {
        return Vec::new();
    }
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let order = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if k < ids.len() {
        ids.select_nth_unstable_by(k - 1, order);
        ids.truncate(k);
    }
    ids.sort_unstable_by(order);
    ids.into_iter().map(|id| (id, logits[id as usize])).collect()
}

/// Log-probabilities of `token` and of the `k` best tokens. The sum runs in F64 over ascending ids.
pub(crate) fn logprob(logits: &[f32], token: u32, k: usize) -> TokenLogprob {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    let norm = f64::from(max) + sum.ln();
    let of = |logit: f32| (f64::from(logit) - norm) as f32;
    TokenLogprob {
        token_id: token,
        logprob: of(logits[token as usize]),
        top: largest(logits, k).into_iter().map(|(id, logit)| (id, of(logit))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_come_first_and_ties_go_to_the_lower_id() {
        let logits = [1.0, 3.0, -2.0, 3.0, 2.0];
        assert_eq!(largest(&logits, 3), [(1, 3.0), (3, 3.0), (4, 2.0)]);
        assert_eq!(largest(&logits, 9).len(), 5);
        assert!(largest(&logits, 0).is_empty());
    }

    #[test]
    fn probabilities_sum_to_one() {
        let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.37).sin() * 20.0).collect();
        let all = logprob(&logits, 7, 50);
        let sum: f64 = all.top.iter().map(|(_, lp)| f64::from(*lp).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert_eq!(all.top.iter().find(|(id, _)| *id == 7).map(|(_, lp)| *lp), Some(all.logprob));
    }
}
