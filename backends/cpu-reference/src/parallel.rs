//! Independent rows over threads.
//!
//! A kernel checks its arguments first and then cannot fail, so the functions here take closures without a result. A
//! row must not depend on another one, nor on the content of the scratch that it gets: the split between threads
//! changes from run to run.

use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

/// Work in nanoseconds below which no other thread is woken. A sleeping thread takes tens of microseconds to begin, and
/// the caller waits for it at the end: a token of the miniature is 600 calls that are each too short for that.
const WAKE_NS: usize = 200_000;

/// Work in nanoseconds of the smallest piece that is handed to a thread that is awake.
const GRAIN_NS: usize = 20_000;

/// Pieces into which work of `cost_ns` is best cut: one if it is little, at most a few per thread.
pub(crate) fn pieces(cost_ns: usize) -> usize {
    // More pieces than threads, so that a thread that is late costs little.
    const PER_THREAD: usize = 4;
    match rayon::current_num_threads() {
        1 => 1,
        _ if cost_ns < WAKE_NS => 1,
        threads => (cost_ns / GRAIN_NS).clamp(1, threads * PER_THREAD),
    }
}

/// Runs `f(index, row)` for every row. `cost_ns` is a rough estimate of one row in nanoseconds; it decides between one
/// thread and several, never the result.
pub(crate) fn for_each_row<R: Send>(rows: Vec<R>, cost_ns: usize, f: impl Fn(usize, R) + Sync) {
    for_each_row_with(rows, cost_ns, || (), |(), index, row| f(index, row));
}

/// As [`for_each_row`], with scratch that `init` makes once per thread or more often, and that rows find as the row
/// before them left it.
pub(crate) fn for_each_row_with<R: Send, S>(
    rows: Vec<R>,
    cost_ns: usize,
    init: impl Fn() -> S + Send + Sync,
    f: impl Fn(&mut S, usize, R) + Sync,
) {
    let rows_per_grain = (GRAIN_NS / cost_ns.max(1)).max(1);
    if cost_ns.saturating_mul(rows.len()) < WAKE_NS || rayon::current_num_threads() == 1 {
        let mut scratch = init();
        rows.into_iter().enumerate().for_each(|(index, row)| f(&mut scratch, index, row));
        return;
    }
    rows.into_par_iter()
        .enumerate()
        .with_min_len(rows_per_grain)
        .for_each_init(init, |scratch, (index, row)| f(scratch, index, row));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_visited_once_with_its_index() {
        for count in [0, 1, 7, 1000] {
            for cost_ns in [0, 100, 1_000_000] {
                let mut rows = vec![usize::MAX; count];
                for_each_row(rows.iter_mut().collect(), cost_ns, |index, row: &mut usize| *row = index);
                assert!(rows.iter().enumerate().all(|(index, &row)| row == index));
            }
        }
    }

    #[test]
    fn scratch_is_made_before_use() {
        let mut rows = vec![0; 100];
        for_each_row_with(
            rows.iter_mut().collect(),
            1_000_000,
            || vec![3; 2],
            |scratch: &mut Vec<i32>, _, row| {
                *row = scratch.iter().sum();
            },
        );
        assert_eq!(rows, [6; 100]);
    }
}
