//! A request: what is asked for, how it stands, and what comes back.

use std::ops::{Index, IndexMut, Range};

use xxhash_rust::xxh3::Xxh3;

use crate::ledger::Ledger;
use crate::plan::{PageId, SlotId, StepId};
use crate::prefix::{Key, Parent, PrefixCache};
use crate::request_map::RequestMap;

/// Names a request. Never used twice by a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

impl RequestId {
    /// The name of completion `index` of a request with `n > 1`, given the name that
    /// [`Scheduler::add`](crate::Scheduler::add) returned, which is that of completion 0.
    pub fn completion(self, index: usize) -> Self {
        Self(self.0 + index as u64)
    }
}

/// Content that token ids do not tell, such as an image behind its placeholder tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attachment {
    /// Position of its first token.
    pub position: usize,
    /// Digest of the content.
    pub digest: u128,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestSpec<'a> {
    /// Tokens of the prompt, at least one.
    pub prompt: &'a [u32],
    /// Most output tokens, at least one.
    pub max_tokens: usize,
    /// Completions. They share the prompt's pages; each is a request of its own from then on. Prompt logits come with
    /// completion 0 alone.
    pub n: usize,
    /// The smallest is served first, under [`Policy::Priority`](crate::Policy::Priority).
    pub priority: i32,
    /// Logits are wanted for every token of the prompt, not only for the last. Hits of the prefix cache then wait until
    /// those of the pages concerned have been delivered, which only a preempted request can have.
    pub prompt_logits: bool,
    /// Requests share cached pages only with requests of the same salt.
    pub cache_salt: &'a [u8],
    /// Content that token ids do not tell, by position.
    pub attachments: &'a [Attachment],
}

impl<'a> RequestSpec<'a> {
    /// One completion of at most `max_tokens` tokens.
    pub fn new(prompt: &'a [u32], max_tokens: usize) -> Self {
        Self { prompt, max_tokens, n: 1, priority: 0, prompt_logits: false, cache_salt: &[], attachments: &[] }
    }
}

/// What a step did for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome<'a> {
    /// Tokens to append: one, or up to one more than drafts were verified; none if nothing was sampled.
    pub tokens: &'a [u32],
    /// The request ends here: a stop token or string, or an error (which may come without a token). The length limit needs
    /// no flag.
    pub stop: bool,
}

impl<'a> Outcome<'a> {
    /// Nothing was sampled, and the request goes on.
    pub fn none() -> Self {
        Self::default()
    }

    /// `tokens` were sampled, and the request goes on.
    pub fn tokens(tokens: &'a [u32]) -> Self {
        Self { tokens, stop: false }
    }

    /// `tokens` were sampled, possibly none, and the request ends with them.
    pub fn stop(tokens: &'a [u32]) -> Self {
        Self { tokens, stop: true }
    }
}

/// Why a request ended by a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// [`Outcome::stop`].
    Stop,
    /// It has `max_tokens` tokens.
    Length,
}

/// A request that ended, and its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    /// The request.
    pub id: RequestId,
    /// Why.
    pub reason: Finish,
    /// Tokens of the output.
    pub output_tokens: usize,
    /// Tokens of the prompt that were not computed for it, because the prefix cache or another completion had them.
    pub cached_tokens: usize,
    /// How often it was preempted.
    pub preemptions: u32,
}

/// Order of service: smaller first. The parts are priority, arrival and number of the completion.
pub(crate) type Rank = (i32, u64, u32);

