//! Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw ("Parallel random numbers: as easy as
//! 1, 2, 3", SC 2011).
//!
//! There is no state: the output is a bijective function of the counter under a key, made of 32-bit multiplications and
//! exclusive ors. Any device computes any element of the sequence alone, with the same bits.

const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// Key increments per round: the fractional parts of the golden ratio and of the square root of 3.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Four 32-bit random words for a 128-bit counter and a 64-bit key, least significant word first.
#[inline]
#[must_use]
pub const fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let mut words = counter;
    let mut key = key;
    let mut round = 0;
    while round < ROUNDS {
        let first = words[0] as u64 * MULTIPLIERS[0] as u64;
        let second = words[2] as u64 * MULTIPLIERS[1] as u64;
        words = [
            (second >> 32) as u32 ^ words[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ words[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        round += 1;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with the Random123 library for this generator.
    #[test]
    fn known_answers_of_random123() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]),
            (
                [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344],
                [0xA409_3822, 0x299F_31D0],
                [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox4x32_10(counter, key), expected);
        }
    }

    /// Each input bit should flip about half of the 128 output bits; a lost key or counter word would flip none.
    #[test]
    fn every_input_bit_reaches_the_output() {
        let counter = [1, 2, 3, 4];
        let key = [5, 6];
        let base = philox4x32_10(counter, key);
        for bit in 0..192 {
            let (mut counter, mut key) = (counter, key);
            match bit {
                0..128 => counter[bit / 32] ^= 1 << (bit % 32),
                _ => key[(bit - 128) / 32] ^= 1 << (bit % 32),
            }
            let changed: u32 = base.iter().zip(philox4x32_10(counter, key)).map(|(a, b)| (a ^ b).count_ones()).sum();
            assert!((30..=98).contains(&changed), "bit {bit} changes {changed} of 128 bits");
        }
    }
}
