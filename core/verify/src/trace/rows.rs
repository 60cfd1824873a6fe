//! Which row of an output belongs to which row of the step.
//!
//! Most outputs have one row for each row of the step. Others have one for each expert of a row, for each compression group
//! that ends in the step, for each row that needs logits, or for each draw; the arguments of the ops say which.

use deepinfer_ops::{Device, OpCall, OpError, Part, Scope, Tensor};
use deepinfer_plugin_api::reflection::Role;

use super::values;

/// Bytes of minus infinity in F32.
const NO_SCORE: [u8; 4] = f32::NEG_INFINITY.to_le_bytes();
/// Bytes of -1 in I32.
const NO_ENTRY: [u8; 4] = (-1_i32).to_le_bytes();

/// What a row of an output belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowPlace {
    /// A row of the step.
    Row(usize),
    /// One of the experts of a row of the step.
    Expert(usize, usize),
    /// A row of the draw.
    Draw(usize),
}

/// How an output divides into rows.
pub(super) struct Layout {
    /// Dimension that counts the rows.
    pub(super) dimension: usize,
    /// What each row belongs to; nothing for rows without content.
    pub(super) places: Vec<Option<RowPlace>>,
    /// A row ends before elements of this value that go on to its end: the width of the tensor depends on the batch.
    pub(super) padding: Option<[u8; 4]>,
}

/// What the calls of a step so far say about the rows of the next ones.
#[derive(Default)]
pub(super) struct RowMaps {
    /// Row of the step and number of the expert, by the row in the sort by expert.
    experts: Vec<Option<RowPlace>>,
    /// The part of a layer whose groups are known, and the row that ends each of them.
    groups: Option<(Scope, Vec<usize>)>,
    /// Row of the step of each row that has logits.
    head: Vec<usize>,
}

impl RowMaps {
    /// Takes in what `call`, which has run, says.
    pub(super) fn learn(&mut self, device: &dyn Device, scope: Scope, call: &dyn OpCall) -> Result<(), OpError> {
        match (call.info().name, scope.part) {
            ("moe_dispatch", _) => {
                let Some(row_of) = argument(call, "row_of") else { return Ok(()) };
                let chosen = row_of.dim(1);
                self.experts = vec![None; row_of.dim(0) * chosen];
                for (pair, at) in values::ints(device, &row_of)?.into_iter().enumerate() {
                    if let Some(place) = usize::try_from(at).ok().and_then(|at| self.experts.get_mut(at)) {
                        *place = Some(RowPlace::Expert(pair / chosen, pair % chosen));
                    }
                }
            }
            ("compress_and_update_state", _) => {
                let Some(ends) = argument(call, "group_row") else { return Ok(()) };
                let rows = values::ints(device, &ends)?.into_iter().map(|row| row as usize).collect();
                self.groups = Some((scope, rows));
            }
            ("gather", Part::Head) => {
                let Some(index) = argument(call, "index") else { return Ok(()) };
                self.head = values::ints(device, &index)?.into_iter().map(|row| row as usize).collect();
            }
            _ => {}
        }
        Ok(())
    }

    /// How `tensor`, which is argument `arg` of `call`, divides into rows; nothing if it is not written, or holds what depends
    /// on the batch by its nature.
    pub(super) fn layout(&self, scope: Scope, call: &dyn OpCall, arg: &str, tensor: &Tensor) -> Option<Layout> {
        let op = call.info().name;
        let role = call.info().args.iter().find(|info| info.name == arg)?.role;
        // What is drawn from is compared, too, to tell a wrong draw from wrong logits.
        let is_seen = role != Role::In || (op, arg) == ("fused_sample", "logits");
        let is_of_the_batch = matches!(
            (op, arg),
            ("store_kv_cache", "cache")
                | ("compress_and_update_state", "state")
                | ("engram_hash", "history")
                | ("load_paged_kv_cache", _)
                | ("convert_kv_index", _)
                | ("moe_dispatch", "expert_start" | "row_of")
        );
        if !is_seen || is_of_the_batch || !tensor.is_contiguous() {
            return None;
        }
        let dimension = usize::from((op, arg) == ("engram_hash", "rows"));
        let count = tensor.dim(dimension);
        let by_expert = match op {
            "moe_dispatch" | "grouped_linear" => true,
            "swiglu_quantize" => argument(call, "row_weight").is_some(),
            _ => false,
        };
        let rows = |of: &[usize]| of.iter().map(|&row| Some(RowPlace::Row(row))).collect();
        let places: Vec<Option<RowPlace>> = match scope.part {
            _ if by_expert => self.experts.clone(),
            Part::Head => rows(&self.head),
            Part::Sample => (0..count).map(|draw| Some(RowPlace::Draw(draw))).collect(),
            Part::Compress if self.groups.as_ref().is_some_and(|(of, _)| *of == scope) => {
                rows(self.groups.as_ref().map_or(&[], |(_, rows)| rows))
            }
            _ => (0..count).map(|row| Some(RowPlace::Row(row))).collect(),
        };
        let padding = match op {
            "index_scores" | "candidate_block_max" => Some(NO_SCORE),
            "topk_select" | "restore_candidate_indices_inplace" => Some(NO_ENTRY),
            _ => None,
        };
        (places.len() == count).then_some(Layout { dimension, places, padding })
    }
}

/// A tensor argument that is there.
fn argument(call: &dyn OpCall, name: &str) -> Option<Tensor> {
    let mut found = None;
    call.tensors(&mut |arg, tensor| {
        if arg == name {
            found = Some(tensor.clone());
        }
    });
    found
}
