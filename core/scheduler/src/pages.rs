//! The pages: who holds them, and when those that nobody holds can be handed out again.
//!
//! A page is in exactly one of three places:
//! - *held*: its reference count is not 0;
//! - *retiring*: nobody holds it, but a step in flight may still touch it;
//! - *free*: it can be handed out.
//!
//! Free pages are in one list, handed out from its front. Pages that the prefix cache knows go to the back when they become
//! free, so that the front is the one that was not used for longest; all others go to the front, so that pages which only
//! passed through never push out the cache.

use crate::list::{Links, List};
use crate::plan::{PageId, StepId};

#[derive(Debug, Clone, Copy, Default)]
struct Page {
    holders: u32,
    cached: bool,
    /// Last step that may touch it. Retiring pages are those without holders whose step has not completed.
    last_step: StepId,
}

#[derive(Debug)]
pub(crate) struct PagePool {
    pages: Vec<Page>,
    links: Links,
    free: List,
    /// Retiring pages by their last step, of which at most `retiring.len()` are in flight.
    retiring: Vec<List>,
    retiring_len: usize,
    completed: StepId,
}

impl PagePool {
    /// The pages below `pages` that are in `order` are free and first handed out in that order, the others never. At most
    /// `depth` steps are in flight.
    pub(crate) fn new(order: &[PageId], pages: usize, depth: usize) -> Self {
        let (mut links, mut free) = (Links::new(pages), List::new());
        for &page in order {
            free.push_back(&mut links, page);
        }
        Self {
            pages: vec![Page::default(); pages],
            links,
            free,
            retiring: vec![List::new(); depth],
            retiring_len: 0,
            completed: StepId(0),
        }
    }

    /// Pages that can be handed out.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Pages that become free when the steps in flight complete.
    pub(crate) fn retiring(&self) -> usize {
        self.retiring_len
    }

    /// Whether `page` can be handed out.
    pub(crate) fn is_free(&self, page: PageId) -> bool {
        self.is_idle(page) && self.pages[page as usize].last_step <= self.completed
    }

    /// Whether the prefix cache knows `page`.
    pub(crate) fn is_cached(&self, page: PageId) -> bool {
        self.pages[page as usize].cached
    }

    /// Free pages, in the order in which they will be handed out.
    pub(crate) fn free_pages(&self) -> impl Iterator<Item = PageId> + use<'_> {
        self.free.iter(&self.links)
    }

    /// Hands out a free page, and says whether the prefix cache knew it, which now must forget it.
    pub(crate) fn take(&mut self) -> Option<(PageId, bool)> {
        let id = self.free.pop_front(&mut self.links)?;
        let page = &mut self.pages[id as usize];
        page.holders = 1;
        Some((id, std::mem::take(&mut page.cached)))
    }

    /// Adds a holder.
    pub(crate) fn hold(&mut self, id: PageId) {
        if self.is_idle(id) {
            self.unlink(id);
        }
        self.pages[id as usize].holders += 1;
    }

    /// Removes a holder that had it touched by steps up to `last_step`.
    pub(crate) fn release(&mut self, id: PageId, last_step: StepId) {
        let page = &mut self.pages[id as usize];
        assert!(page.holders > 0, "page {id} was released by somebody who does not hold it");
        page.holders -= 1;
        page.last_step = page.last_step.max(last_step);
        let (held, last_step) = (page.holders > 0, page.last_step);
        if held {
            return;
        }
        if last_step > self.completed {
            let list = self.list_of(last_step);
            self.retiring[list].push_back(&mut self.links, id);
            self.retiring_len += 1;
        } else {
            self.push_free(id);
        }
    }

    /// The prefix cache knows `id` from now on, which somebody must hold.
    pub(crate) fn set_cached(&mut self, id: PageId) {
        debug_assert!(!self.is_idle(id), "page {id} enters the cache, but nobody holds it");
        self.pages[id as usize].cached = true;
    }

    /// The prefix cache has forgotten `id`.
    pub(crate) fn clear_cached(&mut self, id: PageId) {
        self.pages[id as usize].cached = false;
        if self.is_free(id) {
            self.free.remove(&mut self.links, id);
            self.free.push_front(&mut self.links, id);
        }
    }

    /// `step` has completed, and all before it: pages that waited for it are free. Steps must complete one by one.
    pub(crate) fn complete(&mut self, step: StepId) {
        self.completed = step;
        let list = self.list_of(step);
        while let Some(page) = self.retiring[list].pop_front(&mut self.links) {
            self.retiring_len -= 1;
            self.push_free(page);
        }
    }

    fn is_idle(&self, id: PageId) -> bool {
        self.pages[id as usize].holders == 0
    }

    fn push_free(&mut self, id: PageId) {
        if self.pages[id as usize].cached {
            self.free.push_back(&mut self.links, id);
        } else {
            self.free.push_front(&mut self.links, id);
        }
    }

    fn unlink(&mut self, id: PageId) {
        let last_step = self.pages[id as usize].last_step;
        if last_step > self.completed {
            let list = self.list_of(last_step);
            self.retiring[list].remove(&mut self.links, id);
            self.retiring_len -= 1;
        } else {
            self.free.remove(&mut self.links, id);
        }
    }

    fn list_of(&self, step: StepId) -> usize {
        (step.0 % self.retiring.len() as u64) as usize
    }
}

