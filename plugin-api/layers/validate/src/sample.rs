//! Which calls are shadowed.

use std::collections::{HashMap, HashSet};

/// Takes the first call of each class of an implementation, and of the others one in so many per op, by a seed.
#[derive(Debug)]
pub(crate) struct Sampler {
    every: u64,
    seed: u64,
    /// Implementations with the classes that were seen.
    seen: HashSet<(usize, Vec<u64>)>,
    counts: HashMap<u32, u64>,
}

impl Sampler {
    pub(crate) fn new(every: u64, seed: u64) -> Self {
        Self { every, seed, seen: HashSet::new(), counts: HashMap::new() }
    }

    /// Whether the next call of an op, by this implementation and of this class, is taken.
    pub(crate) fn takes(&mut self, op: u32, implementation: usize, class: Vec<u64>) -> bool {
        let count = self.counts.entry(op).or_default();
        *count += 1;
        let is_drawn = mix(self.seed ^ u64::from(op) << 32 ^ *count).is_multiple_of(self.every);
        self.seen.insert((implementation, class)) || is_drawn
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014).
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(every: u64, seed: u64) -> Vec<bool> {
        let mut sampler = Sampler::new(every, seed);
        (0..6400).map(|_| sampler.takes(4, 0, vec![1])).collect()
    }

    #[test]
    fn the_share_is_kept_and_the_seed_decides() {
        let count = |taken: &[bool]| taken.iter().filter(|&&is_taken| is_taken).count();
        assert_eq!(count(&taken(1, 0)), 6400);
        assert!((60..140).contains(&count(&taken(64, 0))), "{}", count(&taken(64, 0)));
        assert_eq!(taken(64, 3), taken(64, 3));
        assert_ne!(taken(64, 3), taken(64, 4));
    }

    #[test]
    fn the_first_of_each_class_is_always_taken() {
        let mut sampler = Sampler::new(u64::MAX, 1);
        for (op, implementation, class, wanted) in
            [(1, 0, 5, true), (1, 0, 5, false), (1, 1, 5, true), (1, 0, 6, true), (2, 2, 5, true), (1, 0, 6, false)]
        {
            assert_eq!(sampler.takes(op, implementation, vec![class]), wanted);
        }
    }
}
