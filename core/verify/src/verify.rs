//! A campaign: cells are drawn and held to the solo runs of their requests; the first that differs is made small and traced.

use std::collections::{BTreeSet, HashMap};

use deepinfer_ops::{Part, Scope};

use crate::axis::{Axis, Cells, Covered};
use crate::cell::{Cell, Process};
use crate::error::VerifyError;
use crate::lab::Lab;
use crate::report::{Finding, Report};
use crate::run::{Difference, Run, Solo, What, WrongDraw, compare};
use crate::shrink::shrink;
use crate::trace::{CallKey, Parting, Site, Spot, Subject, Trace, distance};

/// Fewest and most requests of a campaign; in between it is one for so many rows.
const REQUESTS: (u64, u64) = (64, 1000);
const ROWS_PER_REQUEST: u64 = 1500;

/// Runs cells in processes that have run nothing else.
pub trait Elsewhere {
    /// What `cell` gives with the requests of `seed` on the same model and accelerator.
    ///
    /// # Errors
    /// [`VerifyError::Child`], or what the other process has met.
    fn run(&mut self, seed: u64, cell: &Cell) -> Result<Run, VerifyError>;
}

/// What a campaign is to cover.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// Rows to compare; the cell that reaches the number is finished.
    pub rows: u64,
    /// Axes that vary.
    pub axes: BTreeSet<Axis>,
}

/// How far a campaign is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Cells so far.
    pub cells: u64,
    /// Rows so far.
    pub rows: u64,
}

/// Holds cells to solo runs.
pub struct Verifier {
    lab: Lab,
    elsewhere: Option<Box<dyn Elsewhere>>,
    solos: HashMap<usize, Solo>,
    covered: Covered,
    report: Report,
}

impl Verifier {
    /// Without `elsewhere`, cells that want a process of their own run in this one.
    pub fn new(lab: Lab, elsewhere: Option<Box<dyn Elsewhere>>) -> Self {
        let report = Report { seed: lab.workload().seed(), ..Report::default() };
        Self { lab, elsewhere, solos: HashMap::new(), covered: Covered::default(), report }
    }

    /// Draws cells and verifies them until there are enough rows, or one differs. `progress` is called after every cell.
    ///
    /// # Errors
    /// Something cannot run at all; see [`VerifyError`].
    pub fn campaign(mut self, campaign: &Campaign, progress: &mut dyn FnMut(Progress)) -> Result<Report, VerifyError> {
        let mut axes = campaign.axes.clone();
        if self.elsewhere.is_none() {
            axes.remove(&Axis::Restart);
        }
        let requests = (campaign.rows / ROWS_PER_REQUEST).clamp(REQUESTS.0, REQUESTS.1) as usize;
        let mut cells = Cells::new(self.lab.workload(), &axes, requests);
        while self.report.rows < campaign.rows && self.report.finding.is_none() {
            let cell = cells.next().expect("there is no last cell");
            self.verify(&cell)?;
            progress(Progress { cells: self.report.cells, rows: self.report.rows });
        }
        Ok(self.into_report())
    }

    /// Verifies one cell.
    ///
    /// # Errors
    /// As [`Verifier::campaign`].
    pub fn cell(mut self, cell: &Cell) -> Result<Report, VerifyError> {
        self.verify(cell)?;
        Ok(self.into_report())
    }

    fn into_report(self) -> Report {
        Report { coverage: self.covered.list(), ..self.report }
    }

    fn verify(&mut self, cell: &Cell) -> Result<(), VerifyError> {
        for arrival in &cell.requests {
            if let Some(difference) = self.solo(arrival.request)?.into_iter().next() {
                self.report.differing += 1;
                let plain = Cell::plain([arrival.request]);
                self.report.finding = Some(self.explain(&plain, &plain, difference)?);
                return Ok(());
            }
        }
        let run = self.run(cell)?;
        self.covered.count(self.lab.workload(), cell, &run);
        self.report.cells += 1;
        self.report.rows += run.rows.len() as u64;
        self.report.tokens += run.completions.iter().map(|completion| completion.tokens.len() as u64).sum::<u64>();
        self.report.draws += draws(&run);
        self.report.hit_tokens += run.hit_tokens;
        self.report.preemptions += run.preemptions;
        let differences = self.compare(&run);
        self.report.differing += differences.len() as u64;
        if let Some(first) = differences.into_iter().next() {
            let smallest = shrink(cell, first.request, &mut |smaller| {
                let run = self.run(smaller)?;
                Ok(!self.compare(&run).is_empty())
            })?;
            let run = self.run(&smallest)?;
            // A fault that comes and goes may be gone.
            let difference = self.compare(&run).into_iter().next().unwrap_or(first);
            self.report.finding = Some(self.explain(cell, &smallest, difference)?);
        }
        Ok(())
    }

