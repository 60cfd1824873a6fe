//! Grids of kernels that take four neighbouring indices of a row per thread; see `kernels/common/index_quads.cuh`.

use deepinfer_plugin_api::sdk::Fault;

use crate::launch::Grid;

const THREADS: u32 = 256;

/// A grid for `rows` rows of `columns` indices, and the logarithm of the threads of a block that take a row. A row has at
/// least one thread.
pub(crate) fn index_quads(rows: i64, columns: i64) -> Result<(Grid, u32), Fault> {
    let quads = columns.div_euclid(4) + i64::from(columns % 4 != 0);
    let row_threads = (quads.clamp(1, i64::from(THREADS)) as u64).next_power_of_two();
    let pieces = (quads as u64).div_ceil(row_threads).max(1);
    let groups = (rows as u64 * row_threads).div_ceil(u64::from(THREADS));
    let grid = Grid::of_items((groups * pieces) as i64 * i64::from(THREADS), THREADS)?;
    Ok((grid, row_threads.ilog2()))
}
