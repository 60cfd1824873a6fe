//! `linear` where F32 meets F32 or BF16.

use deepinfer_plugin_api::Format;
use deepinfer_plugin_api::sdk::Fault;
use deepinfer_plugin_api::sdk::tensor::View;

use crate::image::{Function, images};
use crate::launch::{Grid, launch};
use crate::stream::Stream;

/// A tile of the product that a block, or a cluster of them, makes. All give the same bits.
struct Tile {
    rows: i64,
    outputs: i64,
    threads: u32,
    /// Blocks of the cluster that a long sum is cut over.
    cluster: i64,
    shared_bytes: u32,
    short: Function,
    /// For sums of at least [`LONG`] columns.
    long: Function,
}

/// A block per element.
static ALONE: Tile = Tile {
    rows: 1,
    outputs: 1,
    threads: 640,
    cluster: 1,
    shared_bytes: 0,
    short: Function::new(&images::LINEAR_F32, c"short_alone"),
    long: Function::new(&images::LINEAR_F32, c"long_alone"),
};
/// A cluster of blocks per element of a long sum, where there are multiprocessors for all.
static SHARED: Tile = Tile {
    rows: 1,
    outputs: 1,
    threads: 160,
    cluster: 4,
    shared_bytes: 0,
    // Not asked for: a short sum has one block.
    short: Function::new(&images::LINEAR_F32, c"long_shared"),
    long: Function::new(&images::LINEAR_F32, c"long_shared"),
};
/// Most elements that it takes.
const FEW_ELEMENTS: i64 = 32;
/// Most rows and columns that they take; the columns are those of kernels/common/product_f32.cuh.
const ALONE_ROWS: i64 = 8;
const ALONE_COLUMNS: i64 = 65536;
static SOME: Tile = Tile {
    rows: 8,
    outputs: 24,
    threads: 256,
    cluster: CLUSTER,
    shared_bytes: 108 << 10,
    short: Function::new(&images::LINEAR_F32, c"short_some"),
    long: Function::new(&images::LINEAR_F32, c"long_some"),
};
static MANY: Tile = Tile {
    rows: 64,
    outputs: 24,
    threads: 256,
    cluster: CLUSTER,
    shared_bytes: 198 << 10,
    short: Function::new(&images::LINEAR_F32, c"short_many"),
    long: Function::new(&images::LINEAR_F32, c"long_many"),
};
/// Sums of so many columns are cut over a cluster.
const LONG: i64 = 2048;
/// Blocks of a cluster; kernels/linear_f32.cu has the number too, as the size that its functions are compiled for.
const CLUSTER: i64 = 8;
/// With so many blocks the device is busy.
const BUSY: i64 = 128;

/// Whether these operands are for these kernels.
pub(super) fn takes(x: &View, weight: &View) -> bool {
    let is = |view: &View, format: Format| view.format == format as i32;
    let is_plain = |view: &View| is(view, Format::F32) || is(view, Format::Bf16);
    is_plain(x) && is_plain(weight) && (is(x, Format::F32) || is(weight, Format::F32))
}

/// Queues the product.
pub(super) fn launch(stream: &Stream, x: View, weight: View, out: View, groups: u32) -> Result<(), Fault> {
    let outputs = weight.shape[2] / i64::from(groups);
    let is_long = weight.shape[3] >= LONG;
    let rows = |tile: &Tile| (out.shape[2] + tile.rows - 1) / tile.rows;
    let blocks = |tile: &Tile| {
        let across = i64::from(groups) * ((outputs + tile.outputs - 1) / tile.outputs);
        rows(tile) * across * if is_long { tile.cluster } else { 1 }
    };
    let tile = if out.shape[2] <= ALONE_ROWS && weight.shape[3] <= ALONE_COLUMNS {
        if is_long && out.shape[2] * weight.shape[2] <= FEW_ELEMENTS { &SHARED } else { &ALONE }
    } else if blocks(&MANY) >= BUSY {
        &MANY
    } else {
        &SOME
    };
    let mut grid = Grid::of_items(blocks(tile) * i64::from(tile.threads), tile.threads)?;
    grid.shared_bytes = tile.shared_bytes;
    let function = if is_long { &tile.long } else { &tile.short };
    launch!(stream, *function, grid, x, weight, out, groups, rows(tile) as u32)
}