#[cfg(test)]
impl PagePool {
    /// Asserts that every page but the `reserved` ones is in one place, and that `holders` are the reference counts.
    pub(crate) fn check(&self, reserved: usize, holders: &[u32]) {
        let mut seen = vec![0_u32; self.pages.len()];
        for page in self.free.iter(&self.links) {
            seen[page as usize] += 1;
            assert!(self.pages[page as usize].last_step <= self.completed, "page {page} is free while in use");
        }
        let mut retiring = 0;
        for (index, list) in self.retiring.iter().enumerate() {
            for page in list.iter(&self.links) {
                seen[page as usize] += 1;
                retiring += 1;
                let last_step = self.pages[page as usize].last_step;
                assert!(last_step > self.completed && self.list_of(last_step) == index, "page {page} retires wrongly");
            }
        }
        assert_eq!(retiring, self.retiring_len);
        for (id, page) in self.pages.iter().enumerate() {
            assert_eq!(page.holders, holders[id], "page {id}: reference count");
            let listed = u32::from(id >= reserved && page.holders == 0);
            assert_eq!(seen[id], listed, "page {id}, held by {}, is in {} lists", page.holders, seen[id]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(pool: &mut PagePool) -> PageId {
        pool.take().expect("a free page").0
    }

    #[test]
    fn reserved_pages_are_never_handed_out() {
        let mut pool = PagePool::new(&[2, 1], 3, 1);
        assert_eq!([take(&mut pool), take(&mut pool)], [2, 1]);
        assert_eq!(pool.take(), None);
        pool.check(1, &[0, 1, 1]);
    }

    #[test]
    fn a_page_is_free_when_its_last_holder_is_gone() {
        let mut pool = PagePool::new(&[0], 1, 1);
        let page = take(&mut pool);
        pool.hold(page);
        pool.release(page, StepId(0));
        assert_eq!(pool.free(), 0);
        pool.release(page, StepId(0));
        assert_eq!(pool.free(), 1);
    }

    #[test]
    #[should_panic(expected = "released by somebody")]
    fn a_double_free_panics() {
        let mut pool = PagePool::new(&[0], 1, 1);
        let page = take(&mut pool);
        pool.release(page, StepId(0));
        pool.release(page, StepId(0));
    }

    #[test]
    fn a_released_page_waits_for_the_last_step_of_any_holder() {
        let mut pool = PagePool::new(&[0], 1, 2);
        let page = take(&mut pool);
        pool.hold(page);
        pool.release(page, StepId(2));
        pool.release(page, StepId(1));
        assert_eq!((pool.free(), pool.retiring()), (0, 1));
        pool.complete(StepId(1));
        assert_eq!((pool.free(), pool.retiring()), (0, 1));
        pool.complete(StepId(2));
        assert_eq!((pool.free(), pool.retiring()), (1, 0));
        pool.check(0, &[0]);
    }

    #[test]
    fn a_retiring_page_can_be_held_again() {
        let mut pool = PagePool::new(&[0, 1], 2, 1);
        let page = take(&mut pool);
        pool.set_cached(page);
        pool.release(page, StepId(1));
        pool.hold(page);
        assert_eq!(pool.retiring(), 0);
        pool.complete(StepId(1));
        pool.check(0, &[1, 0]);
    }

    #[test]
    fn uncached_pages_are_handed_out_first_and_cached_ones_by_age() {
        let mut pool = PagePool::new(&[0, 1, 2, 3], 4, 1);
        let pages: Vec<PageId> = (0..4).map(|_| take(&mut pool)).collect();
        for &page in &pages[..3] {
            pool.set_cached(page);
        }
        for page in [1, 0, 2, 3] {
            pool.release(page, StepId(0));
        }
        assert_eq!([pool.take(), pool.take(), pool.take()], [Some((3, false)), Some((1, true)), Some((0, true))]);
        // Once it is forgotten it is like any other: before the cached ones.
        pool.set_cached(3);
        pool.release(3, StepId(0));
        pool.clear_cached(3);
        assert_eq!([pool.take(), pool.take()], [Some((3, false)), Some((2, true))]);
    }
}
