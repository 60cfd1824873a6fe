//! A cell: one way to run some requests together. Everything about it that chance decided is written in its text, so that the
//! text runs it again.

use std::fmt;
use std::str::FromStr;

use crate::error::VerifyError;

/// One way to run requests together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Requests of the workload, and when each comes.
    pub requests: Vec<Arrival>,
    /// Most rows of a step.
    pub budget: usize,
    /// Seed of the order in which pages are handed out; `None` is ascending.
    pub page_order: Option<u64>,
    /// How much there is of pages and checkpoints.
    pub memory: Memory,
    /// Preempt a running request every so many turns.
    pub preempt_every: Option<usize>,
    /// What the prefix cache has to do.
    pub prefix: Prefix,
    /// Whether steps are scheduled ahead of results.
    pub asynchronous: bool,
    /// Whether decode steps are padded and launched from a recording.
    pub graphs: bool,
    /// Where the cell runs.
    pub process: Process,
}

/// When a request comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arrival {
    /// Number of the request in the workload.
    pub request: usize,
    /// Turn of the engine before which it is submitted.
    pub turn: usize,
}

/// How much there is of pages and checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Memory {
    /// Enough for all requests at once.
    Ample,
    /// Little more than the largest request needs: pages are used again at once, and requests are preempted for them.
    Tight,
}

/// What the prefix cache has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Prefix {
    /// There is none.
    Off,
    /// It begins empty, and requests with a common beginning find each other's pages.
    Cold,
    /// All requests run a second time, on what the first time left.
    Warm,
    /// As [`Prefix::Warm`], with half of the cached pages forgotten in between.
    Evicted,
}

/// Where a cell runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Process {
    /// In this process, on a model that has run other cells.
    Same,
    /// In a process of its own, which loads the model again.
    Child,
}

/// Rows of a step in a cell that does not say otherwise.
pub(crate) const DEFAULT_BUDGET: usize = 8192;

impl Cell {
    /// These requests together from the beginning, with nothing else that is unusual.
    pub fn plain(requests: impl IntoIterator<Item = usize>) -> Self {
        Self {
            requests: requests.into_iter().map(|request| Arrival { request, turn: 0 }).collect(),
            budget: DEFAULT_BUDGET,
            page_order: None,
            memory: Memory::Ample,
            preempt_every: None,
            prefix: Prefix::Off,
            asynchronous: false,
            graphs: false,
            process: Process::Same,
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Memory::Ample => "ample",
            Memory::Tight => "tight",
        })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Prefix::Off => "off",
            Prefix::Cold => "cold",
            Prefix::Warm => "warm",
            Prefix::Evicted => "evicted",
        })
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Process::Same => "same",
            Process::Child => "child",
        })
    }
}

/// The text of a cell: `requests=4,31@2 budget=64 pages=7 memory=tight preempt=3 prefix=warm async=on graphs=on process=child`. What is
/// as in [`Cell::plain`] is left out; `31@2` is request 31 before turn 2.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = Cell::plain([]);
        f.write_str("requests=")?;
        for (at, Arrival { request, turn }) in self.requests.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match turn {
                0 => write!(f, "{comma}{request}")?,
                _ => write!(f, "{comma}{request}@{turn}")?,
            }
        }
        if self.budget != plain.budget {
            write!(f, " budget={}", self.budget)?;
        }
        if let Some(seed) = self.page_order {
            write!(f, " pages={seed}")?;
        }
        if self.memory != plain.memory {
            write!(f, " memory={}", self.memory)?;
        }
        if let Some(turns) = self.preempt_every {
            write!(f, " preempt={turns}")?;
        }
        if self.prefix != plain.prefix {
            write!(f, " prefix={}", self.prefix)?;
        }
        if self.asynchronous {
            f.write_str(" async=on")?;
        }
        if self.graphs {
            f.write_str(" graphs=on")?;
        }
        if self.process != plain.process {
            write!(f, " process={}", self.process)?;
        }
        Ok(())
    }
}

