//! `linear`: product with a transposed weight matrix, optionally block-diagonal.
//!
//! Where x or the weights are F32, warps add in F64. Narrow operands go to the tensor cores; which kernel takes them follows
//! from the number of rows, and the bits do not.

use std::ffi::CStr;

use deepinfer_plugin_api::Format;
use deepinfer_plugin_api::generated::{LinearArgs, LinearProto};
use deepinfer_plugin_api::sdk::tensor::View;
use deepinfer_plugin_api::sdk::{Cx, Fault, Plan, PlanCx, Workspace};

use super::few_rows::{self, TILE_OUTPUTS};
use super::linear_many::Many;
use crate::backend::Nvidia;
use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};
use crate::ops::linear_f32;

deepinfer_plugin_api::kernel!(Linear, linear, flags = super::FLAGS, plan = plan -> How);

/// How calls of one signature are run.
enum How {
    Few,
    Many(Many),
}

fn plan(cx: &PlanCx<'_>, a: &LinearProto<'_>) -> Result<Plan<How>, Fault> {
    let Some(many) = Many::plan(cx.device::<Nvidia>()?, a) else { return Ok(Plan::new(How::Few)) };
    let (bytes, align) = many.workspace();
    Ok(Plan::new(How::Many(many)).workspace(bytes, align))
}

static LINEAR: Function = Function::new(&images::LINEAR, c"linear");
const THREADS: u32 = 256;
/// Rows that a block takes.
const ROWS: i64 = 4;
/// Outputs that a block takes.
const OUTPUTS: i64 = 32;

macro_rules! few {
    ($($name:literal),+) => { [$(Function::new(&images::LINEAR_FEW, $name)),+] };
}

/// Blocks of a grid in its last dimension.
const MOST_BLOCKS_IN_Z: usize = 65_535;
/// Rows that a kernel of the table below takes.
const FEW_ROWS: [usize; 4] = [8, 16, 32, 64];
/// By the formats of x and of the weights, and by rows.
static FEW: [[[Function; FEW_ROWS.len()]; few_rows::WEIGHTS.len()]; 2] = [
    [
        few!(c"bf16_bf16_8", c"bf16_bf16_16", c"bf16_bf16_32", c"bf16_bf16_64"),
        few!(c"bf16_fp8_8", c"bf16_fp8_16", c"bf16_fp8_32", c"bf16_fp8_64"),
        few!(c"bf16_fp4_8", c"bf16_fp4_16", c"bf16_fp4_32", c"bf16_fp4_64"),
    ],
    [
        few!(c"fp8_bf16_8", c"fp8_bf16_16", c"fp8_bf16_32", c"fp8_bf16_64"),
        few!(c"fp8_fp8_8", c"fp8_fp8_16", c"fp8_fp8_32", c"fp8_fp8_64"),
        few!(c"fp8_fp4_8", c"fp8_fp4_16", c"fp8_fp4_32", c"fp8_fp4_64"),
    ],
];

/// A kernel for FP8 by FP8.
struct FewFp8 {
    /// Rows that it takes.
    rows: i64,
    /// Outputs of a warp, and what all outputs are a multiple of.
    outputs: usize,
    whole: usize,
    /// Blocks that share a multiprocessor.
    blocks: usize,
    shared_bytes: u32,
    function: Function,
}

impl FewFp8 {
    const fn new(rows: i64, outputs: usize, whole: usize, blocks: usize, kilobytes: u32, name: &'static CStr) -> Self {
        let function = Function::new(&images::LINEAR_FEW_FP8, name);
        Self { rows, outputs, whole, blocks, shared_bytes: kilobytes << 10, function }
    }
}

static FEW_FP8: [FewFp8; 4] = [
    FewFp8::new(8, 16, 16, 3, 48, c"linear_few_fp8_8"),
    FewFp8::new(16, 32, 32, 2, 96, c"linear_few_fp8_16"),
    FewFp8::new(32, 48, 16, 1, 160, c"linear_few_fp8_32"),
    FewFp8::new(64, 48, 16, 1, 224, c"linear_few_fp8_64"),
];
/// Up to so many rows these kernels are the fastest however many blocks there are; of more rows only if all blocks run at once.
const MANY_BLOCKS_ROWS: i64 = 16;

