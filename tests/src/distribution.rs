//! Whether the tokens that a device draws have the distribution that they should have: a chi-square test.
//!
//! The wanted probabilities are computed here in F64 by the definition of the filters, with a sort of the whole vocabulary.

use std::cmp::Ordering;

use deepinfer_ops::args::FusedSample;
use deepinfer_ops::traits::SampleOps;
use deepinfer_ops::{Format, Tensor};

use crate::Tensors;

/// Filters of a draw; the default is none.
#[derive(Clone, Copy, Debug)]
pub struct Filters {
    /// As a probability; 0 is off.
    pub min_p: f64,
    /// 0 is off.
    pub top_k: usize,
    /// 1 is off.
    pub top_p: f64,
}

impl Default for Filters {
    fn default() -> Self {
        Self { min_p: 0.0, top_k: 0, top_p: 1.0 }
    }
}

/// Draws from one row of logits.
#[derive(Clone, Debug)]
pub struct Draws {
    /// The row.
    pub logits: Vec<f32>,
    /// What of it stays.
    pub filters: Filters,
    /// 1 / temperature.
    pub inv_temperature: f32,
    /// Of all draws; they differ in their position.
    pub seed: u64,
    /// How many.
    pub count: usize,
}

/// Observed and expected counts, compared.
#[derive(Clone, Copy, Debug)]
pub struct Agreement {
    /// Sum of (observed - expected)^2 / expected over the bins.
    pub chi_square: f64,
    /// Bins, less one.
    pub freedom: usize,
    /// Probability that a sum this large or larger comes from the wanted distribution.
    pub p: f64,
}

/// Expected draws of a bin; tokens with fewer are pooled.
const LEAST_EXPECTED: f64 = 50.0;

/// Draws in one call.
fn rows_of(vocabulary: usize) -> usize {
    ((1 << 21) / vocabulary).clamp(1, 1 << 12)
}

impl Draws {
    /// Draws on a device and compares with the wanted distribution.
    ///
    /// # Panics
    /// If the device fails, or draws a token that the filters drop.
    pub fn compare(&self, tensors: &Tensors) -> Agreement {
        let wanted = self.probabilities();
        let mut counts = vec![0; wanted.len()];
        for token in self.draw(tensors) {
            assert!(wanted[token] > 0.0, "token {token} was drawn, but the filters drop it");
            counts[token] += 1;
        }
        self.agreement(&wanted, &counts)
    }

    /// The probability of each token.
    ///
    /// # Panics
    /// If a token that min_p or top_p keeps or drops is in doubt: it would be otherwise at a share that differs by 1e-6.
    fn probabilities(&self) -> Vec<f64> {
        let scaled: Vec<f64> = self.logits.iter().map(|l| f64::from(l * self.inv_temperature)).collect();
        let mut order: Vec<usize> = (0..scaled.len()).collect();
        order.sort_by(|&a, &b| scaled[b].partial_cmp(&scaled[a]).unwrap_or(Ordering::Equal));
        let largest = scaled[order[0]];
        let weight = |v: usize| (scaled[v] - largest).exp();
        let Filters { min_p, top_k, top_p } = self.filters;
        let in_doubt = |v: &usize| min_p > 0.0 && (weight(*v) / min_p - 1.0).abs() < 1e-6;
        assert!(!order.iter().any(in_doubt), "choose another min_p");
        order.retain(|&v| weight(v) >= min_p);
        if top_k > 0 {
            order.truncate(top_k);
        }
        if top_p < 1.0 {
            let needed = order.iter().map(|&v| weight(v)).sum::<f64>() * f64::from(top_p as f32);
            let (mut sum, mut kept) = (0.0, 0);
            while sum < needed {
                sum += weight(order[kept]);
                kept += 1;
            }
            let doubt = 1e-6 * needed;
            assert!(sum - needed > doubt && needed - (sum - weight(order[kept - 1])) > doubt, "choose another top_p");
            order.truncate(kept);
        }
        let total: f64 = order.iter().map(|&v| weight(v)).sum();
        let mut out = vec![0.0; scaled.len()];
        order.iter().for_each(|&v| out[v] = weight(v) / total);
        out
    }

