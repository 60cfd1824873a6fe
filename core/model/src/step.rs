//! One step of the model: which rows of which requests run, and all that kernels need to know about them.
//!
//! Everything is computed on the host from positions and page tables, packed into one buffer that is used again step after
//! step, and uploaded at once and without a wait. Row t of a step is one token; the rows of a request follow each other.

mod pack;

use std::collections::BTreeMap;

use deepinfer_ops::{Arena, Device, OpError, Tensor};

use crate::cache_format::PAGE_TOKENS;
use crate::config::ModelConfig;
use crate::state::KvCache;
use crate::step_graphs::StepShape;

use self::pack::{At, Uploaded, fill_run, store};

pub(crate) use self::pack::Pack;

/// A place that does not exist, for what is not stored.
const NOWHERE: u32 = -1_i32 as u32;

/// The rows of one request in a step.
#[derive(Clone, Copy, Debug)]
pub struct RequestRows<'a> {
    /// Tokens to run, at least one. Anything where [`DeviceTokens`] has the token.
    pub tokens: &'a [u32],
    /// Position of the first of them: the number of tokens that ran before.
    pub start: usize,
    /// State slot of the request.
    pub slot: usize,
    /// Its pages, enough for `start + tokens.len()` tokens.
    pub pages: &'a [u32],
    /// Not 0 at image positions, one per token; empty when there are none.
    pub image_mask: &'a [u8],
}

impl RequestRows<'_> {
    /// Rows that only pad a step have no pages: they store nothing and see nothing.
    fn is_padding(&self) -> bool {
        self.pages.is_empty()
    }
}

/// Tokens that no host has seen: what the sampler of an earlier step draws.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTokens<'a> {
    /// Token ids, `[n]` I32, contiguous. An id outside the vocabulary, which stands for a draw that failed, runs as token 0:
    /// the rows of its request then mean nothing, those of others are not touched.
    pub ids: &'a Tensor,
    /// Rows of the step that take their token from `ids`, and the index there.
    pub rows: &'a [(usize, usize)],
}

/// What one step runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepInput<'a> {
    /// Requests, in the order of their rows.
    pub requests: &'a [RequestRows<'a>],
    /// Rows of the step whose logits are wanted.
    pub logit_rows: &'a [usize],
    /// Tokens that are on the device only.
    pub device_tokens: Option<DeviceTokens<'a>>,
}

impl StepInput<'_> {
    /// Rows of the step.
    pub fn rows(&self) -> usize {
        self.requests.iter().map(|r| r.tokens.len()).sum()
    }
}

/// Where the rows of a step find their window entries.
#[derive(Clone)]
pub(crate) enum WindowSource {
    /// The rings hold the window of every row together with the new entries.
    Ring,
    /// The chunk is longer than the rings reach: entries before it are loaded from the rings, and rows attend to a dense
    /// buffer of those and the chunk's own.
    Dense {
        /// Ring slots of the entries before the chunk.
        history_slots: Tensor,
        /// Rows of the dense buffer.
        rows: usize,
    },
}

/// Metadata of the layers that read entries at one compression ratio.
#[derive(Clone)]
pub(crate) struct RatioStep {
    /// Most entries that a row can see.
    pub(crate) entries: usize,
    /// Entries that each row can see, `[T]`.
    pub(crate) visible: Tensor,
    /// Last row of each group that ends in this step, `[G]`.
    pub(crate) group_row: Tensor,
    /// Position of the first token of each group, `[G]`.
    pub(crate) group_position: Tensor,
    /// Cache slot of each group's entry, `[G]`.
    pub(crate) group_slot: Tensor,
}

/// How tokens that are on the device come to their rows.
#[derive(Clone)]
pub(crate) struct LateTokens {
    /// The host's tokens, then room for the device's, `[T + n, 1]`.
    pub(crate) table: Tensor,
    /// Where in it each row's token is, `[T]`.
    pub(crate) index: Tensor,
}

