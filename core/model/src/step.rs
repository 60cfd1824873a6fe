//! One step of the model: which rows of which requests run, and all that kernels need to know about them.
//!
//! Everything is computed on the host from positions and page tables, packed into one buffer and uploaded at once. Row t
//! of a step is one token; the rows of a request follow each other.

use std::collections::{BTreeMap, TryReserveError};

use deepinfer_ops::{Arena, Device, Format, OpError, Tensor};

use crate::cache_format::PAGE_TOKENS;
use crate::config::ModelConfig;
use crate::state::KvCache;

/// The rows of one request in a step.
#[derive(Clone, Copy, Debug)]
pub struct RequestRows<'a> {
    /// Tokens to run, at least one.
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

/// Where the rows of a step find their window entries.
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

/// A step on the device.
pub(crate) struct Step {
    /// Rows.
    pub(crate) rows: usize,
    pub(crate) token_ids: Tensor,
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

impl Step {
    /// Plans and uploads a step. `logit_rows` are row numbers within the step.
    pub(crate) fn upload(
        device: &dyn Device,
        arena: &Arena,
        config: &ModelConfig,
        cache: &KvCache,
        requests: &[RequestRows<'_>],
        logit_rows: &[usize],
    ) -> Result<Self, OpError> {
        let rows: usize = requests.iter().map(|r| r.tokens.len()).sum();
        let window = config.sliding_window;
        let mut pack = Pack::default();

        let positions: Vec<usize> = requests.iter().flat_map(|r| r.start..r.start + r.tokens.len()).collect();
        let token_ids = pack.ints(requests.iter().flat_map(|r| r.tokens.iter().map(|&t| t as usize)), &[rows])?;
        let positions_at = pack.ints(positions.iter().copied(), &[rows])?;
        let owner = requests.iter().enumerate().flat_map(|(q, r)| std::iter::repeat_n(q, r.tokens.len()));
        let row_request = pack.ints(owner, &[rows])?;
        let mut start = 0;
        let starts = std::iter::once(0).chain(requests.iter().map(|r| {
            start += r.tokens.len();
            start
        }));
        let request_start = pack.ints(starts, &[requests.len() + 1])?;
        let state_slot = pack.ints(requests.iter().map(|r| r.slot), &[requests.len()])?;
        let table_width = requests.iter().map(|r| r.pages.len()).max().unwrap_or(0);
        let table = requests.iter().flat_map(|r| {
            let padding = std::iter::repeat_n(0, table_width - r.pages.len());
            r.pages.iter().map(|&p| p as usize).chain(padding)
        });
        let block_table = pack.ints(table, &[requests.len(), table_width])?;

        // New entries overwrite old ones of the ring; as long as it is long enough, nobody still needs those.
        let longest = requests.iter().map(|r| r.tokens.len()).max().unwrap_or(0);
        let direct = longest + window <= cache.ring + 1;
        let mut ring_slots = list_of(rows)?;
        let mut window_slots = list_of(rows * window)?;
        let mut history_slots = Vec::new();
        let history_of = |r: &RequestRows<'_>| r.start.min(window - 1);
        let mut history_base = 0;
        let mut chunk_base: i32 = requests.iter().map(|r| history_of(r) as i32).sum();
        for request in requests {
            let ring = |position: usize| (request.slot * cache.ring + position % cache.ring) as i32;
            let (start, end) = (request.start, request.start + request.tokens.len());
            let history = history_of(request);
            if !direct {
                history_slots.extend((start - history..start).map(ring));
            }
            for position in start..end {
                ring_slots.push(if position + cache.ring >= end { ring(position) } else { -1 });
                for back in (0..window).rev() {
                    window_slots.push(match position.checked_sub(back) {
                        None => -1,
                        Some(at) if direct => ring(at),
                        Some(at) if at >= start => chunk_base + (at - start) as i32,
                        Some(at) => history_base + (at + history - start) as i32,
                    });
                }
            }
            history_base += history as i32;
            chunk_base += request.tokens.len() as i32;
        }
        let ring_slots = pack.signed(&ring_slots, &[rows])?;
        let window_slots = pack.signed(&window_slots, &[rows, window])?;
        let history_len = history_slots.len();
        let history_slots = pack.signed(&history_slots, &[history_len])?;

        let mut ratios = BTreeMap::new();
        let mut used: Vec<usize> = config.compress_ratios[..config.num_hidden_layers].to_vec();
        used.sort_unstable();
        used.dedup();
        for ratio in used.into_iter().filter(|&ratio| ratio > 0) {
            ratios.insert(ratio, RatioPlan::new(ratio, requests, &positions).pack(&mut pack)?);
        }

        let image_mask = requests.iter().any(|r| !r.image_mask.is_empty()).then(|| {
            let mask: Vec<u8> = requests
                .iter()
                .flat_map(|r| (0..r.tokens.len()).map(|i| r.image_mask.get(i).copied().unwrap_or(0)))
                .collect();
            pack.bytes(&mask, Format::U8, &[rows])
        });
        let image_mask = image_mask.transpose()?;
        let copies = config.hc_mult;
        let first_pre: Vec<u8> =
            (0..rows * copies).flat_map(|i| if i % copies == 0 { 1.0_f32 } else { 0.0 }.to_le_bytes()).collect();
        let first_pre = pack.bytes(&first_pre, Format::F32, &[rows, copies])?;
        let row_numbers = pack.ints(0..rows, &[rows])?;
        let logit_rows = pack.ints(logit_rows.iter().copied(), &[logit_rows.len()])?;

        let uploaded = pack.upload(device, arena)?;
        let dense_rows = history_len + rows;
        Ok(Self {
            rows,
            token_ids: uploaded.get(token_ids),
            positions: uploaded.get(positions_at),
            row_request: uploaded.get(row_request),
            request_start: uploaded.get(request_start),
            state_slot: uploaded.get(state_slot),
            block_table: uploaded.get(block_table),
            image_mask: image_mask.map(|at| uploaded.get(at)),
            ring_slots: uploaded.get(ring_slots),
            window_slots: uploaded.get(window_slots),
            window: if direct {
                WindowSource::Ring
            } else {
                WindowSource::Dense { history_slots: uploaded.get(history_slots), rows: dense_rows }
            },
            ratios: ratios.into_iter().map(|(ratio, packed)| (ratio, packed.unpack(&uploaded))).collect(),
            first_pre: uploaded.get(first_pre),
            row_numbers: uploaded.get(row_numbers),
            logit_rows: uploaded.get(logit_rows),
        })
    }
}

/// Host side of [`RatioStep`].
struct RatioPlan {
    entries: usize,
    visible: Vec<i32>,
    group_row: Vec<i32>,
    group_position: Vec<i32>,
    group_slot: Vec<i32>,
}

impl RatioPlan {
    fn new(ratio: usize, requests: &[RequestRows<'_>], positions: &[usize]) -> Self {
        let entries_per_page = PAGE_TOKENS / ratio;
        let mut plan = Self {
            entries: 0,
            visible: Vec::with_capacity(positions.len()),
            group_row: Vec::new(),
            group_position: Vec::new(),
            group_slot: Vec::new(),
        };
        let mut row = 0;
        for request in requests {
            for position in request.start..request.start + request.tokens.len() {
                // Entry j exists for a row once its group is complete.
                let visible = (position + 1) / ratio;
                plan.entries = plan.entries.max(visible);
                plan.visible.push(visible as i32);
                if (position + 1).is_multiple_of(ratio) {
                    let entry = visible - 1;
                    let page = request.pages[entry / entries_per_page] as usize;
                    plan.group_row.push(row);
                    plan.group_position.push((entry * ratio) as i32);
                    plan.group_slot.push((page * entries_per_page + entry % entries_per_page) as i32);
                }
                row += 1;
            }
        }
        plan
    }

    fn pack(&self, pack: &mut Pack) -> Result<PackedRatio, OpError> {
        let groups = self.group_row.len();
        Ok(PackedRatio {
            entries: self.entries,
            visible: pack.signed(&self.visible, &[self.visible.len()])?,
            group_row: pack.signed(&self.group_row, &[groups])?,
            group_position: pack.signed(&self.group_position, &[groups])?,
            group_slot: pack.signed(&self.group_slot, &[groups])?,
        })
    }
}

struct PackedRatio {
    entries: usize,
    visible: At,
    group_row: At,
    group_position: At,
    group_slot: At,
}

impl PackedRatio {
    fn unpack(self, uploaded: &Uploaded) -> RatioStep {
        RatioStep {
            entries: self.entries,
            visible: uploaded.get(self.visible),
            group_row: uploaded.get(self.group_row),
            group_position: uploaded.get(self.group_position),
            group_slot: uploaded.get(self.group_slot),
        }
    }
}

/// An empty list with room for `len` items. Windows and pages decide how long the lists of a step are, so that memory may
/// well run out here.
fn list_of<T>(len: usize) -> Result<Vec<T>, OpError> {
    let mut list = Vec::new();
    list.try_reserve_exact(len).map_err(|error| out_of_host_memory(len.saturating_mul(size_of::<T>()), &error))?;
    Ok(list)
}

fn out_of_host_memory(bytes: usize, error: &TryReserveError) -> OpError {
    OpError::OutOfMemory {
        bytes: bytes as u64,
        reason: format!("the host cannot hold the metadata of a step: {error}"),
    }
}

/// Arrays on their way to the device, in one buffer.
#[derive(Default)]
struct Pack {
    bytes: Vec<u8>,
    arrays: Vec<(usize, Format, Vec<usize>)>,
}

/// An array of a [`Pack`].
#[derive(Clone, Copy)]
struct At(usize);

impl Pack {
    fn bytes(&mut self, bytes: &[u8], format: Format, shape: &[usize]) -> Result<At, OpError> {
        debug_assert_eq!(bytes.len(), Tensor::bytes_of(format, shape));
        let at = self.begin(format, shape, bytes.len())?;
        self.bytes.extend_from_slice(bytes);
        Ok(at)
    }

