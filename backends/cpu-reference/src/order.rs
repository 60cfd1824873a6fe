//! Scores in descending order, equal ones by ascending column, as integers.
//!
//! A score and its column become one key. The keys of a row are all different, and the k smallest of them are exactly the k
//! best scores, ties to the lower column.

/// Larger scores have smaller keys; of equal scores, as +0 and -0 are, the lower column has. NaN has no place in the order.
#[inline]
pub(crate) fn key(score: f32, column: usize) -> u64 {
    // The sum turns -0 into +0 and changes nothing else.
    let bits = (score + 0.0).to_bits();
    // Bit patterns of positive values ascend with the value, those of negative values descend.
    let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    u64::from(!ascending) << 32 | column as u64
}

/// The score of a key.
#[inline]
pub(crate) fn score(key: u64) -> f32 {
    let ascending = !((key >> 32) as u32);
    f32::from_bits(if ascending >> 31 == 1 { ascending & !(1 << 31) } else { !ascending })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_ascend_as_scores_fall_and_columns_rise() {
        let scores = [f32::INFINITY, f32::MAX, 1.0, 1e-45, 0.0, -0.0, -1e-45, -1.0, f32::MIN, f32::NEG_INFINITY];
        for (i, a) in scores.into_iter().enumerate() {
            assert_eq!(score(key(a, 7)), a);
            assert!(key(a, 7) < key(a, 8));
            for b in scores[i + 1..].iter().copied().filter(|b| *b != a) {
                assert!(key(a, usize::from(u16::MAX)) < key(b, 0), "{a} and {b}");
            }
        }
        assert_eq!(key(0.0, 3), key(-0.0, 3));
    }
}
