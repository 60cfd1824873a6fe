//! What must hold of a scheduler between any two events.

use crate::fork::Stage;
use crate::scheduler::Scheduler;

use super::world::World;

impl World {
    pub(super) fn check(&self) {
        self.check_ledgers();
        self.scheduler.check_ownership();
        for plan in &self.in_flight {
            let copies = plan.page_copies().iter().flat_map(|copy| [copy.from, copy.to]);
            for page in plan.page_table.iter().copied().chain(copies) {
                assert!(
                    !self.scheduler.kv.pool.is_free(page),
                    "page {page} is free, but step {} uses it",
                    plan.step().0
                );
            }
            for request in plan.requests() {
                assert!(!self.scheduler.slots.is_free(request.slot), "slot {} is free while in use", request.slot);
            }
        }
        let stats = self.scheduler.stats();
        assert_eq!(stats.running + stats.waiting, self.clients.len());
        assert_eq!(stats.in_flight, self.in_flight.len());
    }

    /// With no requests left, everything must be back.
    pub(super) fn check_nothing_leaked(&self) {
        self.check();
        let stats = self.scheduler.stats();
        assert!(self.clients.is_empty() && self.in_flight.is_empty());
        assert_eq!((stats.free_pages, stats.retiring_pages), (stats.usable_pages, 0));
        assert_eq!(self.scheduler.slots.free(), self.scheduler.config().state_slots);
        assert!(self.scheduler.families.is_empty());
    }
}

impl Scheduler {
    /// Recomputes who holds what from the holders.
    fn check_ownership(&self) {
        let mut pages = vec![0; self.config.pages];
        let mut checkpoints = vec![0; self.config.checkpoints];
        let mut parked = Vec::new();
        for family in self.families.values() {
            match &family.stage {
                Stage::Prompt { first, others } => {
                    assert!(!others.is_empty() && !others.contains(first));
                    parked.extend_from_slice(others);
                }
                Stage::Forked { point, waiting } => {
                    assert!(*waiting > 0);
                    point.pages.iter().for_each(|&page| pages[page as usize] += 1);
                    checkpoints[point.checkpoint as usize] += 1;
                }
            }
        }
        for rows in self.in_flight.iter().flat_map(|record| &record.requests) {
            rows.restore.iter().chain(&rows.save).for_each(|&checkpoint| checkpoints[checkpoint as usize] += 1);
        }
        for (key, request) in self.requests.iter() {
            let running = self.running.iter().filter(|&&k| k == key).count();
            let waiting = usize::from(self.waiting.get(&request.rank) == Some(&key));
            let parked = parked.iter().filter(|&&k| k == key).count();
            assert_eq!(running + waiting + parked, 1, "{:?} must be in one place", request.id);
            assert_eq!(request.slot.is_some(), running == 1);
            assert!(running == 1 || request.pages.is_empty(), "{:?} holds pages, but does not run", request.id);
            assert_eq!(request.tokens.len(), request.ledger.len());
            assert!(request.ledger.scheduled() <= request.pages.len() * self.config.page_tokens);
            request.pages.iter().for_each(|&page| pages[page as usize] += 1);
        }
        assert_eq!(self.requests.len(), self.running.len() + self.waiting.len() + parked.len());
        let off_duty = self.requests.iter().filter(|(_, request)| request.slot.is_none());
        assert_eq!(self.waiting_tokens, off_duty.map(|(_, request)| request.tokens.len()).sum::<usize>());
        assert!(self.running.is_sorted_by_key(|&key| self.requests[key].rank));
        assert!(self.running.len() <= self.config.max_num_seqs);
        self.kv.pool.check(self.config.reserved_pages, &pages);
        self.slots.check(self.config.state_slots, self.running.iter().filter_map(|&key| self.requests[key].slot));

        let attached = self.kv.prefix.check(|page| self.kv.pool.is_cached(page));
        let mut page_of = vec![None; self.config.checkpoints];
        for (page, checkpoint) in attached.into_iter().enumerate() {
            if let Some(checkpoint) = checkpoint {
                assert_eq!(page_of[checkpoint as usize].replace(page as u32), None);
            }
        }
        self.kv.checkpoints.check(&checkpoints, &page_of);
    }
}
