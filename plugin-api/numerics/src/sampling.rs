#![doc = include_str!("../SAMPLING.md")]

use crate::fixed_exp::weight;
use crate::gumbel::{self, Domain};

/// Tokens up to which the weights of a row sum to at most 2^63.
pub const TOP_P_VOCABULARY: usize = 1 << 17;

/// What a draw depends on besides the logits.
///
/// The functions here are the page in its plainest form: they sort all candidates. Kernels are held to them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Draw {
    /// 1 / temperature: finite and not negative; 0 is greedy.
    pub inv_temperature: f32,
    /// The seed of the request.
    pub seed: u64,
    /// The absolute index, in the sequence, of the token being drawn.
    pub position: u32,
    /// Which of several continuations of one request.
    pub child: u32,
    /// ln(min_p), at most 0; -infinity is off.
    pub min_p_log: f32,
    /// Tokens that top_k keeps; 0 is off.
    pub top_k: u32,
    /// Share of the probability that top_p keeps, above 0; 1 is off.
    pub top_p: f32,
}

impl Draw {
    /// A draw without filters.
    #[must_use]
    pub fn unfiltered(inv_temperature: f32, seed: u64, position: u32) -> Self {
        Self { inv_temperature, seed, position, child: 0, min_p_log: f32::NEG_INFINITY, top_k: 0, top_p: 1.0 }
    }

    /// The tokens that the filters leave, sorted by `s` descending and id ascending; none if the row has no token, all
    /// candidates by id if it is greedy. `order` is scratch of the length of `logits`.
    ///
    /// # Panics
    /// If `order` has another length than `logits`, or there is a top_p over more than [`TOP_P_VOCABULARY`] tokens.
    pub fn survivors<'o>(&self, logits: &[f32], order: &'o mut [u32]) -> &'o [u32] {
        assert_eq!(order.len(), logits.len(), "scratch and logits have different lengths");
        assert!(self.top_p == 1.0 || logits.len() <= TOP_P_VOCABULARY, "top_p over {} tokens", logits.len());
        if !logits.iter().all(|&logit| logit < f32::INFINITY) {
            return &[];
        }
        let mut kept = 0;
        for (v, _) in (0..).zip(logits).filter(|(_, logit)| **logit > f32::NEG_INFINITY) {
            order[kept] = v;
            kept += 1;
        }
        if self.inv_temperature == 0.0 {
            return &order[..kept];
        }
        let s = |v: u32| logits[v as usize] * self.inv_temperature;
        order[..kept].sort_unstable_by(|&a, &b| if s(a) == s(b) { a.cmp(&b) } else { s(b).total_cmp(&s(a)) });
        let Some(&first) = order[..kept].first() else { return &[] };
        let largest = s(first);
        let bar = largest + self.min_p_log;
        kept = order[..kept].iter().position(|&v| s(v) < bar).unwrap_or(kept);
        if self.top_k > 0 {
            kept = kept.min(self.top_k as usize);
        }
        if self.top_p < 1.0 {
            let weights = || order[..kept].iter().map(|&v| weight(largest - s(v)));
            let needed = mass_needed(weights().sum(), self.top_p);
            // What the weights before each token sum to.
            let before = weights().scan(0, |mass, weight| Some(std::mem::replace(mass, *mass + weight)));
            kept = before.take_while(|&mass| mass < needed).count();
        }
        &order[..kept]
    }

    /// The token that is drawn; `None` if the row has none. `order` is scratch of the length of `logits`.
    ///
    /// # Panics
    /// As [`Draw::survivors`].
    #[must_use]
    pub fn token(&self, logits: &[f32], order: &mut [u32]) -> Option<u32> {
        let value = |v: u32| match logits[v as usize] {
            logit if self.inv_temperature == 0.0 => logit,
            logit => {
                let noise = gumbel::noise(self.seed, self.position, v, Domain::TargetDraw, self.child);
                logit * self.inv_temperature + noise
            }
        };
        self.survivors(logits, order).iter().copied().reduce(|best, v| {
            let (a, b) = (value(best), value(v));
            if b > a || (b == a && v < best) { v } else { best }
        })
    }
}

/// `ceil(total * top_p)`, exactly: what the weights of the tokens that top_p keeps sum to at least.
///
/// `total` is at most 2^63 and `top_p` between 0 and 1, both above 0.
#[must_use]
pub const fn mass_needed(total: u64, top_p: f32) -> u64 {
    let bits = top_p.to_bits();
    // A subnormal number has the exponent of the smallest normal one and no leading bit.
    let (exponent, mantissa) = match bits >> 23 {
        0 => (1, bits),
        exponent => (exponent, bits & 0x7F_FFFF | 0x80_0000),
    };
    let (product, shift) = (total as u128 * mantissa as u128, 150 - exponent);
    // The product has at most 87 bits.
    if shift > 87 { 1 } else { product.div_ceil(1 << shift) as u64 }
}
