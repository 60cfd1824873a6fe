//! What was verified, and where a run leaves the solo run.

use std::fmt;

use serde::Serialize;

use crate::axis::Coverage;
use crate::run::What;
use crate::trace::Site;

/// What was verified.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Seed of the requests and cells.
    pub seed: u64,
    /// Requests that ran alone.
    pub solo_requests: usize,
    /// Rows of them.
    pub solo_rows: u64,
    /// Cells that were held to them.
    pub cells: u64,
    /// Rows of the cells that were compared.
    pub rows: u64,
    /// Tokens of the cells that were compared.
    pub tokens: u64,
    /// Tokens that the host has drawn again from the same row, of cells and solo runs.
    pub draws: u64,
    /// Rows, tokens, draws and requests that are not as in the solo run.
    pub differing: u64,
    /// Tokens of prompts that the prefix cache had.
    pub hit_tokens: u64,
    /// Requests that were preempted, each time.
    pub preemptions: u64,
    /// What the values of the axes covered.
    pub coverage: Vec<Coverage>,
    /// The first difference; the campaign ends with the cell that has it.
    pub finding: Option<Finding>,
}

/// A difference, made as small as it could be.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Cell in which it was met.
    pub met_in: String,
    /// The smallest cell that has it.
    pub cell: String,
    /// Number of the request in the workload.
    pub request: usize,
    /// Which of its completions.
    pub completion: usize,
    /// Position of the row or token.
    pub position: usize,
    /// What differs, in words.
    pub what: String,
    /// The first op whose result differs, with all that came before being equal.
    pub site: Option<Site>,
    /// Where the completion began from a checkpoint instead of running its tokens.
    pub restored_at: Vec<usize>,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = |token: &Option<u32>| token.map_or_else(|| "none".to_owned(), |id| id.to_string());
        match self {
            What::Logits { expected: Some(expected), found } => {
                write!(f, "logits {found} instead of {expected}")
            }
            What::Logits { expected: None, found } => {
                write!(f, "logits {found} of a row that the solo run does not have")
            }
            What::Token { expected, found } => write!(f, "token {} instead of {}", token(found), token(expected)),
            What::Draw(wrong) => {
                let expected = token(&wrong.expected.token);
                write!(f, "token {}, but the host draws {expected} from the same row", wrong.found)
            }
            What::Failed { message } => write!(f, "the request failed: {message}"),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request, completion, position, what, .. } = self;
        writeln!(f, "request {request}, completion {completion}, position {position}: {what}")?;
        writeln!(f, "  met in         {}", self.met_in)?;
        writeln!(f, "  smallest cell  {}", self.cell)?;
        for start in &self.restored_at {
            writeln!(f, "  started        at position {start}, from a checkpoint of the prefix cache or a fork")?;
        }
        let Some(site) = &self.site else {
            return writeln!(f, "  first op       not found: no output of an op differs");
        };
        writeln!(f, "  first op       {site}")?;
        writeln!(f, "  its row        {} instead of {}", site.found, site.expected)?;
        match (site.differing_elements, site.largest_difference) {
            (None, _) => Ok(()),
            (Some((0, _)), _) => writeln!(f, "  elements       stored in another way, with the same values"),
            (Some((differing, all)), None) => {
                writeln!(f, "  elements       {differing} of {all} differ, one of them is not a number")
            }
            (Some((differing, all)), Some(largest)) => {
                writeln!(f, "  elements       {differing} of {all} differ, by at most {largest:e}")
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<12} {:<22} {:>7} {:>10}", "axis", "value", "cells", "rows")?;
        let mut before = "";
        for Coverage { axis, value, cells, rows } in &self.coverage {
            let axis_once = if *axis == before { "" } else { axis };
            before = axis;
            writeln!(f, "{axis_once:<12} {value:<22} {cells:>7} {rows:>10}")?;
        }
        let Self { solo_requests, solo_rows, cells, rows, tokens, draws, hit_tokens, preemptions, differing, .. } =
            self;
        writeln!(f)?;
        writeln!(f, "alone: {solo_requests} requests with {solo_rows} rows")?;
        writeln!(f, "in {cells} cells: {hit_tokens} tokens from the prefix cache, {preemptions} preemptions")?;
        writeln!(f, "compared: {rows} rows and {tokens} tokens; {draws} tokens drawn again on the host")?;
        writeln!(f, "differing: {differing}")?;
        match &self.finding {
            Some(finding) => write!(f, "\n{finding}"),
            None => Ok(()),
        }
    }
}