    /// Runs a request alone, unless it has. What its completions do not agree on, and draws that are wrong.
    fn solo(&mut self, request: usize) -> Result<Vec<Difference>, VerifyError> {
        if self.solos.contains_key(&request) {
            return Ok(Vec::new());
        }
        let run = self.lab.solo(request)?;
        if let Some(message) = run.completions.iter().find_map(|completion| completion.error.clone()) {
            return Err(VerifyError::Alone { request, seed: self.report.seed, message });
        }
        let (solo, differences) = Solo::of(&run, self.prompt_len(request));
        self.report.solo_requests += 1;
        self.report.solo_rows += solo.rows() as u64;
        self.report.draws += draws(&run);
        self.solos.insert(request, solo);
        Ok(differences)
    }

    fn run(&mut self, cell: &Cell) -> Result<Run, VerifyError> {
        match &mut self.elsewhere {
            Some(elsewhere) if cell.process == Process::Child => elsewhere.run(self.report.seed, cell),
            _ => self.lab.run(cell),
        }
    }

    fn compare(&self, run: &Run) -> Vec<Difference> {
        compare(run, |request| &self.solos[&request], |request| self.prompt_len(request))
    }

    fn prompt_len(&self, request: usize) -> usize {
        self.lab.workload().request(request).prompt_token_ids.len()
    }

    /// Runs the cell and the request alone once more, with every op's outputs hashed, and finds the first that differs.
    fn explain(&mut self, met_in: &Cell, cell: &Cell, difference: Difference) -> Result<Finding, VerifyError> {
        let Difference { request, completion, position, what } = difference;
        let subject = Subject { request, completion, keep: None };
        // A difference between processes is not seen in this one.
        let (_, trace) = self.lab.traced(subject, |lab| lab.run(cell))?;
        let (_, solo) = self.lab.traced(subject, |lab| lab.solo(request))?;
        let site = match (trace.parting(&solo), &what) {
            (Some(parting), _) => Some(self.site(subject, cell, &parting)?),
            (None, What::Draw(wrong)) => Some(site_of_draw(&trace, wrong)),
            (None, _) => None,
        };
        Ok(Finding {
            met_in: met_in.to_string(),
            cell: cell.to_string(),
            request,
            completion,
            position,
            what: what.to_string(),
            site,
            restored_at: trace.restored_at,
        })
    }

    /// The values at which the traces part come from two more runs that keep them.
    fn site(&mut self, subject: Subject, cell: &Cell, parting: &Parting) -> Result<Site, VerifyError> {
        let subject = Subject { keep: Some(parting.spot), ..subject };
        let (_, found) = self.lab.traced(subject, |lab| lab.run(cell))?;
        let (_, expected) = self.lab.traced(subject, |lab| lab.solo(subject.request))?;
        let both = found.values.get(parting.occurrence).zip(expected.values.first());
        let (differing_elements, largest_difference) = both.map_or((None, None), |(a, b)| distance(a, b));
        let Spot { call: CallKey { scope, op, ordinal, arg, .. }, position } = parting.spot;
        Ok(Site {
            scope: scope.to_string(),
            op,
            call: ordinal,
            arg,
            position,
            expected: parting.expected.to_string(),
            found: parting.found.to_string(),
            largest_difference,
            differing_elements,
        })
    }
}

/// Which op of the draw does not give what the host gives, if the row itself is right.
fn site_of_draw(trace: &Trace, wrong: &WrongDraw) -> Site {
    let scope = Scope::of(Part::Sample);
    let spot =
        |op| Spot { call: CallKey { scope, op, ordinal: 0, arg: "logits", expert: 0 }, position: wrong.position - 1 };
    let site = |op, arg, expected, found| Site {
        scope: scope.to_string(),
        op,
        call: 0,
        arg,
        position: wrong.position - 1,
        expected,
        found,
        largest_difference: None,
        differing_elements: None,
    };
    for (op, expected) in [("adjust_logits", wrong.expected.adjusted), ("apply_token_mask", wrong.expected.masked)] {
        if let Some(found) = trace.digests(&spot(op)).iter().find(|&&found| found != expected) {
            return site(op, "logits", expected.to_string(), found.to_string());
        }
    }
    let expected = wrong.expected.token.map_or_else(|| "no token".to_owned(), |token| format!("token {token}"));
    site("fused_sample", "token", expected, format!("token {}", wrong.found))
}

/// Tokens that were drawn again.
fn draws(run: &Run) -> u64 {
    run.completions.iter().map(|completion| completion.draws as u64).sum()
}
