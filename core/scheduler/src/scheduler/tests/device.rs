//! A device that remembers instead of computing.
//!
//! The cache entry of a position is a hash of all tokens up to it, and so is the state in a slot. A row reads every entry
//! before it and its state, as attention does, and what is drawn is a function of all that was read. So a page handed out too
//! early, a wrong checkpoint, a missing copy or a wrong position changes the tokens, which [`next_token`] knows from the
//! tokens and the content of the request alone.

use std::collections::HashMap;

use crate::config::SchedulerConfig;
use crate::plan::{Phase, PlannedRequest, StepId, StepPlan, TokenSource};
use crate::request::{Attachment, RequestId, RequestSpec};

/// Ids below this are drawn: few, so that outputs of different requests have prefixes in common.
const VOCABULARY: u64 = 3;

/// A token that is never drawn: a draft that will be rejected.
const WRONG: u32 = 99;

/// What a request's results depend on besides its tokens: attachments, and the salt, so that whoever shares pages across salts
/// is found out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Content {
    salt: u64,
    attachments: Vec<Attachment>,
}

impl Content {
    pub(super) fn of(spec: &RequestSpec<'_>) -> Self {
        let salt = spec.cache_salt.iter().fold(0, |salt, &byte| mix(salt, u64::from(byte) + 1));
        Self { salt, attachments: spec.attachments.to_vec() }
    }

    /// What is added to the token at `position`.
    fn at(&self, position: usize) -> u64 {
        let salt = if position == 0 { self.salt } else { 0 };
        let here = self.attachments.iter().filter(|attachment| attachment.position == position);
        here.fold(salt, |sum, attachment| mix(sum, attachment.digest as u64))
    }
}

/// State of a request: tokens that ran, and their hash.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct State {
    len: usize,
    hash: u64,
}

impl State {
    fn push(&mut self, token: u32, content: &Content) {
        self.hash = mix(self.hash, (u64::from(token) + 1).wrapping_add(content.at(self.len)));
        self.len += 1;
    }
}

pub(super) struct Device {
    page_tokens: usize,
    /// Entries by page and position within it.
    pages: Vec<Vec<u64>>,
    slots: Vec<State>,
    checkpoints: Vec<State>,
    /// Tokens drawn by each step, by sampler row.
    drawn: HashMap<StepId, Vec<Vec<u32>>>,
    /// How many of the drafts of the next rows are right, counted up and taken modulo their number plus one.
    accepted: usize,
}

impl Device {
    pub(super) fn new(config: &SchedulerConfig) -> Self {
        Self {
            page_tokens: config.page_tokens,
            pages: vec![vec![0; config.page_tokens]; config.pages],
            slots: vec![State::default(); config.state_slots],
            checkpoints: vec![State::default(); config.checkpoints],
            drawn: HashMap::new(),
            accepted: 0,
        }
    }

    /// Runs a step, with the content of each of its requests. Steps run in the order in which they were planned.
    pub(super) fn run<'a>(&mut self, plan: &StepPlan, content: impl Fn(RequestId) -> &'a Content) {
        for copy in plan.page_copies() {
            self.pages[copy.to as usize] = self.pages[copy.from as usize].clone();
        }
        for request in plan.requests() {
            assert!(!(request.reset_slot && request.restore.is_some()));
            if request.reset_slot {
                self.slots[request.slot as usize] = State::default();
            }
            if let Some(checkpoint) = request.restore {
                self.slots[request.slot as usize] = self.checkpoints[checkpoint as usize];
            }
        }
        let mut drawn = vec![Vec::new(); plan.sample_rows()];
        for request in plan.requests() {
            let tokens = self.run_rows(plan, request, content(request.id));
            if let Some(row) = request.sample_row {
                drawn[row as usize] = tokens;
            }
        }
        for request in plan.requests() {
            if let Some(checkpoint) = request.save {
                assert_eq!(self.slots[request.slot as usize].len, request.end(), "saved where it was planned");
                self.checkpoints[checkpoint as usize] = self.slots[request.slot as usize];
            }
        }
        self.drawn.insert(plan.step(), drawn);
    }

    /// What `step` drew for a sampler row.
    pub(super) fn drawn(&self, step: StepId, row: u32) -> &[u32] {
        &self.drawn[&step][row as usize]
    }

    /// Nobody will ask for `step` again.
    pub(super) fn forget(&mut self, step: StepId) {
        self.drawn.remove(&step);
    }

    fn run_rows(&mut self, plan: &StepPlan, request: &PlannedRequest, content: &Content) -> Vec<u32> {
        let pages = plan.pages_of(request);
        let mut state = self.slots[request.slot as usize];
        let behind = request.start.checked_sub(state.len).expect("rows are planned before the state's position");
        assert!(behind <= request.unverified, "{behind} positions behind the plan, {} unverified", request.unverified);
        let mut tokens = plan.tokens_of(request).to_vec();
        if let TokenSource::Device { step, row } = request.source {
            tokens[0] = *self.drawn(step, row).last().expect("a token was drawn");
        }
        let drafts = drafts(request);
        if drafts == 0 {
            for token in tokens {
                self.append(pages, &mut state, token, content);
            }
            self.slots[request.slot as usize] = state;
            return vec![self.draw(pages, state)];
        }
        // Verification: rows after the first rejected draft leave entries that nobody may read.
        self.accepted += 1;
        let right = self.accepted % (drafts + 1);
        let mut drawn = Vec::new();
        self.append(pages, &mut state, tokens[0], content);
        for _ in 0..right {
            let token = self.draw(pages, state);
            drawn.push(token);
            self.append(pages, &mut state, token, content);
        }
        drawn.push(self.draw(pages, state));
        let mut rejected = state;
        for _ in right..drafts {
            self.append(pages, &mut rejected, WRONG, content);
        }
        self.slots[request.slot as usize] = state;
        drawn
    }

    fn append(&mut self, pages: &[u32], state: &mut State, token: u32, content: &Content) {
        let (page, offset) = (pages[state.len / self.page_tokens], state.len % self.page_tokens);
        state.push(token, content);
        self.pages[page as usize][offset] = state.hash;
    }

    fn draw(&self, pages: &[u32], state: State) -> u32 {
        let entry = |at: usize| self.pages[pages[at / self.page_tokens] as usize][at % self.page_tokens];
        token_of(state.hash, (0..state.len).map(entry))
    }
}

/// Drafts among the rows.
pub(super) fn drafts(request: &PlannedRequest) -> usize {
    if request.phase == Phase::Decode { request.rows - 1 } else { 0 }
}

/// The token after `tokens`, whatever else the device ran.
pub(super) fn next_token(tokens: &[u32], content: &Content) -> u32 {
    let mut state = State::default();
    let mut entries = Vec::with_capacity(tokens.len());
    for &token in tokens {
        state.push(token, content);
        entries.push(state.hash);
    }
    token_of(state.hash, entries.into_iter())
}

fn token_of(state: u64, entries: impl Iterator<Item = u64>) -> u32 {
    ((entries.fold(state, mix) >> 16) % VOCABULARY) as u32
}

fn mix(a: u64, b: u64) -> u64 {
    let x = (a ^ b.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ (x >> 29)).wrapping_add(b)
}
