//! The part of numpy's `default_rng` that the Engram multipliers were drawn with.
//!
//! The released model fixes its hash multipliers by a seed and a numpy call, so deriving them means reproducing three
//! published algorithms bit for bit: `SeedSequence` (after O'Neill's `seed_seq_fe`) spreads the seed over the state,
//! PCG64 (a 128-bit linear congruential generator with XSL-RR output) produces 64-bit words, and Lemire's
//! multiply-and-reject method maps a word to a range without bias.

#![forbid(unsafe_code)]

const PCG_MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

/// A generator in the state that `numpy.random.default_rng(seed)` starts from.
pub(crate) struct NumpyGenerator {
    state: u128,
    /// Odd: it selects one of the 2^127 streams of the congruential generator.
    increment: u128,
}

impl NumpyGenerator {
    /// The state after `numpy.random.default_rng(seed)`.
    pub(crate) fn default_rng(seed: u64) -> Self {
        let [state_high, state_low, stream_high, stream_low] = SeedPool::new(seed).state_words();
        let initial_state = join(state_high, state_low);
        let increment = (join(stream_high, stream_low) << 1) | 1;
        let mut generator = Self { state: 0, increment };
        generator.step();
        generator.state = generator.state.wrapping_add(initial_state);
        generator.step();
        generator
    }

    /// One element of `generator.integers(0, bound, dtype=int64)`: uniform in `0..bound`.
    ///
    /// # Panics
    /// When `bound` is at most 2^32: numpy draws such ranges from 32-bit halves, which is another sequence.
    pub(crate) fn integer_below(&mut self, bound: u64) -> u64 {
        assert!(bound > 1 << 32, "numpy draws a range of {bound} values from 32-bit words, which is not replayed here");
        // The first `2^64 mod bound` low words would be hit once more often than the others.
        let surplus = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            if product as u64 >= surplus {
                return (product >> 64) as u64;
            }
        }
    }

    fn next_u64(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(PCG_MULTIPLIER).wrapping_add(self.increment);
    }
}

/// The entropy pool of `numpy.random.SeedSequence` at its default size of four 32-bit words.
struct SeedPool([u32; 4]);

impl SeedPool {
    fn new(seed: u64) -> Self {
        let entropy = [seed as u32, (seed >> 32) as u32, 0, 0];
        let mut hash = SeedHash { constant: 0x43B0_D7E5, multiplier: 0x931E_8875 };
        let mut pool = entropy.map(|word| hash.apply(word));
        for source in 0..pool.len() {
            for target in 0..pool.len() {
                if source != target {
                    pool[target] = mix(pool[target], hash.apply(pool[source]));
                }
            }
        }
        Self(pool)
    }

    /// `SeedSequence.generate_state(4, uint64)`; the 32-bit words are paired low word first.
    fn state_words(&self) -> [u64; 4] {
        let mut hash = SeedHash { constant: 0x8B51_F9DD, multiplier: 0x58F3_8DED };
        let mut words = self.0.iter().cycle().map(|&word| hash.apply(word));
        std::array::from_fn(|_| {
            let mut next = || u64::from(words.next().expect("a cycle over four words never ends"));
            next() | next() << 32
        })
    }
}

/// A hash whose constant advances with every word, so that equal words at different places differ.
struct SeedHash {
    constant: u32,
    multiplier: u32,
}

impl SeedHash {
    fn apply(&mut self, word: u32) -> u32 {
        let keyed = word ^ self.constant;
        self.constant = self.constant.wrapping_mul(self.multiplier);
        let product = keyed.wrapping_mul(self.constant);
        product ^ product >> 16
    }
}

fn mix(x: u32, y: u32) -> u32 {
    let sum = x.wrapping_mul(0xCA01_F9DD).wrapping_sub(y.wrapping_mul(0x4973_F715));
    sum ^ sum >> 16
}

fn join(high: u64, low: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

#[cfg(test)]
mod tests {
    use super::NumpyGenerator;

    /// Expected words: `numpy.random.default_rng(seed).bit_generator.random_raw(4)` of numpy 2.4.
    #[test]
    fn words_equal_numpy() {
        let cases = [
            (0, [11749869230777074271, 4976686463289251617, 755828109848996024, 304881062738325533]),
            (10007 << 33, [6748340578566575379, 3578331580002387961, 2338603142816363958, 4794578334241672242]),
        ];
        for (seed, expected) in cases {
            let mut generator = NumpyGenerator::default_rng(seed);
            assert_eq!(expected.map(|_| generator.next_u64()), expected, "seed {seed}");
        }
    }

    /// Expected values: `numpy.random.default_rng(7).integers(0, bound, 6)`. The bound just above 2^62 rejects a quarter
    /// of all words, the second of these among them.
    #[test]
    fn bounded_integers_equal_numpy_with_and_without_rejection() {
        let cases: [(u64, [u64; 6]); 2] = [
            (
                (1 << 62) + 1,
                [
                    2882744023523087011,
                    3577218852397956697,
                    1038584849328933328,
                    1384272659328390225,
                    4028554210483014093,
                    3675833940291716696,
                ],
            ),
            (
                6148914691236517205,
                [
                    3843658698030782680,
                    5516891121961979441,
                    4769625136530608928,
                    1384779799105244437,
                    1845696879104520300,
                    5371405613977352123,
                ],
            ),
        ];
        for (bound, expected) in cases {
            let mut generator = NumpyGenerator::default_rng(7);
            assert_eq!(expected.map(|_| generator.integer_below(bound)), expected, "bound {bound}");
        }
    }

    #[test]
    #[should_panic(expected = "32-bit words")]
    fn a_range_that_numpy_draws_differently_is_refused() {
        NumpyGenerator::default_rng(1).integer_below(1 << 32);
    }
}