/// FP8 by FP8, if the operands are fit for it: a warp for each segment of a few outputs. Otherwise nothing is queued.
fn linear_few_fp8(cx: &Cx<'_>, a: &LinearArgs<'_>, views: [View; 3]) -> Result<bool, Fault> {
    let [x, weight, out] = views;
    let Some(kernel) = FEW_FP8.iter().find(|kernel| out.shape[2] <= kernel.rows) else { return Ok(false) };
    let (stream, groups, columns, outputs) = (stream(cx)?, a.groups as usize, a.dims.k, a.dims.o);
    let is_countable = [columns, outputs].iter().all(|extent| groups.saturating_mul(*extent) <= few_rows::MOST_EXTENT);
    if weight.format() != Some(Format::Fp8Tile32)
        || !few_rows::takes_codes(stream.device(), &x, &weight, columns)
        || !outputs.is_multiple_of(kernel.whole)
        || groups > MOST_BLOCKS_IN_Z
        || !is_countable
    {
        return Ok(false);
    }
    let (segment, segments) = few_rows::segments(columns);
    // Of so many warps each has a segment, or none.
    let shift = segments.next_power_of_two().trailing_zeros();
    let tiles = outputs.div_ceil((few_rows::CODE_WARPS >> shift) * kernel.outputs);
    let at_once = kernel.blocks * stream.device().multiprocessors() as usize;
    if kernel.rows > MANY_BLOCKS_ROWS && tiles * groups > at_once {
        return Ok(false);
    }
    let mut grid = Grid::new(if out.shape[2] == 0 { 0 } else { tiles as u32 }, few_rows::CODE_THREADS);
    (grid.blocks.1, grid.shared_bytes) = (a.groups, kernel.shared_bytes);
    let (segment, segments) = (segment as i32, segments as i32);
    launch!(stream, kernel.function, grid, x, weight, out, outputs as i32, segment, segments, shift as i32)?;
    Ok(true)
}

fn linear(cx: &Cx<'_>, how: &How, scratch: Workspace<'_>, a: LinearArgs<'_>) -> Result<(), Fault> {
    if a.groups == 0 {
        return Err(Fault::invalid("groups is 0, but must be at least 1"));
    }
    let (x, weight, out) = (a.x.view()?, a.weight.view()?, a.out.view()?);
    if linear_f32::takes(&x, &weight) {
        return linear_f32::launch(stream(cx)?, x, weight, out, a.groups);
    }
    if linear_few_fp8(cx, &a, [x, weight, out])? {
        return Ok(());
    }
    if let How::Many(many) = how
        && many.run(stream(cx)?, &scratch, x, weight, out)?
    {
        return Ok(());
    }
    if let (Some(of_x), Some(of_weight)) = (few_rows::place_of_x(&x), few_rows::place_of_weight(&weight)) {
        return linear_few(cx, &a, &FEW[of_x][of_weight], [x, weight, out]);
    }
    let tiles = out.shape[2].unsigned_abs().div_ceil(ROWS as u64) as i64;
    let blocks = i64::from(a.groups) * a.dims.o.div_ceil(OUTPUTS as usize) as i64;
    let grid = Grid::of_items(tiles * blocks * i64::from(THREADS), THREADS)?;
    launch!(stream(cx)?, LINEAR, grid, x, weight, out, a.groups, tiles)
}

/// On the tensor cores, with the kernel of this table that wastes least on rows that are not there.
fn linear_few(cx: &Cx<'_>, a: &LinearArgs<'_>, kernels: &[Function], views: [View; 3]) -> Result<(), Fault> {
    let [x, weight, out] = views;
    let (rows, groups, columns, outputs) =
        (out.shape[2].unsigned_abs() as usize, a.groups as usize, a.dims.k, a.dims.o);
    let place = FEW_ROWS.iter().position(|&most| rows <= most).unwrap_or(FEW_ROWS.len() - 1);
    let (segment, segments) = few_rows::segments(columns);
    // Tiles of scaled weights begin with those of the format, which a group may cut.
    let before = if groups > 1 { few_rows::TILED_ROWS - 1 } else { 0 };
    let (tiles, row_tiles) = ((outputs + before).div_ceil(TILE_OUTPUTS), rows.div_ceil(FEW_ROWS[place]));
    let extents = [rows, groups.saturating_mul(columns), groups.saturating_mul(outputs)];
    if extents.iter().any(|&extent| extent > few_rows::MOST_EXTENT)
        || row_tiles.saturating_mul(groups) > MOST_BLOCKS_IN_Z
    {
        return Err(Fault::unsupported(format!(
            "{rows} rows and {groups} groups of {columns} columns and {outputs} outputs"
        )));
    }
    let mut grid = Grid::new(if outputs == 0 { 0 } else { tiles as u32 }, few_rows::THREADS);
    (grid.blocks.1, grid.blocks.2) = (segments as u32, (row_tiles * groups) as u32);
    (grid.cluster, grid.shared_bytes) = (segments as u32, few_rows::SHARED_BYTES);
    launch!(stream(cx)?, kernels[place], grid, x, weight, out, outputs as i32, segment as i32, row_tiles as i32)
}
