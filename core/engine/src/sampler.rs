//! The draw of a step: one path for every row, whatever its neighbours ask for.
//!
//! All rows of a step go through one `adjust_logits` (a row that needs nothing has empty lists, which leave its bits alone),
//! one `apply_token_mask` and one `fused_sample`. The first two are left out when no row needs them. The ops are EXACT, row by
//! row, so that what is drawn for a row follows from its logits and parameters.

use std::rc::Rc;

use deepinfer_ops::args::{AdjustLogits, ApplyTokenMask, FusedSample};
use deepinfer_ops::traits::SampleOps;
use deepinfer_ops::{Arena, Device, Download, Format, OpError, Part, Scope, Tensor};

use crate::staging::Staging;

/// Most columns over which `fused_sample` takes a `top_p`.
const TOP_P_VOCABULARY: usize = 1 << 17;

/// What one row is drawn with.
pub(crate) struct SampleRow<'a> {
    /// 1 / temperature; 0 is greedy.
    pub(crate) inv_temperature: f32,
    pub(crate) seed: u64,
    /// Absolute position of the token.
    pub(crate) position: usize,
    /// Number of the completion.
    pub(crate) child: usize,
    pub(crate) min_p_log: f32,
    pub(crate) top_k: usize,
    pub(crate) top_p: f32,
    pub(crate) repetition: f32,
    pub(crate) frequency: f32,
    pub(crate) presence: f32,
    /// Added to logits, by ascending token.
    pub(crate) biases: &'a [(u32, f32)],
    /// Tokens so far, ascending, with their counts in the output.
    pub(crate) seen: &'a [(u32, u32)],
    /// Bits of the allowed tokens.
    pub(crate) mask: Option<&'a Rc<[u32]>>,
}

impl SampleRow<'_> {
    /// A row whose token nobody waits for.
    pub(crate) fn unused(position: usize) -> Self {
        Self {
            inv_temperature: 0.0,
            seed: 0,
            position,
            child: 0,
            min_p_log: f32::NEG_INFINITY,
            top_k: 0,
            top_p: 1.0,
            repetition: 1.0,
            frequency: 0.0,
            presence: 0.0,
            biases: &[],
            seen: &[],
            mask: None,
        }
    }

    fn is_adjusted(&self) -> bool {
        !self.biases.is_empty() || !self.seen.is_empty()
    }
}

/// Queues draws; the tokens stay on the device, where the next step reads them.
pub(crate) struct Sampler {
    /// What the last step drew, `[max_num_seqs]` I32. One buffer serves all steps: the next step has read it, and its copy to
    /// the host is queued, before the next draw is.
    tokens: Tensor,
    staging: Staging,
}

impl Sampler {
    /// For at most `rows` rows.
    pub(crate) fn new(device: &dyn Device, rows: usize) -> Result<Self, OpError> {
        let memory = device.allocate(rows * 4)?;
        let tokens = Tensor::plain(&memory, 0, Format::I32, &[rows]);
        device.fill(&tokens, 0)?;
        Ok(Self { tokens, staging: Staging::default() })
    }

    /// The tokens of the last draw, and after them old ones.
    pub(crate) fn tokens(&self) -> &Tensor {
        &self.tokens
    }

