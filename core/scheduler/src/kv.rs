//! Pages, prefix cache and checkpoints as one thing: the three must agree on which pages are known.

use crate::checkpoints::CheckpointPool;
use crate::config::SchedulerConfig;
use crate::pages::PagePool;
use crate::plan::{CheckpointId, PageId, StepId};
use crate::prefix::{HashFn, Insert, Key, Parent, PrefixCache};

#[derive(Debug)]
pub(crate) struct Kv {
    pub(crate) pool: PagePool,
    pub(crate) prefix: PrefixCache,
    pub(crate) checkpoints: CheckpointPool,
}

impl Kv {
    pub(crate) fn new(config: &SchedulerConfig, hash: HashFn) -> Self {
        let cached = if config.prefix_caching { config.pages } else { 0 };
        Self {
            pool: PagePool::new(&config.page_order(), config.pages, config.depth),
            prefix: PrefixCache::new(cached, config.page_tokens, hash),
            checkpoints: CheckpointPool::new(config.checkpoints),
        }
    }

    /// Hands out a free page; if the prefix cache knew it, that forgets it.
    pub(crate) fn take_page(&mut self) -> Option<PageId> {
        let (page, cached) = self.pool.take()?;
        if cached {
            self.forget(page);
        }
        Some(page)
    }

    /// Hands out a checkpoint with one holder, the least recently used one if none is free.
    pub(crate) fn take_checkpoint(&mut self) -> Option<CheckpointId> {
        let (checkpoint, page) = self.checkpoints.take()?;
        if let Some(page) = page {
            self.prefix.set_checkpoint(page, None);
        }
        Some(checkpoint)
    }

    /// Makes `page`, which the caller holds, known under `key`. Returns the page that is known under it now: another one if
    /// the contents were known already. `None` if nothing can be known under this key.
    pub(crate) fn register(&mut self, key: &Key<'_>, page: PageId) -> Option<PageId> {
        match self.prefix.insert(key, page) {
            Insert::New => {
                self.pool.set_cached(page);
                Some(page)
            }
            Insert::Present(known) => Some(known),
            Insert::Collision => None,
        }
    }

    /// Attaches `checkpoint`, which the caller holds, to a known page, unless that has one.
    pub(crate) fn attach(&mut self, checkpoint: CheckpointId, page: PageId) {
        if self.prefix.checkpoint(page).is_none() {
            self.prefix.set_checkpoint(page, Some(checkpoint));
            self.checkpoints.attach(checkpoint, page);
        }
    }

    /// What the next page after `page` is looked up by.
    pub(crate) fn as_parent(&self, page: PageId) -> Parent {
        self.prefix.as_parent(page)
    }

    /// Releases the pages of somebody whose last step was `last_step`, the last page first: a page must not be handed out
    /// while the cache knows one that follows it, because that could not be found any more.
    pub(crate) fn release_all(&mut self, pages: &[PageId], last_step: StepId) {
        for &page in pages.iter().rev() {
            self.pool.release(page, last_step);
        }
    }

    /// Forgets every page. Holders keep theirs.
    pub(crate) fn forget_all(&mut self) {
        for page in 0..self.prefix.pages() as PageId {
            if self.prefix.knows(page) {
                self.forget(page);
                self.pool.clear_cached(page);
            }
        }
    }

    /// Forgets up to `pages` free pages in the order in which they would be handed out. Returns how many.
    pub(crate) fn evict(&mut self, pages: usize) -> usize {
        let oldest: Vec<PageId> =
            self.pool.free_pages().filter(|&page| self.pool.is_cached(page)).take(pages).collect();
        for &page in &oldest {
            self.forget(page);
            self.pool.clear_cached(page);
        }
        oldest.len()
    }

    fn forget(&mut self, page: PageId) {
        if let Some(checkpoint) = self.prefix.remove(page) {
            self.checkpoints.detach(checkpoint);
        }
    }
}
