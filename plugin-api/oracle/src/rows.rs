//! Rows of an output, each computed by itself, on as many threads as there are processors.

use std::num::NonZero;
use std::thread;

use crate::want::Element;

/// A thread is worth starting for this many products.
const WORTH_A_THREAD: usize = 1 << 20;

/// The elements that `row` gives for 0, 1, .. `rows`, in this order. `products` of a row say whether threads pay.
pub(crate) fn rows(rows: usize, products: usize, row: impl Fn(usize) -> Vec<Element> + Sync) -> Vec<Element> {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = (rows.saturating_mul(products) / WORTH_A_THREAD).clamp(1, processors);
    let share = rows.div_ceil(threads).max(1);
    if threads == 1 {
        return (0..rows).flat_map(row).collect();
    }
    thread::scope(|scope| {
        let row = &row;
        let work = |first: usize| move || (first..(first + share).min(rows)).flat_map(row).collect::<Vec<_>>();
        let running: Vec<_> = (0..rows).step_by(share).map(|first| scope.spawn(work(first))).collect();
        // A panic of a row is one of the oracle.
        let joined = running.into_iter().map(|thread| thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e)));
        joined.flatten().collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_order() {
        for (count, products) in [(0, 1), (1, 1 << 30), (7, 1), (7, 1 << 22), (1000, 1 << 18)] {
            let out = rows(count, products, |r| vec![Element::Int(2 * r as i64), Element::Int(2 * r as i64 + 1)]);
            let found: Vec<i64> = out.iter().map(|e| if let Element::Int(i) = e { *i } else { -1 }).collect();
            assert_eq!(found, (0..2 * count as i64).collect::<Vec<_>>());
        }
    }
}