    fn signed(&mut self, values: &[i32], shape: &[usize]) -> Result<At, OpError> {
        debug_assert_eq!(values.len(), shape.iter().product::<usize>());
        let at = self.begin(Format::I32, shape, size_of_val(values))?;
        self.bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        Ok(at)
    }

    fn ints(&mut self, values: impl Iterator<Item = usize>, shape: &[usize]) -> Result<At, OpError> {
        let mut list = list_of(shape.iter().product())?;
        list.extend(values.map(|v| v as i32));
        self.signed(&list, shape)
    }

    /// Makes room for the `bytes` bytes of the next array, which the caller appends.
    fn begin(&mut self, format: Format, shape: &[usize], bytes: usize) -> Result<At, OpError> {
        let start = self.bytes.len().next_multiple_of(64);
        let grown = start.saturating_add(bytes) - self.bytes.len();
        self.bytes.try_reserve(grown).map_err(|error| out_of_host_memory(grown, &error))?;
        self.bytes.resize(start, 0);
        self.arrays.push((start, format, shape.to_vec()));
        Ok(At(self.arrays.len() - 1))
    }

    fn upload(self, device: &dyn Device, arena: &Arena) -> Result<Uploaded, OpError> {
        let whole = arena.tensor(Format::U8, &[self.bytes.len()])?;
        device.upload(&whole, &self.bytes)?;
        let tensors = self
            .arrays
            .into_iter()
            .map(|(offset, format, shape)| Tensor::plain(&whole.memory(), offset, format, &shape))
            .collect();
        Ok(Uploaded { tensors })
    }
}

struct Uploaded {
    tensors: Vec<Tensor>,
}

impl Uploaded {
    fn get(&self, at: At) -> Tensor {
        self.tensors[at.0].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_that_do_not_fit_are_errors() {
        assert!(list_of::<i32>(1000).unwrap().capacity() >= 1000);
        let error = list_of::<i32>(usize::MAX / 8).unwrap_err();
        assert!(matches!(error, OpError::OutOfMemory { bytes, .. } if bytes == (usize::MAX / 8 * 4) as u64), "{error}");
        assert!(error.to_string().contains("metadata of a step"), "{error}");
        let mut pack = Pack::default();
        assert!(pack.begin(Format::I32, &[2], 8).is_ok());
        assert!(matches!(pack.begin(Format::I32, &[], usize::MAX), Err(OpError::OutOfMemory { .. })));
    }

    #[test]
    fn arrays_begin_at_multiples_of_64_bytes() {
        let mut pack = Pack::default();
        pack.bytes(&[1, 2, 3], Format::U8, &[3]).unwrap();
        pack.ints([5, 6].into_iter(), &[2]).unwrap();
        pack.signed(&[-1], &[1]).unwrap();
        let offsets: Vec<usize> = pack.arrays.iter().map(|(offset, ..)| *offset).collect();
        assert_eq!(offsets, [0, 64, 128]);
        assert_eq!(pack.bytes[64..72], [5, 0, 0, 0, 6, 0, 0, 0]);
        assert_eq!(pack.bytes[128..], [0xFF; 4]);
    }
}