/// A step on the device.
#[derive(Clone)]
pub(crate) struct Step {
    /// Rows.
    pub(crate) rows: usize,
    /// Tokens of the rows, as far as the host knows them.
    pub(crate) token_ids: Tensor,
    /// For rows whose token is on the device.
    pub(crate) late_tokens: Option<LateTokens>,
    pub(crate) positions: Tensor,
    pub(crate) row_request: Tensor,
    pub(crate) request_start: Tensor,
    pub(crate) state_slot: Tensor,
    pub(crate) block_table: Tensor,
    pub(crate) image_mask: Option<Tensor>,
    /// Ring slot that each row's window entry goes to, or -1.
    pub(crate) ring_slots: Tensor,
    /// Window entries of each row, `[T, window]`, oldest first.
    pub(crate) window_slots: Tensor,
    pub(crate) window: WindowSource,
    pub(crate) ratios: BTreeMap<usize, RatioStep>,
    /// Collapse weights of layer 0, `[T, copies]`: the first copy alone.
    pub(crate) first_pre: Tensor,
    /// 0, 1, .., T - 1.
    pub(crate) row_numbers: Tensor,
    /// Rows whose logits are wanted.
    pub(crate) logit_rows: Tensor,
}

/// A [`Step`] before it is uploaded.
pub(crate) struct PackedStep {
    rows: usize,
    token_ids: At,
    late_index: Option<At>,
    positions: At,
    row_request: At,
    request_start: At,
    state_slot: At,
    block_table: At,
    image_mask: Option<At>,
    ring_slots: At,
    window_slots: At,
    /// Where the entries before the chunks are, and the rows of the dense buffer, if there is one.
    dense: Option<(At, usize)>,
    ratios: BTreeMap<usize, PackedRatio>,
    first_pre: At,
    row_numbers: At,
    logit_rows: At,
}

impl PackedStep {
    /// Plans a step of one row per request in a shape: `zeros` are the tokens of rows that pad it.
    pub(crate) fn decode(
        pack: &mut Pack,
        config: &ModelConfig,
        cache: &KvCache,
        input: &StepInput<'_>,
        (shape, zeros): (&StepShape, &[u32]),
    ) -> Result<Self, OpError> {
        let live = input.requests.len();
        let padding = |rows: usize| RequestRows {
            tokens: &zeros[..rows],
            start: 0,
            slot: shape.padding_slot,
            pages: &[],
            image_mask: &[],
        };
        // One request has all rows that pad; those after it, which make up their number, have none.
        let mut requests = Vec::with_capacity(shape.rows + 1);
        requests.extend_from_slice(input.requests);
        requests.push(padding(shape.rows - live));
        requests.resize(shape.rows + 1, padding(0));
        let mut logit_rows = Vec::with_capacity(shape.rows);
        logit_rows.extend_from_slice(input.logit_rows);
        logit_rows.extend(input.logit_rows.len()..shape.rows);
        let padded = StepInput { requests: &requests, logit_rows: &logit_rows, device_tokens: input.device_tokens };
        Self::new(pack, config, cache, &padded, Some(shape))
    }