    /// Queues the draws of `rows`, whose logits are `logits`, `[rows, vocab]` F32, which change in place. The download has
    /// their tokens, each in four bytes; -1 stands for a row that nothing can be drawn from. Without rows it has one number
    /// that means nothing, and still tells when the step is over.
    pub(crate) fn enqueue(
        &mut self,
        device: &dyn Device,
        arena: &Arena,
        logits: &Tensor,
        rows: &[SampleRow<'_>],
    ) -> Result<Box<dyn Download>, OpError> {
        if !rows.is_empty() {
            device.scope(Scope::of(Part::Sample));
            self.draw(device, arena, logits, rows)?;
        }
        device.download_later(&self.tokens.rows(0, rows.len().max(1)))
    }

    fn draw(
        &mut self,
        device: &dyn Device,
        arena: &Arena,
        logits: &Tensor,
        rows: &[SampleRow<'_>],
    ) -> Result<(), OpError> {
        let count = rows.len();
        let staging = &mut self.staging;
        staging.clear();
        let floats = |staging: &mut Staging, of: fn(&SampleRow<'_>) -> f32| {
            staging.push(Format::F32, &[count], rows.iter().map(|row| of(row).to_le_bytes()))
        };
        let words = |staging: &mut Staging, of: fn(&SampleRow<'_>) -> usize| {
            staging.push(Format::I32, &[count], rows.iter().map(|row| (of(row) as u32).to_le_bytes()))
        };
        let seed = staging.push(Format::I64, &[count], rows.iter().map(|row| row.seed.to_le_bytes()));
        let inv_temperature = floats(staging, |row| row.inv_temperature);
        let position = words(staging, |row| row.position);
        let child = words(staging, |row| row.child);
        let min_p_log = floats(staging, |row| row.min_p_log);
        let top_k = words(staging, |row| row.top_k);
        let top_p = floats(staging, |row| row.top_p);

        let adjusted = rows.iter().any(SampleRow::is_adjusted).then(|| {
            let (biases, seen) = (rows.iter().flat_map(|r| r.biases), rows.iter().flat_map(|r| r.seen));
            let (bias_count, seen_count) = (biases.clone().count(), seen.clone().count());
            [
                staging.push(Format::I32, &[count, 2], ranges(rows, |row| row.biases.len())),
                staging.push(Format::I32, &[bias_count], biases.clone().map(|(token, _)| token.to_le_bytes())),
                staging.push(Format::F32, &[bias_count], biases.map(|(_, bias)| bias.to_le_bytes())),
                floats(staging, |row| row.repetition),
                floats(staging, |row| row.repetition.recip()),
                floats(staging, |row| row.frequency),
                floats(staging, |row| row.presence),
                staging.push(Format::I32, &[count, 2], ranges(rows, |row| row.seen.len())),
                staging.push(Format::I32, &[seen_count], seen.clone().map(|(token, _)| token.to_le_bytes())),
                staging.push(Format::I32, &[seen_count], seen.map(|(_, times)| times.to_le_bytes())),
            ]
        });
        let masked = rows.iter().any(|row| row.mask.is_some()).then(|| {
            // Completions of one request share their mask, and equal masks are equal pointers.
            let mut masks: Vec<&Rc<[u32]>> = Vec::new();
            let index: Vec<i32> = rows
                .iter()
                .map(|row| {
                    let Some(mask) = row.mask else { return -1 };
                    let at = masks.iter().position(|other| Rc::ptr_eq(other, mask)).unwrap_or(masks.len());
                    if at == masks.len() {
                        masks.push(mask);
                    }
                    at as i32
                })
                .collect();
            let words = masks.iter().flat_map(|mask| mask.iter()).map(|word| word.to_le_bytes());
            let index = staging.push(Format::I32, &[count], index.iter().map(|at| at.to_le_bytes()));
            (index, staging.push(Format::I32, &[masks.len(), masks[0].len()], words))
        });

        let staged = staging.upload(device, arena)?;
        if let Some(ids) = adjusted {
            let [
                bias_range,
                bias_token,
                bias_value,
                repetition,
                inv_repetition,
                frequency,
                presence,
                seen_range,
                seen_token,
                seen_count,
            ] = ids.map(|id| staged.get(id));
            device.adjust_logits(&AdjustLogits {
                logits,
                bias_range: &bias_range,
                bias_token: &bias_token,
                bias_value: &bias_value,
                repetition: &repetition,
                inv_repetition: &inv_repetition,
                frequency: &frequency,
                presence: &presence,
                seen_range: &seen_range,
                seen_token: &seen_token,
                seen_count: &seen_count,
            })?;
        }
        if let Some((index, masks)) = masked {
            let (mask_index, masks) = (staged.get(index), staged.get(masks));
            device.apply_token_mask(&ApplyTokenMask { logits, mask_index: &mask_index, masks: &masks })?;
        }
        // Larger vocabularies have no top_p; requests with one were refused.
        let top_p = (logits.dim(1) <= TOP_P_VOCABULARY).then(|| staged.get(top_p));
        device.fused_sample(&FusedSample {
            logits,
            inv_temperature: &staged.get(inv_temperature),
            seed: &staged.get(seed),
            position: &staged.get(position),
            token: &self.tokens.rows(0, count),
            child: Some(&staged.get(child)),
            min_p_log: Some(&staged.get(min_p_log)),
            top_k: Some(&staged.get(top_k)),
            top_p: top_p.as_ref(),
        })
    }
}

/// Of each row the first entry of its list, and the one after the last, in one array with all lists.
fn ranges(rows: &[SampleRow<'_>], len: impl Fn(&SampleRow<'_>) -> usize) -> impl Iterator<Item = [u8; 8]> {
    let mut end = 0_u32;
    rows.iter().map(move |row| {
        let start = end;
        end += len(row) as u32;
        let (start, end) = (start.to_le_bytes(), end.to_le_bytes());
        std::array::from_fn(|i| if i < 4 { start[i] } else { end[i - 4] })
    })
}
