//! `grouped_linear`: products of row ranges with one weight matrix each, the experts of a mixture.
//!
//! The addresses of the weights travel among the kernel's parameters, 256 experts to a launch; a call with more experts is
//! several launches, each of which takes the rows of its own experts. Where x or the weights are F32, warps add in F64; narrow
//! operands go to the tensor cores.

use deepinfer_plugin_api::Format;
use deepinfer_plugin_api::generated::GroupedLinearArgs;
use deepinfer_plugin_api::sdk::tensor::View;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use super::few_rows::{self, TILE_OUTPUTS};
use crate::image::{Function, images};
use crate::launch::{Grid, Param, launch, stream};

deepinfer_plugin_api::kernel!(GroupedLinear, grouped_linear, flags = super::FLAGS);

static GROUPED_LINEAR: Function = Function::new(&images::GROUPED_LINEAR, c"grouped_linear");
macro_rules! few {
    ($($name:literal),+) => { [$(Function::new(&images::GROUPED_FEW, $name)),+] };
}

/// By the formats of x and of the weights.
static FEW: [[Function; few_rows::WEIGHTS.len()]; 2] =
    [few!(c"bf16_bf16", c"bf16_fp8", c"bf16_fp4"), few!(c"fp8_bf16", c"fp8_fp8", c"fp8_fp4")];
const THREADS: u32 = 256;
/// Rows that a block takes.
const ROWS: usize = 4;
/// Outputs that a block takes.
const OUTPUTS: usize = 32;
/// Matrices that a launch takes.
const MOST_MATRICES: usize = 256;

/// A matrix, as `common/exact.cuh` has it.
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

// SAFETY: laid out as in `common/experts.cuh`.
unsafe impl Param for Matrices {}

/// Kernels for FP8 by FP4, in whole panels of columns: the rows of an expert that they take at a time.
static FEW_FP4: [(usize, Function); 2] = [
    (8, Function::new(&images::GROUPED_FEW_FP4, c"grouped_few_fp4_8")),
    (16, Function::new(&images::GROUPED_FEW_FP4, c"grouped_few_fp4_16")),
];
/// Their outputs of a warp, and shared memory of a block.
const CODE_OUTPUTS: usize = 32;
const CODE_SHARED_BYTES: u32 = 64 << 10;

fn grouped_linear(cx: &Cx<'_>, a: GroupedLinearArgs<'_>) -> Result<(), Fault> {
    let (x, expert_start, out) = (a.x.view()?, a.expert_start.view()?, a.out.view()?);
    let of_x = few_rows::place_of_x(&x);
    if of_x.is_some() && [a.dims.m, a.dims.k, a.dims.o].iter().any(|&extent| extent > few_rows::MOST_EXTENT) {
        return Err(Fault::unsupported("an extent of 2^31 or more"));
    }
    let weights = a.weight.tensors();
    for first in (0..weights.len().max(1)).step_by(MOST_MATRICES) {
        let some = &weights[first..weights.len().min(first + MOST_MATRICES)];
        let mut matrices = Matrices([Matrix::NONE; MOST_MATRICES]);
        // A kernel for each format takes the experts of that format, and passes over the others.
        let (mut narrow, mut is_any_other) = ([false; few_rows::WEIGHTS.len()], some.is_empty());
        let mut are_codes_taken = a.dims.o.is_multiple_of(CODE_OUTPUTS);
        for (matrix, weight) in matrices.0.iter_mut().zip(some) {
            let view = weight.view()?;
            *matrix = Matrix::of(&view);
            match of_x.and(few_rows::place_of_weight(&view)) {
                Some(place) => {
                    narrow[place] = true;
                    are_codes_taken &= few_rows::WEIGHTS[place] != Format::Fp4Row32
                        || few_rows::takes_codes(stream(cx)?.device(), &x, &view, a.dims.k);
                }
                None => is_any_other = true,
            }
        }
        let (first, count) = (first as i64, some.len() as i64);
        for (place, _) in narrow.iter().enumerate().filter(|(_, is_there)| **is_there) {
            let Some(of_x) = of_x else { continue };
            // More rows than that on average, and the kernels that take 64 at a time are faster.
            let few_fp4 = FEW_FP4.iter().find(|(rows, _)| a.dims.m <= rows * some.len());
            if let Some((_, kernel)) = few_fp4
                && few_rows::WEIGHTS[place] == Format::Fp4Row32
                && are_codes_taken
            {
                let blocks = a.dims.o.div_ceil(few_rows::CODE_WARPS * CODE_OUTPUTS).max(1);
                let mut grid = Grid::new(blocks as u32, few_rows::CODE_THREADS);
                (grid.blocks.1, grid.shared_bytes) = (some.len() as u32, CODE_SHARED_BYTES);
                launch!(stream(cx)?, *kernel, grid, x, expert_start, out, matrices, first)?;
                continue;
            }
            // Without rows or outputs the starts can still be wrong: there is always a block.
            let mut grid = Grid::new(a.dims.o.div_ceil(TILE_OUTPUTS).max(1) as u32, few_rows::THREADS);
            (grid.blocks.1, grid.shared_bytes) = (some.len() as u32, few_rows::SHARED_BYTES);
            launch!(stream(cx)?, FEW[of_x][place], grid, x, expert_start, out, matrices, first)?;
        }
        if is_any_other {
            let tiles = a.dims.m.div_ceil(ROWS).max(1) as i64;
            let blocks = a.dims.o.div_ceil(OUTPUTS).max(1) as i64;
            let grid = Grid::of_items(tiles * blocks * i64::from(THREADS), THREADS)?;
            launch!(stream(cx)?, GROUPED_LINEAR, grid, x, expert_start, out, matrices, first, count, tiles)?;
        }
    }
    Ok(())
}