impl FromStr for Cell {
    type Err = VerifyError;

    fn from_str(text: &str) -> Result<Self, VerifyError> {
        let mut cell = Cell::plain([]);
        for field in text.split_whitespace() {
            let wrong = |wanted| VerifyError::CellText { field: field.to_owned(), wanted };
            let Some((name, value)) = field.split_once('=') else {
                return Err(wrong("name=value"));
            };
            let number = |wanted| value.parse::<usize>().ok().filter(|&n| n > 0).ok_or_else(|| wrong(wanted));
            match name {
                "requests" => {
                    let arrivals: Option<Vec<Arrival>> = value.split(',').map(arrival).collect();
                    cell.requests = arrivals.ok_or_else(|| wrong("requests=NUMBER[@TURN],.."))?;
                }
                "budget" => cell.budget = number("budget=ROWS, at least 1")?,
                "pages" => cell.page_order = Some(value.parse().map_err(|_| wrong("pages=SEED"))?),
                "memory" => {
                    cell.memory = match value {
                        "ample" => Memory::Ample,
                        "tight" => Memory::Tight,
                        _ => return Err(wrong("memory=ample or memory=tight")),
                    }
                }
                "preempt" => cell.preempt_every = Some(number("preempt=TURNS, at least 1")?),
                "prefix" => {
                    cell.prefix = match value {
                        "off" => Prefix::Off,
                        "cold" => Prefix::Cold,
                        "warm" => Prefix::Warm,
                        "evicted" => Prefix::Evicted,
                        _ => return Err(wrong("prefix=off, cold, warm or evicted")),
                    }
                }
                "async" => {
                    cell.asynchronous = match value {
                        "on" => true,
                        "off" => false,
                        _ => return Err(wrong("async=on or async=off")),
                    }
                }
                "graphs" => {
                    cell.graphs = match value {
                        "on" => true,
                        "off" => false,
                        _ => return Err(wrong("graphs=on or graphs=off")),
                    }
                }
                "process" => {
                    cell.process = match value {
                        "same" => Process::Same,
                        "child" => Process::Child,
                        _ => return Err(wrong("process=same or process=child")),
                    }
                }
                _ => return Err(wrong("requests, budget, pages, memory, preempt, prefix, async or process")),
            }
        }
        let mut numbers: Vec<usize> = cell.requests.iter().map(|arrival| arrival.request).collect();
        numbers.sort_unstable();
        if numbers.is_empty() || numbers.windows(2).any(|pair| pair[0] == pair[1]) {
            let wanted = "at least one request, and each once";
            return Err(VerifyError::CellText { field: text.to_owned(), wanted });
        }
        Ok(cell)
    }
}

fn arrival(text: &str) -> Option<Arrival> {
    let (request, turn) = text.split_once('@').unwrap_or((text, "0"));
    Some(Arrival { request: request.parse().ok()?, turn: turn.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_its_text() {
        let text = "requests=4,31@2,7@5 budget=64 pages=9 memory=tight preempt=3 prefix=evicted async=on process=child";
        let cell: Cell = text.parse().unwrap();
        assert_eq!(cell.to_string(), text);
        assert_eq!(cell.requests[1], Arrival { request: 31, turn: 2 });
        let plain: Cell = "requests=5".parse().unwrap();
        assert_eq!((plain.to_string().as_str(), &plain), ("requests=5", &Cell::plain([5])));
    }

    #[test]
    fn what_is_no_cell_is_refused_with_what_would_be() {
        for (text, field) in [
            ("", ""),
            ("requests=1,1", "requests=1,1"),
            ("requests=1,,2", "requests=1,,2"),
            ("requests=1 budget=0", "budget=0"),
            ("requests=1 prefix=hot", "prefix=hot"),
            ("requests=1 depth=2", "depth=2"),
            ("requests", "requests"),
        ] {
            match text.parse::<Cell>() {
                Err(VerifyError::CellText { field: found, .. }) => assert_eq!(found, field),
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}
