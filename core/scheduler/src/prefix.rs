//! The prefix cache: finds a full page by what was run up to its end.
//!
//! The key of a page is a 128-bit hash of its parent's key, its tokens and its attachments; the first page's parent is a root
//! made of the cache seed and the request's salt. xxh3 is fast and not made to withstand an adversary, so a hash alone never
//! decides: a page is found only if its tokens are the wanted ones *and* its parent is the very page that was found before it
//! (each entry has a serial number that is never used again). Two chains that collide cost a miss, not a wrong text.

use std::collections::HashMap;

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::plan::{CheckpointId, PageId};

/// What comes before a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parent {
    /// Nothing: the page is the first of requests with this root.
    Root(u128),
    /// The page with this serial number.
    Page(u64),
}

/// What a page is looked up by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key<'a> {
    pub(crate) parent: Parent,
    pub(crate) hash: u128,
    pub(crate) tokens: &'a [u32],
    /// Digest of what tokens do not tell; 0 without attachments.
    pub(crate) attachments: u128,
}

/// Hashes of a chain: parent's hash, tokens of the page, digest of its attachments.
pub(crate) type HashFn = fn(u128, &[u32], u128) -> u128;

/// The hash of a page.
pub(crate) fn page_hash(parent: u128, tokens: &[u32], attachments: u128) -> u128 {
    let mut hasher = Xxh3::new();
    hasher.update(&parent.to_le_bytes());
    hasher.update(&attachments.to_le_bytes());
    for tokens in tokens.chunks(PIECE) {
        let mut bytes = [0; PIECE * 4];
        for (bytes, token) in bytes.chunks_exact_mut(4).zip(tokens) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
        hasher.update(&bytes[..tokens.len() * 4]);
    }
    hasher.digest128()
}

/// Tokens that are handed to the hasher at a time.
const PIECE: usize = 64;

/// The root of chains. The length keeps seed and salt apart.
pub(crate) fn root_hash(seed: &[u8], salt: &[u8]) -> u128 {
    let mut bytes = Vec::with_capacity(8 + seed.len() + salt.len());
    bytes.extend_from_slice(&(seed.len() as u64).to_le_bytes());
    bytes.extend_from_slice(seed);
    bytes.extend_from_slice(salt);
    xxh3_128(&bytes)
}

/// What became of a page that was offered to the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Insert {
    /// The cache knows it now.
    New,
    /// The cache has another page with the same contents.
    Present(PageId),
    /// The cache has a page with the same hash and other contents. It stays.
    Collision,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    hash: u128,
    serial: u64,
    parent: Parent,
    attachments: u128,
    checkpoint: Option<CheckpointId>,
}

#[derive(Debug)]
pub(crate) struct PrefixCache {
    hash: HashFn,
    page_tokens: usize,
    by_hash: HashMap<u128, PageId>,
    entries: Vec<Option<Entry>>,
    /// Tokens of each page, known or not.
    tokens: Vec<u32>,
    next_serial: u64,
}

impl PrefixCache {
    /// An empty cache over `pages` pages of `page_tokens` tokens.
    pub(crate) fn new(pages: usize, page_tokens: usize, hash: HashFn) -> Self {
        Self {
            hash,
            page_tokens,
            by_hash: HashMap::with_capacity(pages),
            entries: vec![None; pages],
            tokens: vec![0; pages * page_tokens],
            next_serial: 1,
        }
    }

    /// Pages there are, known or not.
    pub(crate) fn pages(&self) -> usize {
        self.entries.len()
    }

    /// Pages that can be found.
    pub(crate) fn len(&self) -> usize {
        self.by_hash.len()
    }

    pub(crate) fn hash(&self, parent: u128, tokens: &[u32], attachments: u128) -> u128 {
        (self.hash)(parent, tokens, attachments)
    }

    /// The page with these contents.
    pub(crate) fn find(&self, key: &Key<'_>) -> Option<PageId> {
        let page = *self.by_hash.get(&key.hash)?;
        self.matches(page, key).then_some(page)
    }

    /// What the next page after `page` has as its parent. The cache must know `page`.
    pub(crate) fn as_parent(&self, page: PageId) -> Parent {
        Parent::Page(self.entry(page).serial)
    }

    /// Makes `page` known, unless another one is.
    pub(crate) fn insert(&mut self, key: &Key<'_>, page: PageId) -> Insert {
        if let Some(&known) = self.by_hash.get(&key.hash) {
            return if self.matches(known, key) { Insert::Present(known) } else { Insert::Collision };
        }
        self.by_hash.insert(key.hash, page);
        let serial = self.next_serial;
        self.next_serial += 1;
        let &Key { hash, parent, attachments, .. } = key;
        self.entries[page as usize] = Some(Entry { hash, serial, parent, attachments, checkpoint: None });
        let at = page as usize * self.page_tokens;
        self.tokens[at..at + self.page_tokens].copy_from_slice(key.tokens);
        Insert::New
    }

