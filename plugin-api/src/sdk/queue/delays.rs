//! Random pauses, the same for the same seed.

use std::time::Duration;

/// Where a queue pauses, and for how long. Three of four pauses are none, so that short and long work meet in every
/// order; the others are uniform up to the longest.
#[derive(Clone, Debug)]
pub struct Delays {
    state: u64,
    longest: Duration,
}

impl Delays {
    /// Up to 300 microseconds.
    pub fn seeded(seed: u64) -> Self {
        Self::up_to(Duration::from_micros(300), seed)
    }

    /// Up to `longest`, which is cut at four seconds.
    pub fn up_to(longest: Duration, seed: u64) -> Self {
        Self { state: seed, longest: longest.min(Duration::from_secs(4)) }
    }

    /// The next pause: nothing where the order is left to the scheduler.
    fn draw(&mut self) -> Option<Duration> {
        // SplitMix64 (Steele, Lea and Flood 2014).
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        let pauses = z >> 62 == 0;
        pauses.then(|| self.longest.mul_f64((z & 0xFFFF_FFFF) as f64 / f64::from(u32::MAX)))
    }

    pub(super) fn pause(&mut self) {
        if let Some(pause) = self.draw() {
            std::thread::sleep(pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_pauses_again_and_others_than_another_seed() {
        let draw = |seed| {
            let mut delays = Delays::seeded(seed);
            (0..400).map(|_| delays.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let pauses: Vec<Duration> = draw(7).into_iter().flatten().collect();
        assert!((60..140).contains(&pauses.len()), "{} of 400", pauses.len());
        assert!(pauses.iter().all(|&pause| pause <= Duration::from_micros(300)));
        assert!(pauses.iter().any(|&pause| pause > Duration::from_micros(200)));
    }
}
