//! From a cell that differs to a smaller one that still does.

use std::collections::HashSet;

use crate::cell::{Arrival, Cell};
use crate::error::VerifyError;

/// Most cells that are tried.
const MOST_TRIALS: usize = 40;

/// Makes `cell`, for which `differs` holds, plainer and smaller as long as it still holds. `keep` is the request that is left
/// out last. The result differs, and unless the trials ran out nothing more can be taken from it.
pub(crate) fn shrink(
    cell: &Cell,
    keep: usize,
    differs: &mut dyn FnMut(&Cell) -> Result<bool, VerifyError>,
) -> Result<Cell, VerifyError> {
    let mut smallest = cell.clone();
    let mut tried = HashSet::from([cell.clone()]);
    'again: loop {
        // Fewer requests first, since they make what follows cheaper.
        for smaller in fewer(&smallest, keep).into_iter().chain(plainer(&smallest)) {
            if tried.len() > MOST_TRIALS {
                return Ok(smallest);
            }
            if tried.insert(smaller.clone()) && differs(&smaller)? {
                smallest = smaller;
                continue 'again;
            }
        }
        return Ok(smallest);
    }
}

/// The cell with one thing as in a plain cell.
fn plainer(cell: &Cell) -> Vec<Cell> {
    let plain = Cell::plain([]);
    vec![
        Cell { process: plain.process, ..cell.clone() },
        Cell { preempt_every: None, ..cell.clone() },
        Cell { prefix: plain.prefix, ..cell.clone() },
        Cell { memory: plain.memory, ..cell.clone() },
        Cell { asynchronous: plain.asynchronous, ..cell.clone() },
        Cell { graphs: plain.graphs, ..cell.clone() },
        Cell { page_order: None, ..cell.clone() },
        Cell { budget: plain.budget, ..cell.clone() },
    ]
}

/// The cell with fewer requests: `keep` alone, without a half of the others, without a quarter, and so on; then all of them at
/// once.
fn fewer(cell: &Cell, keep: usize) -> Vec<Cell> {
    let others: Vec<Arrival> = cell.requests.iter().filter(|arrival| arrival.request != keep).copied().collect();
    let without = |some: &[Arrival]| {
        let requests = cell.requests.iter().filter(|arrival| !some.contains(arrival)).copied().collect();
        Cell { requests, ..cell.clone() }
    };
    let mut cells = Vec::new();
    let mut size = others.len();
    while size > 0 {
        cells.extend(others.chunks(size).map(without));
        size /= 2;
    }
    let at_once = cell.requests.iter().map(|arrival| Arrival { turn: 0, ..*arrival });
    cells.push(Cell { requests: at_once.collect(), ..cell.clone() });
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Prefix;

    fn shrunk(text: &str, keep: usize, differs: impl Fn(&Cell) -> bool) -> (String, usize) {
        let mut trials = 0;
        let cell = shrink(&text.parse().unwrap(), keep, &mut |cell| {
            trials += 1;
            Ok(differs(cell))
        });
        (cell.unwrap().to_string(), trials)
    }

    const LARGE: &str = "requests=0,1@3,2,3@9,4,5,6@1,7,8,9 budget=16 pages=5 memory=tight preempt=3 prefix=warm async=on process=child";

    #[test]
    fn what_does_not_matter_goes() {
        assert_eq!(shrunk(LARGE, 7, |_| true).0, "requests=7");
        let needs_budget = shrunk(LARGE, 6, |cell| cell.budget == 16 && cell.prefix == Prefix::Warm);
        assert_eq!(needs_budget.0, "requests=6 budget=16 prefix=warm");
    }

    #[test]
    fn companions_that_matter_stay() {
        let has = |cell: &Cell, request| cell.requests.iter().any(|arrival| arrival.request == request);
        let (cell, trials) = shrunk(LARGE, 7, |cell| has(cell, 7) && has(cell, 2));
        assert_eq!(cell, "requests=2,7");
        assert!(trials <= MOST_TRIALS);
        let (cell, _) = shrunk(LARGE, 7, |cell| has(cell, 7) && has(cell, 0) && has(cell, 9));
        assert_eq!(cell, "requests=0,7,9");
    }

    #[test]
    fn a_cell_that_nothing_can_be_taken_from_stays() {
        let text = "requests=3 budget=16";
        assert_eq!(shrunk(text, 3, |cell| cell.to_string() == text).0, text);
    }
}