    /// Forgets `page`, and returns the checkpoint that was attached to it.
    pub(crate) fn remove(&mut self, page: PageId) -> Option<CheckpointId> {
        let entry = self.entries[page as usize].take().expect("a page that the prefix cache knows");
        self.by_hash.remove(&entry.hash);
        entry.checkpoint
    }

    /// Whether `page` can be found.
    pub(crate) fn knows(&self, page: PageId) -> bool {
        self.entries[page as usize].is_some()
    }

    /// The checkpoint attached to `page`. The cache must know the page.
    pub(crate) fn checkpoint(&self, page: PageId) -> Option<CheckpointId> {
        self.entry(page).checkpoint
    }

    /// Attaches a checkpoint to `page`, or with `None` detaches it. The cache must know the page.
    pub(crate) fn set_checkpoint(&mut self, page: PageId, checkpoint: Option<CheckpointId>) {
        self.entries[page as usize].as_mut().expect("a page that the prefix cache knows").checkpoint = checkpoint;
    }

    fn entry(&self, page: PageId) -> &Entry {
        self.entries[page as usize].as_ref().expect("a page that the prefix cache knows")
    }

    fn matches(&self, page: PageId, key: &Key<'_>) -> bool {
        let (entry, at) = (self.entry(page), page as usize * self.page_tokens);
        entry.parent == key.parent
            && entry.attachments == key.attachments
            && &self.tokens[at..at + self.page_tokens] == key.tokens
    }
}

#[cfg(test)]
impl PrefixCache {
    /// Asserts that hashes and entries name each other, and that no page outlives its parent, which would make it a page
    /// that nobody can find. Returns the checkpoint of each page.
    pub(crate) fn check(&self, cached: impl Fn(PageId) -> bool) -> Vec<Option<CheckpointId>> {
        let serials: Vec<u64> = self.entries.iter().flatten().map(|e| e.serial).collect();
        assert_eq!(serials.len(), self.by_hash.len());
        for (page, entry) in self.entries.iter().enumerate() {
            assert_eq!(entry.is_some(), cached(page as PageId), "page {page}: known to the cache");
            let Some(entry) = entry else { continue };
            assert_eq!(self.by_hash.get(&entry.hash), Some(&(page as PageId)));
            if let Parent::Page(serial) = entry.parent {
                assert!(serials.contains(&serial), "page {page} lost its parent");
            }
        }
        self.entries.iter().map(|e| e.and_then(|e| e.checkpoint)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_every_part() {
        let tokens: Vec<u32> = (0..128).collect();
        let base = page_hash(1, &tokens, 0);
        assert_eq!(base, page_hash(1, &tokens, 0));
        assert_ne!(base, page_hash(2, &tokens, 0));
        assert_ne!(base, page_hash(1, &tokens, 3));
        for at in 0..128 {
            let mut other = tokens.clone();
            other[at] ^= 1 << (at % 32);
            assert_ne!(base, page_hash(1, &other, 0), "token {at}");
        }
        assert_ne!(root_hash(b"ab", b"c"), root_hash(b"a", b"bc"));
        assert_ne!(root_hash(b"", b""), root_hash(b"", b"salt"));
    }

    #[test]
    fn the_hash_is_that_of_the_bytes() {
        let tokens: Vec<u32> = (0..100).map(|i| i * 7919).collect();
        let mut bytes = 5_u128.to_le_bytes().to_vec();
        bytes.extend(9_u128.to_le_bytes());
        bytes.extend(tokens.iter().flat_map(|t| t.to_le_bytes()));
        assert_eq!(page_hash(5, &tokens, 9), xxh3_128(&bytes));
    }

    #[test]
    fn equal_hashes_of_different_pages_are_a_miss() {
        let mut cache = PrefixCache::new(4, 2, |_, _, _| 0);
        let root = Parent::Root(1);
        let key = |parent, tokens| Key { parent, hash: 0, tokens, attachments: 0 };
        assert_eq!(cache.insert(&key(root, &[1, 2]), 0), Insert::New);
        assert_eq!(cache.find(&key(root, &[1, 2])), Some(0));
        assert_eq!(cache.find(&key(root, &[1, 3])), None);
        assert_eq!(cache.find(&key(Parent::Root(2), &[1, 2])), None);
        assert_eq!(cache.find(&Key { attachments: 1, ..key(root, &[1, 2]) }), None);
        assert_eq!(cache.insert(&key(root, &[1, 3]), 1), Insert::Collision);
        assert_eq!(cache.insert(&key(root, &[1, 2]), 2), Insert::Present(0));
    }

    #[test]
    fn a_page_is_not_found_behind_a_parent_that_was_computed_again() {
        let mut cache = PrefixCache::new(4, 1, page_hash);
        let first = Key { parent: Parent::Root(0), hash: 10, tokens: &[1], attachments: 0 };
        cache.insert(&first, 0);
        let second = Key { parent: cache.as_parent(0), hash: 11, tokens: &[2], attachments: 0 };
        cache.insert(&second, 1);
        cache.remove(0);
        cache.insert(&first, 2);
        assert_eq!(cache.find(&Key { parent: cache.as_parent(2), ..second }), None);
        assert_eq!(cache.find(&second), Some(1));
    }
}
