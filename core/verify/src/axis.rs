//! What may not matter, as axes: cells are drawn from their product, and every value is counted with the rows that it covered.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::cell::{Arrival, Cell, DEFAULT_BUDGET, Memory, Prefix, Process};
use crate::error::VerifyError;
use crate::noise::{Domain, Noise};
use crate::run::Run;
use crate::workload::{Sampling, Workload};

/// Something that what a request gets must not depend on, or a property of requests that must not matter to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Axis {
    /// How many requests run together.
    Companions,
    /// Most rows of a step, and with it where chunks of prompts end.
    Budget,
    /// The order in which pages are handed out.
    Pages,
    /// How much there is of pages and checkpoints.
    Memory,
    /// Preemption by force.
    Preemption,
    /// The prefix cache.
    Prefix,
    /// Steps ahead of results.
    Async,
    /// Decode steps that are padded and launched from a recording.
    Graphs,
    /// A process of its own.
    Restart,
    /// Completions of a request.
    Completions,
    /// How requests choose their tokens.
    Sampling,
}

impl Axis {
    /// Every axis.
    pub const ALL: [Axis; 11] = [
        Self::Companions,
        Self::Budget,
        Self::Pages,
        Self::Memory,
        Self::Preemption,
        Self::Prefix,
        Self::Async,
        Self::Graphs,
        Self::Restart,
        Self::Completions,
        Self::Sampling,
    ];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Companions => "companions",
            Self::Budget => "budget",
            Self::Pages => "pages",
            Self::Memory => "memory",
            Self::Preemption => "preemption",
            Self::Prefix => "prefix",
            Self::Async => "async",
            Self::Graphs => "graphs",
            Self::Restart => "restart",
            Self::Completions => "completions",
            Self::Sampling => "sampling",
        }
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Axis {
    type Err = VerifyError;

    fn from_str(text: &str) -> Result<Self, VerifyError> {
        Self::ALL
            .into_iter()
            .find(|axis| axis.name() == text)
            .ok_or_else(|| VerifyError::NoAxis { name: text.to_owned(), all: Self::ALL.map(Self::name).join(", ") })
    }
}

/// Values that are dealt out in a drawn order until none is left, and then again: every value comes soon, whatever the seed.
struct Deck<T> {
    values: Vec<T>,
    left: Vec<T>,
}

impl<T: Copy> Deck<T> {
    /// The values, or the first of them alone.
    fn new(is_varied: bool, values: &[T]) -> Self {
        let values = if is_varied { values.to_vec() } else { values[..1].to_vec() };
        Self { values, left: Vec::new() }
    }

    fn deal(&mut self, noise: &mut Noise) -> T {
        if self.left.is_empty() {
            self.left.clone_from(&self.values);
            noise.shuffle(&mut self.left);
        }
        self.left.pop().expect("a deck has values")
    }
}

/// The cells of a seed, in order.
pub(crate) struct Cells {
    seed: u64,
    dealt: u64,
    /// Requests to choose from.
    pool: Vec<usize>,
    companions: Deck<usize>,
    budget: Deck<usize>,
    permute: Deck<bool>,
    memory: Deck<Memory>,
    preempt: Deck<Option<usize>>,
    prefix: Deck<Prefix>,
    asynchronous: Deck<bool>,
    process: Deck<Process>,
    graphs: Deck<bool>,
}

impl Cells {
    /// Cells of `requests` requests of the workload. Axes that are not among `axes` keep the value of a plain cell.
    pub(crate) fn new(workload: &Workload, axes: &BTreeSet<Axis>, requests: usize) -> Self {
        let varies = |axis| axes.contains(&axis);
        let is_wanted = |&number: &usize| {
            (varies(Axis::Completions) || workload.completions(number) == 1)
                && (varies(Axis::Sampling) || workload.sampling(number) == Sampling::Greedy)
        };
        let processes = [&[Process::Same; 9][..], &[Process::Child]].concat();
        Self {
            seed: workload.seed(),
            dealt: 0,
            pool: (0..).filter(is_wanted).take(requests).collect(),
            companions: Deck::new(varies(Axis::Companions), &[1, 2, 7, 32, 1, 2, 7, 2, 7, 64]),
            budget: Deck::new(varies(Axis::Budget), &[DEFAULT_BUDGET, 16, 48, 130, 512]),
            permute: Deck::new(varies(Axis::Pages), &[false, true, true]),
            memory: Deck::new(varies(Axis::Memory), &[Memory::Ample, Memory::Ample, Memory::Tight]),
            preempt: Deck::new(varies(Axis::Preemption), &[None, None, Some(1), Some(3), Some(8)]),
            prefix: Deck::new(varies(Axis::Prefix), &[Prefix::Off, Prefix::Cold, Prefix::Warm, Prefix::Evicted]),
            asynchronous: Deck::new(varies(Axis::Async), &[false, true]),
            process: Deck::new(varies(Axis::Restart), &processes),
            graphs: Deck::new(varies(Axis::Graphs), &[false, true]),
        }
    }
}