/// A request in the scheduler.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: RequestId,
    pub(crate) rank: Rank,
    pub(crate) ledger: Ledger,
    /// Prompt and committed output: [`Ledger::len`] tokens.
    pub(crate) tokens: Vec<u32>,
    /// Tokens at which it ends: prompt and `max_tokens`.
    pub(crate) max_len: usize,
    /// Pages, in order of position.
    pub(crate) pages: Vec<PageId>,
    pub(crate) slot: Option<SlotId>,
    /// Last step with rows of this request: nothing that it releases is free before that completes.
    pub(crate) last_step: StepId,
    /// Sampler row in the last step that sampled it.
    pub(crate) sample_row: u32,
    pub(crate) preemptions: u32,
    /// It holds every page that it can need, and is not preempted any more.
    pub(crate) reserved: bool,
    /// Set when it is first admitted.
    pub(crate) cached_tokens: Option<usize>,
    /// Whether logits of prompt tokens are wanted, and up to which position results have come.
    pub(crate) prompt_logits: bool,
    pub(crate) prompt_logits_done: usize,
    /// Root of its chain in the prefix cache.
    pub(crate) root: u128,
    pub(crate) attachments: Vec<Attachment>,
    /// Hashes of its full pages, as far as they were asked for. They depend on tokens alone and outlive preemptions.
    pub(crate) hashes: Vec<u128>,
    /// Full pages that the prefix cache knows.
    pub(crate) registered: usize,
    /// Parent of the next page in the prefix cache; `None` when the chain is interrupted and no further page can be found.
    pub(crate) chain: Option<Parent>,
    /// Completions of one prompt: see [`fork`](crate::fork).
    pub(crate) family: Option<RequestId>,
}

impl Request {
    /// The hash of full page `index`.
    pub(crate) fn page_hash(&mut self, index: usize, prefix: &PrefixCache, page_tokens: usize) -> u128 {
        while self.hashes.len() <= index {
            let parent = self.hashes.last().copied().unwrap_or(self.root);
            let range = self.hashes.len() * page_tokens..(self.hashes.len() + 1) * page_tokens;
            let attachments = self.attachments_in(range.clone());
            self.hashes.push(prefix.hash(parent, &self.tokens[range], attachments));
        }
        self.hashes[index]
    }

    /// What full page `index` is looked up by, after [`page_hash`](Self::page_hash) has been asked for it.
    pub(crate) fn page_key(&self, index: usize, parent: Parent, page_tokens: usize) -> Key<'_> {
        let range = index * page_tokens..(index + 1) * page_tokens;
        let attachments = self.attachments_in(range.clone());
        Key { parent, hash: self.hashes[index], tokens: &self.tokens[range], attachments }
    }

    /// Digest of the attachments that begin in `range`; 0 if there are none.
    fn attachments_in(&self, range: Range<usize>) -> u128 {
        let mut inside = self.attachments.iter().filter(|a| range.contains(&a.position)).peekable();
        if inside.peek().is_none() {
            return 0;
        }
        let mut hasher = Xxh3::new();
        for attachment in inside {
            hasher.update(&(attachment.position as u64).to_le_bytes());
            hasher.update(&attachment.digest.to_le_bytes());
        }
        hasher.digest128()
    }
}

/// All requests, each under a small number, its *key*, which is used again when the request has gone.
#[derive(Debug, Default)]
pub(crate) struct RequestTable {
    requests: Vec<Option<Request>>,
    free: Vec<usize>,
    keys: RequestMap<usize>,
}

impl RequestTable {
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn insert(&mut self, request: Request) -> usize {
        let key = self.free.pop().unwrap_or_else(|| {
            self.requests.push(None);
            self.requests.len() - 1
        });
        self.keys.insert(request.id, key);
        self.requests[key] = Some(request);
        key
    }

    pub(crate) fn remove(&mut self, key: usize) -> Request {
        let request = self.requests[key].take().expect("a key in use");
        self.keys.remove(&request.id);
        self.free.push(key);
        request
    }

    pub(crate) fn find(&self, id: RequestId) -> Option<usize> {
        self.keys.get(&id).copied()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Request> {
        self.requests.iter_mut().flatten()
    }

    /// Whether `key` is still the request `id` in its start number `generation`.
    pub(crate) fn is_live(&self, key: usize, id: RequestId, generation: u32) -> bool {
        self.requests[key].as_ref().is_some_and(|r| r.id == id && r.ledger.generation() == generation)
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Request)> {
        self.requests.iter().enumerate().filter_map(|(key, r)| Some((key, r.as_ref()?)))
    }
}

impl Index<usize> for RequestTable {
    type Output = Request;

    fn index(&self, key: usize) -> &Request {
        self.requests[key].as_ref().expect("a key in use")
    }
}

impl IndexMut<usize> for RequestTable {
    fn index_mut(&mut self, key: usize) -> &mut Request {
        self.requests[key].as_mut().expect("a key in use")
    }
}