    /// The drawn tokens.
    fn draw(&self, tensors: &Tensors) -> Vec<usize> {
        let (vocabulary, Filters { min_p, top_k, top_p }) = (self.logits.len(), self.filters);
        let rows = rows_of(vocabulary).min(self.count);
        let each = |value: f32| tensors.f32(&[rows], &vec![value; rows]);
        let logits = tensors.f32(&[rows, vocabulary], &self.logits.repeat(rows));
        let inv_temperature = each(self.inv_temperature);
        let (min_p_log, top_p) = (each(min_p.ln() as f32), each(top_p as f32));
        let top_k = tensors.i32(&[rows], &vec![top_k as i32; rows]);
        let seed = tensors.i64(&[rows], &vec![self.seed as i64; rows]);
        let token = tensors.poisoned(Format::I32, &[rows]);
        let call = |position: &Tensor| {
            let args = FusedSample {
                logits: &logits,
                inv_temperature: &inv_temperature,
                seed: &seed,
                position,
                token: &token,
                child: None,
                min_p_log: (min_p > 0.0).then_some(&min_p_log),
                top_k: Some(&top_k),
                top_p: Some(&top_p),
            };
            tensors.0.fused_sample(&args).unwrap_or_else(|e| panic!("{e}"));
            tensors.ints(&token)
        };
        let positions = |first: usize| -> Vec<i32> { (first..first + rows).map(|p| p as i32).collect() };
        let drawn = (0..self.count).step_by(rows).flat_map(|first| call(&tensors.i32(&[rows], &positions(first))));
        drawn.take(self.count).map(|token| usize::try_from(token).expect("a row with finite logits")).collect()
    }

    /// Tokens by falling probability, pooled where few draws are expected.
    fn agreement(&self, wanted: &[f64], counts: &[usize]) -> Agreement {
        let mut order: Vec<usize> = (0..wanted.len()).filter(|&v| wanted[v] > 0.0).collect();
        order.sort_by(|&a, &b| wanted[b].total_cmp(&wanted[a]));
        let mut bins: Vec<[f64; 2]> = vec![[0.0; 2]];
        for v in order {
            if bins.last().is_some_and(|bin| bin[1] >= LEAST_EXPECTED) {
                bins.push([0.0; 2]);
            }
            let bin = bins.last_mut().expect("there is a first one");
            bin[0] += counts[v] as f64;
            bin[1] += wanted[v] * self.count as f64;
        }
        // What is left over joins the bin before it.
        if bins.len() > 1 && bins[bins.len() - 1][1] < LEAST_EXPECTED {
            let rest = bins.pop().expect("there are two");
            let last = bins.last_mut().expect("there is one");
            (last[0], last[1]) = (last[0] + rest[0], last[1] + rest[1]);
        }
        let chi_square = bins.iter().map(|[n, e]| (n - e).powi(2) / e).sum();
        let freedom = bins.len() - 1;
        Agreement { chi_square, freedom, p: upper_tail(chi_square, freedom) }
    }
}

/// The probability that chi-square with `freedom` degrees exceeds `x`: a finite sum for whole degrees. 1 for no degrees.
fn upper_tail(x: f64, freedom: usize) -> f64 {
    let half = x / 2.0;
    // Terms half^i e^-half / i! for i = 0, 1, ..., or at i = 1/2, 3/2, ... where the rest is an error function.
    let (mut sum, mut term, first) = match freedom {
        0 => return 1.0,
        _ if freedom.is_multiple_of(2) => (0.0, (-half).exp(), 1.0),
        _ => (libm::erfc(half.sqrt()), (-half).exp() * 2.0 * (half / std::f64::consts::PI).sqrt(), 1.5),
    };
    for i in 0..freedom / 2 {
        sum += term;
        term *= half / (first + i as f64);
    }
    sum
}