impl Iterator for Cells {
    type Item = Cell;

    fn next(&mut self) -> Option<Cell> {
        let mut noise = Noise::new(self.seed, Domain::Cell, self.dealt);
        self.dealt += 1;
        let mut pool = self.pool.clone();
        noise.shuffle(&mut pool);
        pool.truncate(self.companions.deal(&mut noise));
        let arrive = |request| Arrival { request, turn: noise.pick(&[0, 0, 1, 2, 5, 9, 20]) };
        let requests = pool.into_iter().map(arrive).collect();
        Some(Cell {
            requests,
            budget: self.budget.deal(&mut noise),
            page_order: self.permute.deal(&mut noise).then(|| u64::from(noise.word())),
            memory: self.memory.deal(&mut noise),
            preempt_every: self.preempt.deal(&mut noise),
            prefix: self.prefix.deal(&mut noise),
            asynchronous: self.asynchronous.deal(&mut noise),
            process: self.process.deal(&mut noise),
            graphs: self.graphs.deal(&mut noise),
        })
    }
}

/// How much of a campaign a value of an axis covered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// Name of the axis.
    pub axis: &'static str,
    /// The value.
    pub value: String,
    /// Cells with it.
    pub cells: u64,
    /// Rows that were compared with it.
    pub rows: u64,
}

/// Counts cells and rows by the values of all axes.
#[derive(Default)]
pub(crate) struct Covered(BTreeMap<(Axis, usize, String), (u64, u64)>);

impl Covered {
    pub(crate) fn count(&mut self, workload: &Workload, cell: &Cell, run: &Run) {
        let preempt = cell.preempt_every;
        let preemption = preempt.map_or_else(|| "none".to_owned(), |turns| format!("every {turns} turns"));
        let pages = if cell.page_order.is_some() { "permuted" } else { "ascending" };
        let switch = |is_on: bool| if is_on { "on" } else { "off" }.to_owned();
        // Numbers sort by their size, other values in the order of their types.
        let of_cell = [
            (Axis::Companions, cell.requests.len(), cell.requests.len().to_string()),
            (Axis::Budget, cell.budget, cell.budget.to_string()),
            (Axis::Pages, usize::from(cell.page_order.is_some()), pages.to_owned()),
            (Axis::Memory, cell.memory as usize, cell.memory.to_string()),
            (Axis::Preemption, preempt.unwrap_or(0), preemption),
            (Axis::Prefix, cell.prefix as usize, cell.prefix.to_string()),
            (Axis::Async, usize::from(cell.asynchronous), switch(cell.asynchronous)),
            (Axis::Graphs, usize::from(cell.graphs), switch(cell.graphs)),
            (Axis::Restart, cell.process as usize, format!("{} process", cell.process)),
        ];
        for key in of_cell {
            self.add(key, 1, run.rows.len() as u64);
        }
        let mut of_requests: BTreeMap<(Axis, usize, String), u64> = BTreeMap::new();
        for row in &run.rows {
            let (completions, sampling) = (workload.completions(row.request), workload.sampling(row.request));
            for key in [
                (Axis::Completions, completions, completions.to_string()),
                (Axis::Sampling, sampling as usize, sampling.to_string()),
            ] {
                *of_requests.entry(key).or_default() += 1;
            }
        }
        for (key, rows) in of_requests {
            self.add(key, 1, rows);
        }
    }

    fn add(&mut self, key: (Axis, usize, String), cells: u64, rows: u64) {
        let entry = self.0.entry(key).or_default();
        entry.0 += cells;
        entry.1 += rows;
    }

    pub(crate) fn list(&self) -> Vec<Coverage> {
        let coverage = |((axis, _, value), &(cells, rows)): (&(Axis, usize, String), &(u64, u64))| Coverage {
            axis: axis.name(),
            value: value.clone(),
            cells,
            rows,
        };
        self.0.iter().map(coverage).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deck_deals_every_value_before_it_repeats() {
        let mut noise = Noise::new(1, Domain::Cell, 0);
        let mut deck = Deck::new(true, &[1, 2, 3, 4]);
        for _ in 0..10 {
            let mut round: Vec<i32> = (0..4).map(|_| deck.deal(&mut noise)).collect();
            round.sort_unstable();
            assert_eq!(round, [1, 2, 3, 4]);
        }
        let mut fixed = Deck::new(false, &[1, 2]);
        assert!((0..10).all(|_| fixed.deal(&mut noise) == 1));
    }

    #[test]
    fn axes_have_names() {
        for axis in Axis::ALL {
            assert_eq!(axis.name().parse::<Axis>().unwrap(), axis);
        }
        let error = "speculation".parse::<Axis>().unwrap_err().to_string();
        assert!(error.contains("\"speculation\"; the axes are companions, budget"), "{error}");
    }
}
