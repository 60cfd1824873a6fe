//! Choices that follow from a seed: Philox, counted.

use deepinfer_numerics::philox::philox4x32_10;

/// What is chosen; choices of different kinds are independent.
#[derive(Clone, Copy)]
pub(crate) enum Domain {
    Request = 1,
    SharedBeginning = 2,
    Cell = 3,
}

/// A sequence of choices.
pub(crate) struct Noise {
    key: [u32; 2],
    counter: [u32; 4],
    words: [u32; 4],
    used: usize,
}

impl Noise {
    /// The choices for thing `number` of a kind.
    pub(crate) fn new(seed: u64, domain: Domain, number: u64) -> Self {
        let key = [seed as u32, (seed >> 32) as u32];
        Self { key, counter: [0, domain as u32, number as u32, (number >> 32) as u32], words: [0; 4], used: 4 }
    }

    pub(crate) fn word(&mut self) -> u32 {
        if self.used == self.words.len() {
            self.words = philox4x32_10(self.counter, self.key);
            self.counter[0] += 1;
            self.used = 0;
        }
        self.used += 1;
        self.words[self.used - 1]
    }

    /// A number below `end`, which is at least 1. The bias of the product does not matter here.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u64::from(self.word()) * end as u64) >> 32) as usize
    }

    pub(crate) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, self.below(at + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_depend_on_seed_kind_and_number() {
        let first = |seed, domain, number| Noise::new(seed, domain, number).word();
        let all = [
            first(1, Domain::Request, 1),
            first(2, Domain::Request, 1),
            first(1 << 32 | 1, Domain::Request, 1),
            first(1, Domain::Cell, 1),
            first(1, Domain::Request, 2),
            first(1, Domain::Request, 1 << 32 | 1),
        ];
        for (at, word) in all.iter().enumerate() {
            assert!(!all[..at].contains(word), "{all:?}");
        }
        assert_eq!(all[0], first(1, Domain::Request, 1));
    }

    #[test]
    fn numbers_lie_below_their_end() {
        let mut noise = Noise::new(3, Domain::Cell, 0);
        let mut seen = [0; 5];
        (0..1000).for_each(|_| seen[noise.below(5)] += 1);
        assert!(seen.iter().all(|&count| count > 120), "{seen:?}");
        let mut order = [0, 1, 2, 3, 4, 5, 6, 7];
        noise.shuffle(&mut order);
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_ne!(order, sorted);
    }
}