    /// Plans a step; one of a shape has the room that the shape has.
    pub(crate) fn new(
        pack: &mut Pack,
        config: &ModelConfig,
        cache: &KvCache,
        input: &StepInput<'_>,
        shape: Option<&StepShape>,
    ) -> Result<Self, OpError> {
        let (requests, rows, window) = (input.requests, input.rows(), config.sliding_window);
        pack.clear();

        let late = input.device_tokens.map_or(0, |late| late.ids.dim(0));
        let (token_ids, table) = pack.words(&[rows + late, 1])?;
        store(table, requests.iter().flat_map(|r| r.tokens).copied().chain(std::iter::repeat_n(0, late)));
        let late_index = match input.device_tokens {
            None => None,
            Some(late) => {
                let (at, index) = pack.words(&[rows])?;
                fill_run(index, 0);
                late.rows.iter().for_each(|&(row, from)| index[row] = ((rows + from) as u32).to_le_bytes());
                Some(at)
            }
        };
        let (positions, out) = pack.words(&[rows])?;
        for_each_request(requests, out, |_, r, out| fill_run(out, r.start));
        let (row_request, out) = pack.words(&[rows])?;
        for_each_request(requests, out, |q, _, out| out.fill((q as u32).to_le_bytes()));
        let (request_start, out) = pack.words(&[requests.len() + 1])?;
        let mut start = 0;
        store(
            out,
            std::iter::once(0).chain(requests.iter().map(|r| {
                start += r.tokens.len() as u32;
                start
            })),
        );
        let (state_slot, out) = pack.words(&[requests.len()])?;
        store(out, requests.iter().map(|r| r.slot as u32));
        let pages_of = |r: &RequestRows<'_>| KvCache::pages_for(r.start + r.tokens.len());
        let table_width = match shape {
            None => requests.iter().map(pages_of).max().unwrap_or(0),
            Some(shape) => KvCache::pages_for(shape.tokens),
        };
        let (block_table, out) = pack.words(&[requests.len(), table_width])?;
        for (request, out) in requests.iter().zip(out.chunks_exact_mut(table_width.max(1))) {
            let own = if request.is_padding() { 0 } else { pages_of(request) };
            let (pages, padding) = out.split_at_mut(own);
            store(pages, request.pages.iter().copied());
            padding.fill([0; 4]);
        }

        // New entries overwrite old ones of the ring; as long as it is long enough, nobody still needs those.
        let longest = requests.iter().filter(|r| !r.is_padding()).map(|r| r.tokens.len()).max().unwrap_or(0);
        let direct = longest + window <= cache.ring + 1;
        let (ring_slots, out) = pack.words(&[rows])?;
        for_each_request(requests, out, |_, r, out| ring_slots_of(cache.ring, r, out));
        let (window_slots, out) = pack.words(&[rows, window])?;
        let history_of = |r: &RequestRows<'_>| r.start.min(window - 1);
        let history_len = if direct { 0 } else { requests.iter().map(history_of).sum() };
        let (mut history_base, mut chunk_base, mut row) = (0, history_len, 0);
        for request in requests {
            let history_end = history_base + history_of(request);
            for position in request.start..request.start + request.tokens.len() {
                let out = &mut out[row * window..][..window];
                if request.is_padding() {
                    out.fill(NOWHERE.to_le_bytes());
                } else if direct {
                    window_in_ring(cache.ring, request.slot, position, out);
                } else {
                    window_in_chunk(request.start, history_end, chunk_base, position, out);
                }
                row += 1;
            }
            history_base = history_end;
            chunk_base += request.tokens.len();
        }
        let (history_slots, mut out) = pack.words(&[history_len])?;
        for request in requests.iter().filter(|_| !direct) {
            let (own, rest) = out.split_at_mut(history_of(request));
            fill_ring(own, cache.ring, request.slot, request.start - own.len());
            out = rest;
        }

        let mut ratios = BTreeMap::new();
        for &ratio in &config.compress_ratios[..config.num_hidden_layers] {
            if ratio > 0 && !ratios.contains_key(&ratio) {
                ratios.insert(ratio, PackedRatio::new(ratio, requests, (rows, shape), pack)?);
            }
        }

        let image_mask = if requests.iter().any(|r| !r.image_mask.is_empty()) {
            let (at, out) = pack.bytes(&[rows])?;
            let mask = requests.iter().flat_map(|r| (0..r.tokens.len()).map(|i| r.image_mask.get(i).copied()));
            out.iter_mut().zip(mask).for_each(|(out, mask)| *out = mask.unwrap_or(0));
            Some(at)
        } else {
            None
        };
        let (first_pre, out) = pack.floats(&[rows, config.hc_mult])?;
        for out in out.chunks_exact_mut(config.hc_mult) {
            out.fill(0.0_f32.to_le_bytes());
            out[0] = 1.0_f32.to_le_bytes();
        }
        let (row_numbers, out) = pack.words(&[rows])?;
        fill_run(out, 0);
        let (logit_rows, out) = pack.words(&[input.logit_rows.len()])?;
        store(out, input.logit_rows.iter().map(|&row| row as u32));

        let dense = (!direct).then_some((history_slots, history_len + rows));
        Ok(Self {
            rows,
            token_ids,
            late_index,
            positions,
            row_request,
            request_start,
            state_slot,
            block_table,
            image_mask,
            ring_slots,
            window_slots,
            dense,
            ratios,
            first_pre,
            row_numbers,
            logit_rows,
        })
    }

