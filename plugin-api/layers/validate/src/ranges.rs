//! Sets of device addresses.

use std::ops::Range;

/// A set of addresses, as ranges that are in order, not empty, and apart from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// The union of ranges, in any order.
    pub(crate) fn of(mut ranges: Vec<Range<u64>>) -> Self {
        ranges.retain(|range| range.start < range.end);
        ranges.sort_unstable_by_key(|range| range.start);
        let mut out: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match out.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => out.push(range),
            }
        }
        Self(out)
    }

    /// The ranges, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.0.iter()
    }

    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The smallest address that is in both sets.
    pub(crate) fn first_common(&self, other: &Self) -> Option<u64> {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            let start = x.start.max(y.start);
            if start < x.end.min(y.end) {
                return Some(start);
            }
            if x.end <= y.end {
                a.next()
            } else {
                b.next()
            };
        }
        None
    }

    /// The addresses of `range` that are not in the set.
    pub(crate) fn gaps_in(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut at = range.start;
        let mut out = Vec::new();
        for taken in self.0.iter().skip_while(|taken| taken.end <= range.start) {
            if taken.start >= range.end {
                break;
            }
            if at < taken.start {
                out.push(at..taken.start);
            }
            at = taken.end;
        }
        if at < range.end {
            out.push(at..range.end);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn some_ranges() -> impl Strategy<Value = Vec<Range<u64>>> {
        prop::collection::vec((0..60_u64, 0..12_u64).prop_map(|(start, len)| start..start + len), 0..8)
    }

    fn addresses(ranges: &[Range<u64>]) -> BTreeSet<u64> {
        ranges.iter().cloned().flatten().collect()
    }

    proptest! {
        #[test]
        fn a_union_has_the_same_addresses_in_the_fewest_ranges(ranges in some_ranges()) {
            let union = Ranges::of(ranges.clone());
            prop_assert_eq!(addresses(&union.0), addresses(&ranges));
            prop_assert!(union.0.windows(2).all(|pair| pair[0].end < pair[1].start));
            prop_assert!(union.iter().all(|range| range.start < range.end));
        }

        #[test]
        fn common_addresses_and_gaps_are_those_of_sets(a in some_ranges(), b in some_ranges(), window in (0..60_u64, 0..40_u64)) {
            let (in_a, in_b) = (addresses(&a), addresses(&b));
            let (set_a, set_b) = (Ranges::of(a), Ranges::of(b));
            prop_assert_eq!(set_a.first_common(&set_b), in_a.intersection(&in_b).next().copied());
            let window = window.0..window.0 + window.1;
            let outside: BTreeSet<u64> = window.clone().filter(|address| !in_a.contains(address)).collect();
            prop_assert_eq!(addresses(&set_a.gaps_in(window)), outside);
        }
    }
}
