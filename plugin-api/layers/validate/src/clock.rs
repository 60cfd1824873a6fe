//! Which work is over before which other work begins.
//!
//! Each stream numbers its work. A clock says, per stream, up to which number work is over at some point: at the next work
//! of a stream, at a recorded event, or as far as the caller has waited.

use std::collections::BTreeMap;

/// Per stream, the number of the last piece of work that is over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock(BTreeMap<usize, u64>);

impl Clock {
    /// Whether work `number` of `stream` is over.
    pub(crate) fn has_passed(&self, stream: usize, number: u64) -> bool {
        number <= self.0.get(&stream).copied().unwrap_or(0)
    }

    /// Work of `stream` up to `number` is over, too.
    pub(crate) fn pass(&mut self, stream: usize, number: u64) {
        let passed = self.0.entry(stream).or_default();
        *passed = number.max(*passed);
    }

    /// All that is over by another clock is over by this one.
    pub(crate) fn merge(&mut self, other: &Clock) {
        other.0.iter().for_each(|(&stream, &number)| self.pass(stream, number));
    }

    /// A stream is gone.
    pub(crate) fn forget(&mut self, stream: usize) {
        self.0.remove(&stream);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some_clock() -> impl Strategy<Value = Clock> {
        prop::collection::btree_map(0..4_usize, 0..9_u64, 0..4).prop_map(Clock)
    }

    proptest! {
        #[test]
        fn a_merged_clock_has_passed_what_either_has(a in some_clock(), b in some_clock(), stream in 0..4_usize, number in 1..9_u64) {
            let mut both = a.clone();
            both.merge(&b);
            let either = a.has_passed(stream, number) || b.has_passed(stream, number);
            prop_assert_eq!(both.has_passed(stream, number), either);
        }
    }
}
