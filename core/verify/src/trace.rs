//! Where two runs part: every op's outputs, hashed row by row and named by layer, op and position.
//!
//! [`TraceDevice`] stands between a model and its device. While it traces, it reads back what each op has written and hashes it
//! row by row; the engine's [`StepHook`] then tells which rows were whose. Values that depend on the batch by their nature
//! (places of pages, rows of the sort by expert) are left out, and so is padding whose width depends on the batch.

mod device;
mod rows;
mod values;

use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

use deepinfer_engine::{RequestId, StepHook, StepPlan};
use deepinfer_model::KvCache;
use deepinfer_ops::Scope;
use serde::Serialize;

pub(crate) use self::device::TraceDevice;
use self::rows::RowPlace;
use crate::run::Digest;

/// An output of an op, as it comes once in every step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallKey {
    pub(crate) scope: Scope,
    pub(crate) op: &'static str,
    /// Which of the calls of this op in the scope.
    pub(crate) ordinal: usize,
    pub(crate) arg: &'static str,
    /// Which of a row's experts.
    pub(crate) expert: usize,
}

/// A row of an output: of which call, at which position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Spot {
    pub(crate) call: CallKey,
    pub(crate) position: usize,
}

/// All rows of one completion.
#[derive(Default)]
pub(crate) struct Trace {
    /// Hashes of each spot, in the order in which they came.
    digests: HashMap<Spot, Vec<Digest>>,
    /// When each call came first.
    order: HashMap<CallKey, usize>,
    /// Values of the spot that was asked for, one list for each time that it came.
    pub(crate) values: Vec<Vec<f32>>,
    /// Positions at which the completion began from a checkpoint.
    pub(crate) restored_at: Vec<usize>,
}

/// The first row that two traces do not agree on.
pub(crate) struct Parting {
    pub(crate) spot: Spot,
    pub(crate) expected: Digest,
    pub(crate) found: Digest,
    /// Which of the times that the row came it is.
    pub(crate) occurrence: usize,
}

/// Where a run leaves the solo run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Site {
    /// Part of the step: `layers.3.attn`, ...
    pub scope: String,
    /// Op.
    pub op: &'static str,
    /// Which of the calls of the op in that part, from 0.
    pub call: usize,
    /// Output.
    pub arg: &'static str,
    /// Position of the row.
    pub position: usize,
    /// Hash of the row alone.
    pub expected: String,
    /// Hash of the row in company.
    pub found: String,
    /// Largest difference of two elements; `None` if it cannot be told, as with a NaN on one side or rows of other lengths.
    pub largest_difference: Option<f32>,
    /// Elements that differ, and elements of the row.
    pub differing_elements: Option<(usize, usize)>,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scope, op, call, arg, position, .. } = self;
        write!(f, "{scope}, {op}")?;
        if *call > 0 {
            write!(f, " (call {})", call + 1)?;
        }
        write!(f, ", argument {arg}, position {position}")
    }
}

impl Trace {
    /// The first spot whose hash differs: of all positions the first one, since a later one may have read what it left, and
    /// there the first call.
    pub(crate) fn parting(&self, solo: &Trace) -> Option<Parting> {
        let differing = self.digests.iter().filter_map(|(spot, found)| {
            let expected = *solo.digests.get(spot)?.first()?;
            let occurrence = found.iter().position(|&digest| digest != expected)?;
            Some(Parting { spot: *spot, expected, found: found[occurrence], occurrence })
        });
        differing.min_by_key(|parting| (parting.spot.position, solo.order[&parting.spot.call]))
    }

    /// The hashes of a spot.
    pub(crate) fn digests(&self, spot: &Spot) -> &[Digest] {
        self.digests.get(spot).map_or(&[], Vec::as_slice)
    }
}

/// Whose rows are traced: completion `completion` of the requests that are added while it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    /// Number of the request in the workload.
    pub(crate) request: usize,
    pub(crate) completion: usize,
    /// Keep the values of this spot.
    pub(crate) keep: Option<Spot>,
}

/// What the trace of a run gathers.
struct Log {
    subject: Subject,
    /// Names of the completion in the engine: one for each pass.
    names: Vec<RequestId>,
    /// Calls of the step that is being queued.
    step: Vec<Recorded>,
    trace: Trace,
}

/// An output of a call of the step.
struct Recorded {
    /// With expert 0.
    call: CallKey,
    rows: Vec<RecordedRow>,
}

struct RecordedRow {
    place: RowPlace,
    digest: Digest,
    /// If they were asked for.
    values: Option<Vec<f32>>,
}

impl Log {
    /// Gives the rows of the step to their positions.
    fn end_step(&mut self, plan: &StepPlan) {
        let step = std::mem::take(&mut self.step);
        let Some(planned) = plan.requests().iter().find(|planned| self.names.contains(&planned.id)) else { return };
        if planned.restore.is_some() {
            self.trace.restored_at.push(planned.start);
        }
        let rows = planned.first_row..planned.first_row + planned.rows;
        for Recorded { call, rows: recorded } in step {
            let order = self.trace.order.len();
            self.trace.order.entry(call).or_insert(order);
            for RecordedRow { place, digest, values } in recorded {
                let (row, expert) = match place {
                    RowPlace::Row(row) => (row, 0),
                    RowPlace::Expert(row, expert) => (row, expert),
                    RowPlace::Draw(draw) if planned.sample_row == Some(draw as u32) => (rows.end - 1, 0),
                    RowPlace::Draw(_) => continue,
                };
                if !rows.contains(&row) {
                    continue;
                }
                let spot = Spot { call: CallKey { expert, ..call }, position: planned.start + row - rows.start };
                self.trace.order.entry(spot.call).or_insert(order);
                self.trace.digests.entry(spot).or_default().push(digest);
                if self.subject.keep == Some(spot) {
                    self.trace.values.extend(values);
                }
            }
        }
    }
}

/// Tells the trace whose rows a step had.
pub(crate) struct TraceHook(pub(crate) Rc<TraceDevice>);

impl StepHook for TraceHook {
    fn before_wait(&mut self, next: &StepPlan, _: &KvCache) {
        self.0.end_step(next);
    }
}

/// Number of differing elements, and the largest difference; `None` if it cannot be told.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> (Option<(usize, usize)>, Option<f32>) {
    if a.len() != b.len() {
        return (None, None);
    }
    let differing = a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits());
    let (mut count, mut largest) = (0, Some(0.0_f32));
    for (a, b) in differing {
        count += 1;
        let difference = (a - b).abs();
        largest = largest.filter(|_| !difference.is_nan()).map(|largest| largest.max(difference));
    }
    (Some((count, a.len())), largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance(&[1.0, 2.0, 3.0], &[1.0, 2.5, 1.0]), (Some((2, 3)), Some(2.0)));
        assert_eq!(distance(&[1.0], &[1.0]), (Some((0, 1)), Some(0.0)));
        assert_eq!(distance(&[1.0, f32::NAN], &[2.0, 1.0]), (Some((2, 2)), None));
        assert_eq!(distance(&[1.0], &[1.0, 2.0]), (None, None));
    }
}
