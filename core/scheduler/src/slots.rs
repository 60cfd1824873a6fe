//! State slots: one for each running request, handed out again when its last step has completed.

use std::collections::VecDeque;

use crate::plan::{SlotId, StepId};

#[derive(Debug)]
pub(crate) struct SlotPool {
    free: Vec<SlotId>,
    retiring: VecDeque<(StepId, SlotId)>,
    completed: StepId,
}

impl SlotPool {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            free: (0..slots as SlotId).rev().collect(),
            retiring: VecDeque::with_capacity(slots),
            completed: StepId(0),
        }
    }

    /// Slots that can be handed out.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn take(&mut self) -> Option<SlotId> {
        self.free.pop()
    }

    /// Gives back a slot that steps up to `last_step` touch.
    pub(crate) fn release(&mut self, slot: SlotId, last_step: StepId) {
        if last_step > self.completed {
            self.retiring.push_back((last_step, slot));
        } else {
            self.free.push(slot);
        }
    }

    /// `step` has completed, and all before it.
    pub(crate) fn complete(&mut self, step: StepId) {
        self.completed = step;
        let free = &mut self.free;
        self.retiring.retain(|&(last_step, slot)| {
            let waits = last_step > step;
            if !waits {
                free.push(slot);
            }
            waits
        });
    }

    #[cfg(test)]
    pub(crate) fn is_free(&self, slot: SlotId) -> bool {
        self.free.contains(&slot)
    }

    /// Asserts that each of `slots` slots is free, retiring, or in `held`, and only one of these.
    #[cfg(test)]
    pub(crate) fn check(&self, slots: usize, held: impl Iterator<Item = SlotId>) {
        let mut seen = vec![0; slots];
        let retiring = self.retiring.iter().map(|&(_, slot)| slot);
        for slot in self.free.iter().copied().chain(retiring).chain(held) {
            seen[slot as usize] += 1;
        }
        assert!(seen.iter().all(|&n| n == 1), "slots are in that many places: {seen:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_waits_for_the_last_step_that_touches_it() {
        let mut pool = SlotPool::new(2);
        assert_eq!((pool.take(), pool.take(), pool.take()), (Some(0), Some(1), None));
        pool.release(0, StepId(2));
        pool.release(1, StepId(1));
        assert_eq!(pool.take(), None);
        pool.complete(StepId(1));
        assert_eq!((pool.take(), pool.take()), (Some(1), None));
        pool.complete(StepId(2));
        assert_eq!(pool.take(), Some(0));
        pool.check(2, [0, 1].into_iter());
    }
}
