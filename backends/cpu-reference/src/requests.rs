//! Which rows of a call belong to which request, and where each request keeps its state.

use std::ops::Range;

use deepinfer_plugin_api::sdk::Fault;
use deepinfer_plugin_api::sdk::tensor::In;

use crate::arguments::index;

/// The checked `request_start` and `state_slot` of a call.
#[derive(Clone, Copy)]
pub(crate) struct Requests<'a> {
    start: &'a [i32],
    slot: &'a [i32],
}

impl<'a> Requests<'a> {
    /// Reads the two arguments of a call of `rows` rows on `slots` state slots.
    ///
    /// # Errors
    /// The starts do not ascend from 0 to `rows`, a slot does not exist, or two requests with rows share one.
    pub(crate) fn new(op: &str, start: &In<'a>, slot: &In<'a>, rows: usize, slots: usize) -> Result<Self, Fault> {
        let requests = Self { start: start.slice()?, slot: slot.slice()? };
        let mut previous = 0;
        for (q, &first) in requests.start.iter().enumerate() {
            if first < previous || (q == 0 && first != 0) {
                return Err(Fault::invalid(format!(
                    "{op}: request_start[{q}] is {first}, but must ascend from 0 (the one before is {previous})"
                )));
            }
            previous = first;
        }
        if previous as usize != rows {
            return Err(Fault::invalid(format!("{op}: request_start ends at {previous}, but there are {rows} rows")));
        }
        let mut owner = vec![None; slots];
        for q in 0..requests.count() {
            let slot = index(op, "state_slot", &[q], requests.slot[q], slots)?;
            if requests.rows(q).is_empty() {
                continue;
            }
            if let Some(other) = owner[slot].replace(q) {
                return Err(Fault::invalid(format!(
                    "{op}: state_slot[{other}] and state_slot[{q}] are both {slot}, but every request needs its own"
                )));
            }
        }
        Ok(requests)
    }

    /// Number of requests.
    pub(crate) fn count(&self) -> usize {
        self.slot.len()
    }

    /// Rows of request `q`.
    pub(crate) fn rows(&self, q: usize) -> Range<usize> {
        self.start[q] as usize..self.start[q + 1] as usize
    }

    /// State slot of request `q`.
    pub(crate) fn slot(&self, q: usize) -> usize {
        self.slot[q] as usize
    }
}
