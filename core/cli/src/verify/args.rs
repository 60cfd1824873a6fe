//! Arguments of `deepinfer verify`.

use std::path::PathBuf;

use clap::Args;
use deepinfer_verify::{Axis, Cell};

use crate::args::ModelArgs;
use crate::numbers::whole;

/// Longest time limit.
const MOST_SECONDS: u64 = 86_400;

/// Check that what requests get does not depend on their company
///
/// Runs requests together in many ways and holds the logits of every row, bit for bit, and every token to the run of
/// the same request alone. Each token is also drawn once more on the host from its logits.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deepinfer verify
  deepinfer verify --rows 1000000 --seed 7 --report verify.json
  deepinfer verify --axes budget,prefix --accelerator npu
  deepinfer verify --seed 7 --cell \"requests=4,31@2 budget=16 async=on\"

The exit code is 1 if anything differs.
Use `deepinfer verify --help` for the axes and the text of a cell.")]
#[command(after_long_help = "\
Examples:
  deepinfer verify
      100,000 rows of the model that is part of the program.
  deepinfer verify --rows 1000000 --seed 7 --report verify.json
      A long run of other requests, with the results as JSON.
  deepinfer verify --seed 7 --cell \"requests=4,31@2 budget=16 async=on\"
      Once more what a report has named.

Axes, all of which vary unless --axes lists some:
  companions   how many requests run together
  budget       rows of a step, and with it where chunks of prompts end
  pages        the order in which pages are handed out
  memory       enough of it, or so little that pages are used again at once
  preemption   by force, every so many turns
  prefix       no prefix cache, an empty one, a filled one, one that has lost half of its pages
  async        steps ahead of results
  graphs       decode steps that are padded and launched from a recording
  restart      a process of its own
  completions  several of a request
  sampling     how requests choose their tokens

A cell is written as
  requests=4,31@2 budget=64 pages=7 memory=tight preempt=3 prefix=warm async=on graphs=on process=child
where 31@2 is request 31 before turn 2, pages= is the seed of an order, and what is left out is as usual.")]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Rows to compare at least; the cells that make them run to their ends
    #[arg(long, value_name = "N", default_value = "100000", allow_negative_numbers = true, value_parser = whole::<u64>(1..=u64::MAX))]
    pub(crate) rows: u64,

    /// Seed of the requests and of how they run together
    #[arg(long, value_name = "S", default_value = "1", allow_negative_numbers = true, value_parser = whole::<u64>(0..=u64::MAX))]
    pub(crate) seed: u64,

    /// Vary these axes only [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) axes: Vec<Axis>,

    /// Verify this cell only
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["rows", "axes"])]
    pub(crate) cell: Option<Cell>,

    /// Write the results as JSON to this file, replacing it; - is standard output
    #[arg(long, value_name = "FILE.json")]
    pub(crate) report: Option<PathBuf>,

    /// Seconds for a cell in a process of its own
    #[arg(long, value_name = "S", default_value = "600", allow_negative_numbers = true, value_parser = whole::<u64>(1..=MOST_SECONDS))]
    pub(crate) timeout: u64,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyWorkerArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Seed of the requests
    #[arg(long)]
    pub(crate) seed: u64,

    /// What to run
    #[arg(long)]
    pub(crate) cell: Cell,
}
