//! Decode steps as recordings: a step of one row per request is padded to one of few shapes, all that differs between two
//! steps of a shape lies in one buffer at a fixed address, and the work behind it is recorded once and launched step after
//! step.
//!
//! Rows that pad a step belong to one request more, of a state slot that nobody else has. They store nothing, see no entry
//! and, computed from the same token each, choose the same experts, so that they cost little. No result of another row
//! depends on them, as none depends on any company.
//!
//! A shape is issued as any step when it is first seen, so that devices have prepared what they use and the arena has its
//! size, and recorded when it is seen again.

use deepinfer_ops::{Arena, Device, Mark, OpError, Recorded, Tensor};

use crate::cache_format::PAGE_TOKENS;
use crate::config::ModelConfig;
use crate::state::KvCache;
use crate::step::StepInput;

/// Shapes that are kept, the latest used ones.
const MOST_SHAPES: usize = 32;
/// Positions for which every step has room, so that short requests are of one shape.
const LEAST_TOKENS: usize = 1024;
/// Rows of shapes up to this are powers of two; beyond it there is one between two of them.
const FINE_ROWS: usize = 8;

/// Sizes of an engine that bound the shapes of its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphLimits {
    /// Most requests of a step.
    pub requests: usize,
    /// Most tokens of a request.
    pub tokens: usize,
    /// State slot of the rows that pad.
    pub padding_slot: usize,
}

/// What became of the decode steps so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphStats {
    /// Steps that were launched from a recording.
    pub launched: u64,
    /// Steps that were issued op by op, of all kinds.
    pub issued: u64,
    /// Recordings that were made.
    pub recorded: u64,
    /// Ops, fills and copies of the latest launch.
    pub ops: usize,
    /// Whether one call of the backend queued them.
    pub is_captured: bool,
}

/// Recordings of the decode steps of one model over one cache; see [`Model::enqueue_decode`](crate::Model::enqueue_decode).
pub struct StepGraphs {
    limits: GraphLimits,
    /// Tokens of the rows that pad.
    zeros: Vec<u32>,
    /// Address of the cache.
    cache: Option<usize>,
    /// Latest used last.
    entries: Vec<(StepShape, Entry)>,
    stats: GraphStats,
}

/// What is known of a shape.
enum Entry {
    /// It was issued once.
    Seen,
    /// It cannot be recorded.
    Refused,
    Recorded(Box<StepGraph>),
}

/// A recorded step.
struct StepGraph {
    /// Where the metadata goes.
    metadata: Tensor,
    recorded: Recorded,
    /// Logits of all rows that the shape has room for.
    logits: Tensor,
    /// The arena behind the step's temporaries.
    end: Mark,
}

/// All that decides what a decode step does besides the content of its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepShape {
    /// Rows, those that pad included.
    pub(crate) rows: usize,
    /// Positions that rows may see; whole pages.
    pub(crate) tokens: usize,
    /// State slot of the rows that pad.
    pub(crate) padding_slot: usize,
    /// Bit r is set if a group of 2^r tokens, r > 0, ends.
    ended: u32,
    /// Address and length of the tokens on the device, if rows take theirs from there.
    drawn: Option<(usize, usize)>,
}

impl StepGraphs {
    /// Nothing is recorded yet.
    pub fn new(limits: GraphLimits) -> Self {
        Self { limits, zeros: vec![0; limits.requests], cache: None, entries: Vec::new(), stats: GraphStats::default() }
    }

    /// What became of the steps so far.
    pub fn stats(&self) -> GraphStats {
        self.stats
    }

    /// A step was issued op by op.
    pub(crate) fn count_issued(&mut self) {
        self.stats.issued += 1;
    }

    /// The tokens of rows that pad.
    pub(crate) fn zeros(&self) -> &[u32] {
        &self.zeros
    }

    /// The shape of a step, if it is one of a row per request.
    pub(crate) fn shape_of(
        &mut self,
        config: &ModelConfig,
        cache: &KvCache,
        input: &StepInput<'_>,
    ) -> Option<StepShape> {
        let address = cache.slot(self.limits.padding_slot).address();
        assert_eq!(*self.cache.get_or_insert(address), address, "recordings are of one cache");
        let GraphLimits { requests, tokens, padding_slot } = self.limits;
        let live = input.requests.len();
        let is_decode = input.requests.iter().all(|r| r.tokens.len() == 1 && r.image_mask.is_empty());
        if !is_decode || live == 0 || live > requests || input.logit_rows.len() > live {
            return None;
        }
        let longest = input.requests.iter().map(|r| r.start + 1).max().unwrap_or(1);
        let shape = StepShape {
            rows: rows_for(live).min(requests),
            tokens: tokens_for(longest, tokens),
            padding_slot,
            ended: ended_groups(config, input),
            drawn: input.device_tokens.map(|tokens| (tokens.ids.address(), tokens.ids.dim(0))),
        };
        (longest <= shape.tokens).then_some(shape)
    }