    /// Takes the step to temporary memory of the device, without a wait; also the memory of all of it.
    pub(crate) fn upload(self, pack: &Pack, device: &dyn Device, arena: &Arena) -> Result<(Step, Tensor), OpError> {
        let uploaded = pack.upload(device, arena)?;
        let (rows, table) = (self.rows, uploaded.get(self.token_ids));
        let step = Step {
            rows,
            token_ids: table.rows(0, rows).reshape(&[rows]),
            late_tokens: self.late_index.map(|index| LateTokens { table, index: uploaded.get(index) }),
            positions: uploaded.get(self.positions),
            row_request: uploaded.get(self.row_request),
            request_start: uploaded.get(self.request_start),
            state_slot: uploaded.get(self.state_slot),
            block_table: uploaded.get(self.block_table),
            image_mask: self.image_mask.map(|at| uploaded.get(at)),
            ring_slots: uploaded.get(self.ring_slots),
            window_slots: uploaded.get(self.window_slots),
            window: match self.dense {
                None => WindowSource::Ring,
                Some((history_slots, rows)) => WindowSource::Dense { history_slots: uploaded.get(history_slots), rows },
            },
            ratios: self.ratios.into_iter().map(|(ratio, packed)| (ratio, packed.unpack(&uploaded))).collect(),
            first_pre: uploaded.get(self.first_pre),
            row_numbers: uploaded.get(self.row_numbers),
            logit_rows: uploaded.get(self.logit_rows),
        };
        Ok((step, uploaded.whole()))
    }
}