/// Distributions over 3, 50 and 129,280 tokens, plain and under each filter, with so many draws of the small ones and of the
/// large one.
pub fn draw_cases(small: usize, large: usize) -> Vec<(String, Draws)> {
    let three = [0.6f32, 0.3, 0.1].map(f32::ln).to_vec();
    let fifty = (1..=50).map(|rank| -(rank as f32).ln()).rev().collect();
    let vocabulary = (0..129_280u32).map(large_logit).collect();
    let off = Filters::default();
    let rows: [(&str, Vec<f32>, usize, [Filters; 3]); 3] = [
        (
            "3-way",
            three,
            small,
            [Filters { top_k: 2, ..off }, Filters { top_p: 0.8, ..off }, Filters { min_p: 0.3, ..off }],
        ),
        (
            "50-way",
            fifty,
            small,
            [Filters { top_k: 7, ..off }, Filters { top_p: 0.9, ..off }, Filters { min_p: 0.06, ..off }],
        ),
        (
            "129,280-way",
            vocabulary,
            large,
            [Filters { top_k: 500, ..off }, Filters { top_p: 0.9, ..off }, Filters { min_p: 0.01, ..off }],
        ),
    ];
    let mut cases = Vec::new();
    for (name, logits, count, [top_k, top_p, min_p]) in rows {
        let all = Filters { top_k: top_k.top_k, top_p: top_p.top_p, min_p: min_p.min_p };
        let filters = [("plain", off), ("top_k", top_k), ("top_p", top_p), ("min_p", min_p), ("all filters", all)];
        for (i, (filter, filters)) in filters.into_iter().enumerate() {
            // Temperature 1, and for all filters together 1.25.
            let inv_temperature = if i == 4 { 0.8 } else { 1.0 };
            let draws = Draws { logits: logits.clone(), filters, inv_temperature, seed: 2026 + i as u64, count };
            cases.push((format!("{name}, {filter}"), draws));
        }
    }
    cases
}

/// Logits as a language model has them: a few large ones, and a broad field of small ones.
fn large_logit(token: u32) -> f32 {
    let hash = token.wrapping_mul(2_654_435_761);
    let uniform = (hash >> 8) as f32 / (1 << 24) as f32;
    // The largest of 129,280 is near ln(129,280) * 1.5 above the middle.
    -1.5 * (1.0 - uniform).max(1e-7).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quantiles from tables.
    #[test]
    fn tails_of_chi_square() {
        for (freedom, x, p) in [
            (1, 3.841_459, 0.05),
            (1, 10.827_57, 0.001),
            (2, 18.420_68, 1e-4),
            (7, 24.321_89, 1e-3),
            (49, 66.338_65, 0.05),
            (100, 149.449_25, 1e-3),
        ] {
            let found = upper_tail(x, freedom);
            assert!((found / p - 1.0).abs() < 1e-4, "{freedom} degrees: {found} instead of {p}");
        }
        assert_eq!(upper_tail(0.0, 4), 1.0);
    }

    #[test]
    fn counts_of_another_distribution_do_not_agree() {
        let draws =
            Draws { logits: vec![0.0; 4], filters: Filters::default(), inv_temperature: 1.0, seed: 0, count: 4000 };
        let p = |counts: &[usize]| draws.agreement(&draws.probabilities(), counts).p;
        assert!(p(&[1010, 990, 1005, 995]) > 0.5);
        assert!(p(&[1150, 950, 950, 950]) < 1e-5);
    }

    #[test]
    fn filters_are_renormalised() {
        let logits: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125].iter().map(|p| p.ln()).collect();
        let of = |filters| {
            let draws = Draws { logits: logits.clone(), filters, inv_temperature: 1.0, seed: 0, count: 1 };
            draws.probabilities().iter().map(|p| (p * 12.0).round() as u32).collect::<Vec<_>>()
        };
        assert_eq!(of(Filters { top_k: 2, ..Filters::default() }), [8, 4, 0, 0]);
        assert_eq!(of(Filters { top_p: 0.7, ..Filters::default() }), [8, 4, 0, 0]);
        assert_eq!(of(Filters { min_p: 0.6, ..Filters::default() }), [12, 0, 0, 0]);
        // Of equal ones the first stays.
        assert_eq!(of(Filters { top_k: 3, ..Filters::default() })[3], 0);
    }
}
