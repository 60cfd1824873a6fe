//! `grouped_linear`: products of row ranges with one weight matrix each, the experts of a mixture.
//!
//! The addresses of the weights travel among the kernel's parameters, 256 experts to a launch; a call with more experts is
//! several launches, each of which takes the rows of its own experts.

use deepinfer_plugin_api::generated::GroupedLinearArgs;
use deepinfer_plugin_api::sdk::tensor::View;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, Param, launch, stream};

deepinfer_plugin_api::kernel!(GroupedLinear, grouped_linear);

static GROUPED_LINEAR: Function = Function::new(&images::GROUPED_LINEAR, c"grouped_linear");
const THREADS: u32 = 256;
/// Rows that a block takes.
const ROWS: usize = 4;
/// Outputs that a block takes.
const OUTPUTS: usize = 32;
/// Matrices that a launch takes.
const MOST_MATRICES: usize = 256;

/// A matrix, as `common/product.cuh` has it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Matrix {
    data: *mut u8,
    scale: *mut u8,
    stride: i64,
    scale_stride: i64,
    format: i32,
}

impl Matrix {
    const NONE: Self =
        Self { data: std::ptr::null_mut(), scale: std::ptr::null_mut(), stride: 0, scale_stride: 0, format: -1 };

    fn of(view: &View) -> Self {
        let (stride, scale_stride) = (view.strides[2], view.scale_strides[2]);
        Self { data: view.data, scale: view.scale, stride, scale_stride, format: view.format }
    }
}

#[repr(C)]
struct Matrices([Matrix; MOST_MATRICES]);

// SAFETY: laid out as in `grouped_linear.cu`.
unsafe impl Param for Matrices {}

fn grouped_linear(cx: &Cx<'_>, a: GroupedLinearArgs<'_>) -> Result<(), Fault> {
    let (x, expert_start, out) = (a.x.view()?, a.expert_start.view()?, a.out.view()?);
    let tiles = a.dims.m.div_ceil(ROWS).max(1) as i64;
    // Without rows or outputs the starts can still be wrong: there is always a block.
    let blocks = a.dims.o.div_ceil(OUTPUTS).max(1) as i64;
    let grid = Grid::of_items(tiles * blocks * i64::from(THREADS), THREADS)?;
    let weights = a.weight.tensors();
    for first in (0..weights.len().max(1)).step_by(MOST_MATRICES) {
        let some = &weights[first..weights.len().min(first + MOST_MATRICES)];
        let mut matrices = Matrices([Matrix::NONE; MOST_MATRICES]);
        for (matrix, weight) in matrices.0.iter_mut().zip(some) {
            *matrix = Matrix::of(&weight.view()?);
        }
        let (first, count) = (first as i64, some.len() as i64);
        launch!(stream(cx)?, GROUPED_LINEAR, grid, x, expert_start, out, matrices, first, count, tiles)?;
    }
    Ok(())
}