/// Hands each request its part of an array with one value per row.
fn for_each_request(
    requests: &[RequestRows<'_>],
    mut out: &mut [[u8; 4]],
    mut write: impl FnMut(usize, &RequestRows<'_>, &mut [[u8; 4]]),
) {
    for (q, request) in requests.iter().enumerate() {
        let (own, rest) = out.split_at_mut(request.tokens.len());
        write(q, request, own);
        out = rest;
    }
}

/// Places of consecutive positions, from `first` on, in the ring of a slot: at most two runs if there are no more of them
/// than entries.
fn fill_ring(mut out: &mut [[u8; 4]], ring: usize, slot: usize, first: usize) {
    let mut at = first % ring;
    while !out.is_empty() {
        let (run, rest) = out.split_at_mut(out.len().min(ring - at));
        fill_run(run, slot * ring + at);
        (out, at) = (rest, 0);
    }
}

/// Where the rows of a request go in its ring; of rows that share a place only the last is stored.
fn ring_slots_of(ring: usize, request: &RequestRows<'_>, out: &mut [[u8; 4]]) {
    if request.is_padding() {
        return out.fill(NOWHERE.to_le_bytes());
    }
    let (lost, kept) = out.split_at_mut(out.len().saturating_sub(ring));
    lost.fill((-1_i32).to_le_bytes());
    fill_ring(kept, ring, request.slot, request.start + lost.len());
}

/// The window of a row whose position is `position`, in the ring of its slot, oldest first.
fn window_in_ring(ring: usize, slot: usize, position: usize, out: &mut [[u8; 4]]) {
    let entries = out.len().min(position + 1);
    let (absent, present) = out.split_at_mut(out.len() - entries);
    absent.fill((-1_i32).to_le_bytes());
    fill_ring(present, ring, slot, position + 1 - entries);
}

/// The window of a row whose position is `position`, in the dense buffer: what lies before the chunk, which begins at
/// `start`, ends before `history_end`, and the chunk begins at `chunk_base`.
fn window_in_chunk(start: usize, history_end: usize, chunk_base: usize, position: usize, out: &mut [[u8; 4]]) {
    let entries = out.len().min(position + 1);
    let (absent, present) = out.split_at_mut(out.len() - entries);
    absent.fill((-1_i32).to_le_bytes());
    let first = position + 1 - entries;
    let before = start.saturating_sub(first);
    let (history, chunk) = present.split_at_mut(before);
    fill_run(history, history_end - before);
    fill_run(chunk, chunk_base + (first + before - start));
}

/// A compression group whose last token is in this step.
#[derive(Clone, Copy)]
struct EndedGroup {
    /// Row of the last token.
    row: u32,
    /// Position of the first.
    position: u32,
    /// Where its entry goes, or [`NOWHERE`].
    slot: u32,
}

/// [`RatioStep`] before it is uploaded.
struct PackedRatio {
    entries: usize,
    visible: At,
    group_row: At,
    group_position: At,
    group_slot: At,
}

impl PackedRatio {
    fn new(
        ratio: usize,
        requests: &[RequestRows<'_>],
        (rows, shape): (usize, Option<&StepShape>),
        pack: &mut Pack,
    ) -> Result<Self, OpError> {
        // Powers of two, as the 128 tokens of a page: divisions would be most of the time here.
        let (ratio_bits, page_bits) = (ratio.ilog2(), (PAGE_TOKENS / ratio).ilog2());
        assert!(ratio << page_bits == PAGE_TOKENS, "groups of {ratio} tokens do not fill pages");
        let mut groups: Vec<EndedGroup> = Vec::with_capacity(requests.len() + rows / ratio);
        let (mut entries, mut row) = (0, 0);
        let (visible, out) = pack.words(&[rows])?;
        for request in requests {
            if request.is_padding() {
                for position in 0..request.tokens.len() {
                    // Where a group is a token, every row has one.
                    if ratio == 1 {
                        groups.push(EndedGroup { row: row as u32, position: position as u32, slot: NOWHERE });
                    }
                    out[row] = [0; 4];
                    row += 1;
                }
                continue;
            }
            // Entry j exists for a row once its group is complete.
            let mut group = request.start >> ratio_bits;
            let mut group_end = (group + 1) << ratio_bits;
            for position in request.start..request.start + request.tokens.len() {
                if position + 1 == group_end {
                    let page = request.pages[group >> page_bits] as usize;
                    let slot = ((page << page_bits) + (group & ((1 << page_bits) - 1))) as u32;
                    groups.push(EndedGroup { row: row as u32, position: (group_end - ratio) as u32, slot });
                    (group, group_end) = (group + 1, group_end + ratio);
                }
                out[row] = (group as u32).to_le_bytes();
                row += 1;
            }
            entries = entries.max(group);
        }
        if let Some(shape) = shape {
            entries = shape.tokens / ratio;
            // Groups that make up the number are one that ends, pooled again and not stored.
            if let Some(last) = groups.last().copied() {
                groups.resize(shape.rows, EndedGroup { slot: NOWHERE, ..last });
            }
        }
        let mut column = |of: fn(&EndedGroup) -> u32| {
            let (at, out) = pack.words(&[groups.len()])?;
            store(out, groups.iter().map(of));
            Ok::<_, OpError>(at)
        };
        let (group_row, group_position) = (column(|g| g.row)?, column(|g| g.position)?);
        let group_slot = column(|g| g.slot)?;
        Ok(Self { entries, visible, group_row, group_position, group_slot })
    }

    fn unpack(self, uploaded: &Uploaded<'_>) -> RatioStep {
        RatioStep {
            entries: self.entries,
            visible: uploaded.get(self.visible),
            group_row: uploaded.get(self.group_row),
            group_position: uploaded.get(self.group_position),
            group_slot: uploaded.get(self.group_slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(out: &[[u8; 4]]) -> Vec<i32> {
        out.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect()
    }

    /// The window of a row, position by position.
    fn expected(window: usize, position: usize, place: impl Fn(usize) -> usize) -> Vec<i32> {
        (0..window).rev().map(|back| position.checked_sub(back).map_or(-1, |at| place(at) as i32)).collect()
    }

    #[test]
    fn windows_in_rings_are_oldest_first() {
        let (window, ring, slot) = (8, 11, 3);
        for position in 0..60 {
            let mut out = vec![[0x55; 4]; window];
            window_in_ring(ring, slot, position, &mut out);
            assert_eq!(values(&out), expected(window, position, |at| slot * ring + at % ring), "position {position}");
        }
    }

    #[test]
    fn windows_in_chunks_reach_into_the_history() {
        let (window, history_base, chunk_base) = (8, 100, 1000);
        for start in 0..30 {
            let history = start.min(window - 1);
            for position in start..start + 20 {
                let mut out = vec![[0x55; 4]; window];
                window_in_chunk(start, history_base + history, chunk_base, position, &mut out);
                let place = |at: usize| match at.checked_sub(start) {
                    Some(own) => chunk_base + own,
                    None => history_base + at + history - start,
                };
                assert_eq!(values(&out), expected(window, position, place), "chunk at {start}, position {position}");
            }
        }
    }

    #[test]
    fn of_rows_that_share_a_place_in_the_ring_the_last_is_stored() {
        let ring = 11;
        for (start, len) in [(0, 1), (5, 11), (5, 12), (3, 40)] {
            let tokens = vec![0; len];
            let request = RequestRows { tokens: &tokens, start, slot: 2, pages: &[0], image_mask: &[] };
            let mut out = vec![[0x55; 4]; len];
            ring_slots_of(ring, &request, &mut out);
            let place = |at| if at + ring >= start + len { (2 * ring + at % ring) as i32 } else { -1 };
            assert_eq!(values(&out), (start..start + len).map(place).collect::<Vec<_>>(), "{len} rows from {start}");
        }
    }
}
