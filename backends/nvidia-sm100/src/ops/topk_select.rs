//! `topk_select`: the columns of the largest scores, ascending.

use deepinfer_plugin_api::generated::TopkSelectArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(TopkSelect, topk_select, flags = super::FLAGS);

/// Scores that a thread takes at a time.
const SCORES: usize = 64;

/// How a row is taken.
struct Shape {
    /// The widest row.
    columns: usize,
    threads: u32,
    blocks: i64,
    /// Most columns that the blocks take at a time.
    piece: usize,
    /// Kernels for [`PLACES`].
    functions: [Function; 2],
}

macro_rules! shape {
    ($columns:expr, $threads:expr, $blocks:expr, $few:literal, $many:literal) => {
        Shape {
            columns: $columns,
            threads: $threads,
            blocks: $blocks,
            piece: SCORES * $threads * $blocks,
            functions: [Function::new(&images::TOPK_SELECT, $few), Function::new(&images::TOPK_SELECT, $many)],
        }
    };
}

static SHAPES: [Shape; 5] = [
    shape!(1 << 14, 256, 1, c"topk_select_256_1_4", c"topk_select_256_1_16"),
    shape!(1 << 15, 512, 1, c"topk_select_512_1_2", c"topk_select_512_1_8"),
    shape!(1 << 16, 512, 2, c"topk_select_512_2_2", c"topk_select_512_2_8"),
    shape!(1 << 17, 512, 4, c"topk_select_512_4_2", c"topk_select_512_4_8"),
    // In up to four pieces.
    shape!(1 << 20, 512, 8, c"topk_select_512_8_2", c"topk_select_512_8_8"),
];
/// Most places of the two kernels of a shape.
const PLACES: [usize; 2] = [512, 2048];
/// Most places if there are several pieces: what is kept of one and what comes of the next share a list of 3072.
const PLACES_OF_PIECES: usize = 1024;

static SELECT_ANY: Function = Function::new(&images::TOPK_SELECT_ANY, c"topk_select_any");
const ANY_THREADS: u32 = 1024;

fn topk_select(cx: &Cx<'_>, a: TopkSelectArgs<'_>) -> Result<(), Fault> {
    let (columns, places) = (a.dims.n, a.dims.k);
    if columns > i32::MAX as usize {
        return Err(Fault::invalid(format!("scores has {columns} columns, more than an I32 can name")));
    }
    let (scores, out) = (a.scores.view()?, a.out.view()?);
    // Without places there is nothing to write.
    let rows = if places == 0 { 0 } else { out.rows() };
    let shape = SHAPES.iter().find(|shape| columns <= shape.columns);
    let kernel = PLACES.iter().position(|&most| places <= most);
    if let (Some(shape), Some(kernel)) = (shape, kernel) {
        let pieces = columns.div_ceil(shape.piece).max(1);
        if pieces == 1 || places <= PLACES_OF_PIECES {
            let grid = Grid::of_items(rows * shape.blocks * i64::from(shape.threads), shape.threads)?;
            return launch!(stream(cx)?, shape.functions[kernel], grid, scores, out, pieces as u32);
        }
    }
    launch!(stream(cx)?, SELECT_ANY, Grid::of_items(rows * i64::from(ANY_THREADS), ANY_THREADS)?, scores, out)
}