    /// Queues a step of this shape whose metadata is `packed`, if it is recorded, and returns the logits of all its rows.
    pub(crate) fn launch(
        &mut self,
        (device, arena): (&dyn Device, &Arena),
        shape: &StepShape,
        packed: &[u8],
    ) -> Result<Option<Tensor>, OpError> {
        let Some(at) = self.entries.iter().rposition(|(known, _)| known == shape) else { return Ok(None) };
        // The latest used is last.
        let entry = self.entries.remove(at);
        self.entries.push(entry);
        let Some((_, Entry::Recorded(graph))) = self.entries.last() else { return Ok(None) };
        assert_eq!(graph.metadata.bytes(), packed.len(), "steps of one shape have metadata of one size");
        arena.rewind(graph.end);
        device.upload_staged(&graph.metadata, packed)?;
        device.launch_recorded(&graph.recorded)?;
        self.stats.launched += 1;
        (self.stats.ops, self.stats.is_captured) = (graph.recorded.steps(), graph.recorded.is_captured());
        Ok(Some(graph.logits.clone()))
    }

    /// Whether a shape that is not recorded should be, now that it comes again.
    pub(crate) fn is_due(&self, shape: &StepShape) -> bool {
        matches!(self.entries.last(), Some((known, Entry::Seen)) if known == shape)
    }

    /// Records `issue`, which works on `metadata` and gives the logits, and queues it. `None` if that is impossible here:
    /// then nothing was queued.
    pub(crate) fn record(
        &mut self,
        (device, arena): (&dyn Device, &Arena),
        shape: StepShape,
        metadata: Tensor,
        issue: &dyn Fn() -> Result<Tensor, OpError>,
    ) -> Result<Option<Tensor>, OpError> {
        let (begin, mut logits) = (arena.mark(), None);
        let recorded = device.record_work(&mut || {
            logits = Some(issue()?);
            Ok(())
        });
        let entry = match (recorded, logits) {
            (Ok(Some(recorded)), Some(logits)) => {
                device.launch_recorded(&recorded)?;
                self.stats.recorded += 1;
                self.stats.launched += 1;
                (self.stats.ops, self.stats.is_captured) = (recorded.steps(), recorded.is_captured());
                Entry::Recorded(Box::new(StepGraph { metadata, recorded, logits, end: arena.mark() }))
            }
            (Err(error @ (OpError::DeviceLost(_) | OpError::Panicked { .. })), _) => return Err(error),
            // Memory for the recording, or an op that has none of it: what is wrong with the step shows when it is issued.
            (Ok(_) | Err(_), _) => {
                arena.rewind(begin);
                Entry::Refused
            }
        };
        let logits = match &entry {
            Entry::Recorded(graph) => Some(graph.logits.clone()),
            _ => None,
        };
        self.keep(shape, entry);
        Ok(logits)
    }

    /// A shape was issued.
    pub(crate) fn saw(&mut self, shape: StepShape) {
        if self.entries.last().is_none_or(|(known, _)| *known != shape) {
            self.keep(shape, Entry::Seen);
        }
    }

    /// Replaces what is known of a shape.
    fn keep(&mut self, shape: StepShape, entry: Entry) {
        self.entries.retain(|(known, _)| *known != shape);
        if self.entries.len() == MOST_SHAPES {
            self.entries.remove(0);
        }
        self.entries.push((shape, entry));
    }
}

/// Rows of the shape for `live` requests.
fn rows_for(live: usize) -> usize {
    let power = live.next_power_of_two();
    let between = power / 4 * 3;
    if power > FINE_ROWS && live <= between { between } else { power }
}

/// Positions of the shape for requests whose longest has `longest` tokens, if none has more than `limit`: at most a quarter
/// more than that, so that a recording lasts while requests grow.
fn tokens_for(longest: usize, limit: usize) -> usize {
    let longest = longest.max(LEAST_TOKENS);
    let step = (longest.next_power_of_two() / 8).next_multiple_of(PAGE_TOKENS);
    longest.next_multiple_of(step).min(limit.next_multiple_of(PAGE_TOKENS))
}

/// The bits of [`StepShape::ended`].
fn ended_groups(config: &ModelConfig, input: &StepInput<'_>) -> u32 {
    let mut ended = 0;
    for &ratio in config.compress_ratios[..config.num_hidden_layers].iter().filter(|&&ratio| ratio > 1) {
        let bit = 1 << ratio.ilog2();
        if ended & bit == 0 && input.requests.iter().any(|r| (r.start + 1).is_multiple_of(ratio)) {
            ended |= bit;
        }
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_padded_by_less_than_half() {
        let shapes: Vec<usize> = (1..=256).map(rows_for).collect();
        assert!(shapes.iter().zip(1..).all(|(&rows, live)| rows >= live && rows < 2 * live));
        let mut distinct = shapes.clone();
        distinct.dedup();
        assert_eq!(distinct, [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]);
    }

    #[test]
    fn positions_are_whole_pages_within_a_quarter() {
        let mut distinct: Vec<usize> = (1..=1 << 20).map(|longest| tokens_for(longest, 1 << 20)).collect();
        for (at, &tokens) in distinct.iter().enumerate().skip(LEAST_TOKENS) {
            let longest = at + 1;
            assert!(
                tokens >= longest && 4 * tokens <= 5 * longest.next_multiple_of(PAGE_TOKENS),
                "{longest}: {tokens}"
            );
            assert_eq!(tokens % PAGE_TOKENS, 0);
        }
        distinct.dedup();
        assert_eq!(distinct.len(), 1 + 4 * 10);
        // What no request can have is not provided for.
        assert_eq!((tokens_for(5, 300), tokens_for(300, 300), tokens_for(1500, 1501)), (384, 384, 1536));
    }
}
