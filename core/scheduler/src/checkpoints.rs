//! Checkpoints: places for exact copies of state slots.
//!
//! A checkpoint is *attached* to a cached page: the copy was taken when the request had run the last token of that page, and
//! lives as long as the cache knows the page. It is *held* while a step in flight saves or restores it, and by completions
//! that still have to start from it. Those that are attached and not held form a list, the least recently used in front,
//! from which new ones are taken when there are no free ones.

use crate::list::{Links, List};
use crate::plan::{CheckpointId, PageId};

#[derive(Debug, Clone, Copy, Default)]
struct Checkpoint {
    holders: u32,
    page: Option<PageId>,
}

#[derive(Debug)]
pub(crate) struct CheckpointPool {
    checkpoints: Vec<Checkpoint>,
    links: Links,
    free: List,
    /// Attached and not held.
    idle: List,
    attached: usize,
}

impl CheckpointPool {
    pub(crate) fn new(checkpoints: usize) -> Self {
        let (mut links, mut free) = (Links::new(checkpoints), List::new());
        for id in 0..checkpoints {
            free.push_back(&mut links, id as CheckpointId);
        }
        Self { checkpoints: vec![Checkpoint::default(); checkpoints], links, free, idle: List::new(), attached: 0 }
    }

    /// Checkpoints at which a hit can end.
    pub(crate) fn attached(&self) -> usize {
        self.attached
    }

    /// Hands out a checkpoint with one holder, and the page that it was attached to before. `None` if all are held.
    pub(crate) fn take(&mut self) -> Option<(CheckpointId, Option<PageId>)> {
        let id = match self.free.pop_front(&mut self.links) {
            Some(id) => id,
            None => self.idle.pop_front(&mut self.links)?,
        };
        let checkpoint = &mut self.checkpoints[id as usize];
        checkpoint.holders = 1;
        let page = checkpoint.page.take();
        self.attached -= usize::from(page.is_some());
        Some((id, page))
    }

    /// Adds a holder to a checkpoint that is held or attached.
    pub(crate) fn hold(&mut self, id: CheckpointId) {
        let checkpoint = &mut self.checkpoints[id as usize];
        if checkpoint.holders == 0 {
            assert!(checkpoint.page.is_some(), "checkpoint {id} is free and has nothing to restore");
            self.idle.remove(&mut self.links, id);
        }
        checkpoint.holders += 1;
    }

    /// Removes a holder; one that is not attached is free when the last has gone.
    pub(crate) fn release(&mut self, id: CheckpointId) {
        let checkpoint = &mut self.checkpoints[id as usize];
        assert!(checkpoint.holders > 0, "checkpoint {id} was released by somebody who does not hold it");
        checkpoint.holders -= 1;
        if checkpoint.holders == 0 {
            let list = if checkpoint.page.is_some() { &mut self.idle } else { &mut self.free };
            list.push_back(&mut self.links, id);
        }
    }

    /// Attaches a held checkpoint to `page`.
    pub(crate) fn attach(&mut self, id: CheckpointId, page: PageId) {
        let checkpoint = &mut self.checkpoints[id as usize];
        assert!(checkpoint.holders > 0 && checkpoint.page.is_none(), "checkpoint {id} cannot be attached");
        checkpoint.page = Some(page);
        self.attached += 1;
    }

    /// The page of `id` is no longer known: free it, or let its holders keep it until they are done.
    pub(crate) fn detach(&mut self, id: CheckpointId) {
        let checkpoint = &mut self.checkpoints[id as usize];
        assert!(checkpoint.page.take().is_some(), "checkpoint {id} is not attached");
        self.attached -= 1;
        if checkpoint.holders == 0 {
            self.idle.remove(&mut self.links, id);
            self.free.push_front(&mut self.links, id);
        }
    }

    /// Asserts that each checkpoint is in one place, that `holders` are the reference counts and `pages` the attachments.
    #[cfg(test)]
    pub(crate) fn check(&self, holders: &[u32], pages: &[Option<PageId>]) {
        let mut seen = vec![(0, 0); self.checkpoints.len()];
        for id in self.free.iter(&self.links) {
            seen[id as usize].0 += 1;
        }
        for id in self.idle.iter(&self.links) {
            seen[id as usize].1 += 1;
        }
        for (id, checkpoint) in self.checkpoints.iter().enumerate() {
            assert_eq!(checkpoint.holders, holders[id], "checkpoint {id}: reference count");
            assert_eq!(checkpoint.page, pages[id], "checkpoint {id}: page");
            let expected = match (checkpoint.holders, checkpoint.page) {
                (0, None) => (1, 0),
                (0, Some(_)) => (0, 1),
                _ => (0, 0),
            };
            assert_eq!(seen[id], expected, "checkpoint {id}: lists");
        }
        assert_eq!(self.attached, pages.iter().flatten().count());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_is_taken_and_a_held_one_never() {
        let mut pool = CheckpointPool::new(3);
        for page in 10..13 {
            let (id, before) = pool.take().expect("a free one");
            assert_eq!(before, None);
            pool.attach(id, page);
            pool.release(id);
        }
        // 0 is restored: it becomes the most recently used. 1 is in use.
        pool.hold(0);
        pool.release(0);
        pool.hold(1);
        assert_eq!(pool.take(), Some((2, Some(12))));
        assert_eq!(pool.take(), Some((0, Some(10))));
        assert_eq!(pool.take(), None);
        pool.check(&[1, 1, 1], &[None, Some(11), None]);
    }

    #[test]
    fn one_that_is_detached_in_use_is_free_afterwards() {
        let mut pool = CheckpointPool::new(1);
        let (id, _) = pool.take().expect("a free one");
        pool.attach(id, 7);
        pool.detach(id);
        assert_eq!(pool.take(), None);
        pool.release(id);
        assert_eq!(pool.take(), Some((id, None)));
        assert_eq!(pool.attached(), 0);
    }
}
