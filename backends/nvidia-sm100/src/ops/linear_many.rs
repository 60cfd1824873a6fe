//! `linear` of many rows of narrow operands on Hopper: see `kernels/linear_many.cu`.

use std::ffi::CStr;

use deepinfer_plugin_api::Format;
use deepinfer_plugin_api::generated::LinearProto;
use deepinfer_plugin_api::sdk::tensor::View;
use deepinfer_plugin_api::sdk::{Fault, Workspace};

use crate::device::Device;
use crate::image::{Function, images};
use crate::launch::{Grid, Param, launch};
use crate::stream::Stream;
use crate::tensor_map::{ALIGNMENT, BOX_COLUMNS, Element, Matrices};

/// Rows from which on these kernels are used, and tiles of 256 outputs and as many rows as the other kernels take at once: of
/// fewer those are done sooner, since they share out a sum.
const LEAST_ROWS: i64 = 33;
const LEAST_TILES: i64 = 15;
const FEW_ROWS: u32 = 64;

/// Rows from which on FP8 weights become BF16 once, instead of in every tile: that costs the memory three bytes an element,
/// and spares more of the products' time.
const MANY_ROWS: i64 = 512;

static WIDEN: Function = Function::new(&images::LINEAR_MANY, c"linear_many_widen");
static ODD: Function = Function::new(&images::LINEAR_MANY, c"linear_many_odd");

/// A product kernel.
struct Product {
    /// Of a tile.
    rows: u32,
    /// What a tile takes, in units of time that are the same for all: measured.
    cost: i64,
    function: Function,
}

impl Product {
    const fn new(rows: u32, cost: i64, name: &'static CStr) -> Self {
        Self { rows, cost, function: Function::new(&images::LINEAR_MANY, name) }
    }
}

/// For BF16 weights.
static BF16: [Product; 4] = [
    Product::new(64, 116, c"linear_many_bf16_64"),
    Product::new(128, 156, c"linear_many_bf16_128"),
    Product::new(160, 188, c"linear_many_bf16_160"),
    Product::new(192, 220, c"linear_many_bf16_192"),
];
/// For FP8 weights, which they widen themselves.
static FP8: [Product; 3] = [
    Product::new(64, 192, c"linear_many_fp8_64"),
    Product::new(128, 256, c"linear_many_fp8_128"),
    Product::new(160, 288, c"linear_many_fp8_160"),
];

/// Outputs of a tile, blocks of a cluster, which share the rows of their tiles, and threads of a block.
const OUTPUTS: u32 = 128;
const CLUSTER: u32 = 2;
const THREADS: u32 = 384;
const WIDEN_THREADS: u32 = 128;
const ODD_THREADS: u32 = 256;
/// `SHARED_BYTES` of `kernels/common/product_many.cuh`.
const SHARED_BYTES: u32 = 226 * 1024;
/// Columns that a widened row has room for are a multiple of it.
const PLACES: i64 = 32;

/// `ColumnOrder` of `kernels/common/widen_rows.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnOrder {
    Natural = 0,
    ByFour = 1,
    ByEight = 2,
}

/// `Widening` of `kernels/common/widen_rows.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Widening {
    to: *mut u8,
    flags: *mut u8,
    columns: i64,
    places: i64,
    groups: i32,
    order: i32,
}

// SAFETY: laid out as the C struct of its name.
unsafe impl Param for Widening {}

/// `ManyRows` of `kernels/common/product_many.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct ManyRows {
    rows: i64,
    outputs: i64,
    columns: i64,
    stages: i32,
    groups: i32,
    row_tiles: i32,
    output_pairs: i32,
    scales: *const u8,
    scale_stride: i64,
    scale_columns: i32,
    is_out_mapped: i32,
}

// SAFETY: as above.
unsafe impl Param for ManyRows {}

/// How calls of one signature are run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Many {
    groups: i64,
    rows: i64,
    outputs: i64,
    columns: i64,
    order: ColumnOrder,
    /// Whether the products take weights as FP8 codes.
    is_fp8: bool,
    /// Which operands become BF16 in the workspace.
    is_x_widened: bool,
    is_weight_widened: bool,
    product: usize,
    clusters: i64,
}

/// What lies where in the workspace, and its end.
struct Layout {
    x: u64,
    weight: u64,
    x_flags: u64,
    weight_flags: u64,
    end: u64,
}

impl Many {
    /// Of a call, if it is one for these kernels.
    pub(super) fn plan(device: &Device, a: &LinearProto<'_>) -> Option<Self> {
        let (rows, outputs, columns) = (a.dims.t as i64, a.dims.o as i64, a.dims.k as i64);
        let (x, weight) = (a.x.format()?, a.weight.format()?);
        let is_narrow = matches!(x, Format::Bf16 | Format::Fp8Row32)
            && matches!(weight, Format::Bf16 | Format::Fp8Tile32 | Format::Fp4Row32);
        let groups = i64::from(a.groups);
        let is_countable = [rows, groups * outputs, columns].iter().all(|&extent| extent < 1 << 30);
        if !device.is_hopper() || !is_narrow || !is_countable || rows < LEAST_ROWS || groups * outputs * columns == 0 {
            return None;
        }
        let (x_stride, weight_stride) = (*a.x.strides().first()?, *a.weight.strides().first()?);
        let are_scales_whole = groups == 1 || outputs % 32 == 0;
        let is_fp8 = weight == Format::Fp8Tile32
            && rows < MANY_ROWS
            && weight_stride % ALIGNMENT == 0
            && weight_stride >= columns
            && are_scales_whole;
        let order = match weight {
            Format::Fp4Row32 => ColumnOrder::ByEight,
            _ if is_fp8 => ColumnOrder::ByFour,
            _ => ColumnOrder::Natural,
        };
        let fits = |stride: i64, least: i64| stride * 2 % ALIGNMENT == 0 && stride >= least;
        let is_x_apart = groups == 1 || columns * 2 % ALIGNMENT == 0;
        let stays =
            x == Format::Bf16 && order == ColumnOrder::Natural && fits(x_stride, groups * columns) && is_x_apart;
        let mut many = Self {
            groups,
            rows,
            outputs,
            columns,
            order,
            is_fp8,
            is_x_widened: !stays,
            is_weight_widened: !(is_fp8 || weight == Format::Bf16 && fits(weight_stride, columns)),
            product: 0,
            clusters: i64::from(device.multiprocessors() / CLUSTER).max(1),
        };
        many.product = many.best_product();
        (many.pairs() * groups * many.row_tiles(FEW_ROWS) >= LEAST_TILES).then_some(many)
    }

    /// Bytes of its workspace, and their alignment.
    pub(super) fn workspace(&self) -> (u64, u32) {
        (self.layout().end, 256)
    }

    fn places(&self) -> i64 {
        (self.columns + PLACES - 1) / PLACES * PLACES
    }

    fn layout(&self) -> Layout {
        let mut end = 0;
        let mut take = |is_wanted: bool, bytes: i64| {
            let at = end;
            end += if is_wanted { (bytes as u64).next_multiple_of(256) } else { 0 };
            at
        };
        let row = self.places() * 2;
        Layout {
            x: take(self.is_x_widened, self.rows * self.groups * row),
            weight: take(self.is_weight_widened, self.groups * self.outputs * row),
            x_flags: take(true, self.rows * self.groups),
            weight_flags: take(true, self.groups * self.outputs),
            end,
        }
    }

    /// Pairs of tiles of outputs, in a group.
    fn pairs(&self) -> i64 {
        let per_pair = i64::from(OUTPUTS * CLUSTER);
        (self.outputs + per_pair - 1) / per_pair
    }

    /// Tiles of so many rows.
    fn row_tiles(&self, rows: u32) -> i64 {
        let rows = i64::from(rows);
        (self.rows + rows - 1) / rows
    }

    fn products(&self) -> &'static [Product] {
        if self.is_fp8 { &FP8 } else { &BF16 }
    }

    /// The one that is done first: some waves of tiles, the last of which may be mostly empty.
    fn best_product(&self) -> usize {
        let products = self.products();
        let cost = |place: &usize| {
            let tiles = self.pairs() * self.row_tiles(products[*place].rows) * self.groups;
            (tiles + self.clusters - 1) / self.clusters * products[*place].cost
        };
        (0..products.len()).min_by_key(cost).unwrap_or(0)
    }

    /// Queues a call, or says that its addresses are not ones for these kernels.
    pub(super) fn run(
        &self,
        stream: &Stream,
        scratch: &Workspace<'_>,
        x: View,
        weight: View,
        out: View,
    ) -> Result<bool, Fault> {
        let is_aligned = |view: &View| view.data.addr().is_multiple_of(ALIGNMENT as usize);
        if !(self.is_x_widened || is_aligned(&x)) || !(self.is_weight_widened || is_aligned(&weight)) {
            return Ok(false);
        }
        let layout = self.layout();
        let at = |offset: u64| scratch.address().cast::<u8>().wrapping_add(offset as usize);
        let place = |is_there: bool, offset: u64| if is_there { at(offset) } else { std::ptr::null_mut() };
        let of_x = Widening {
            to: place(self.is_x_widened, layout.x),
            flags: place(!x.scale.is_null(), layout.x_flags),
            columns: self.columns,
            places: self.places(),
            groups: self.groups as i32,
            order: self.order as i32,
        };
        let of_weight = Widening {
            to: place(self.is_weight_widened, layout.weight),
            flags: place(!weight.scale.is_null(), layout.weight_flags),
            groups: 1,
            ..of_x
        };
        self.widen(stream, x, weight, of_x, of_weight)?;
        self.multiply(stream, x, weight, out, of_x, of_weight)?;
        if of_x.flags.is_null() && of_weight.flags.is_null() {
            return Ok(true);
        }
        let blocks = (self.rows as u32).min(2 * stream.device().multiprocessors());
        let (x_flags, weight_flags) = (of_x.flags.addr() as u64, of_weight.flags.addr() as u64);
        let grid = Grid::new(blocks, ODD_THREADS);
        launch!(stream, ODD, grid, x, weight, out, x_flags, weight_flags, self.groups as u32)?;
        Ok(true)
    }

    fn widen(&self, stream: &Stream, x: View, weight: View, of_x: Widening, of_weight: Widening) -> Result<(), Fault> {
        let x_rows = if of_x.to.is_null() && of_x.flags.is_null() { 0 } else { self.rows };
        let scale_rows = if weight.format() == Some(Format::Fp8Tile32) { 32 } else { 1 };
        let step = if of_weight.to.is_null() { scale_rows } else { 1 };
        let is_weight_still = of_weight.to.is_null() && of_weight.flags.is_null();
        let weight_rows = if is_weight_still { 0 } else { (self.groups * self.outputs + step - 1) / step };
        let grid = Grid::of_items((x_rows + weight_rows) * i64::from(WIDEN_THREADS), WIDEN_THREADS)?;
        launch!(stream, WIDEN, grid, x, of_x, weight, of_weight, x_rows, step)
    }

    fn multiply(
        &self,
        stream: &Stream,
        x: View,
        weight: View,
        out: View,
        of_x: Widening,
        of_weight: Widening,
    ) -> Result<(), Fault> {
        let Product { rows: tile_rows, function, .. } = &self.products()[self.product];
        let places = self.places();
        let widened = |data: *mut u8, rows: i64, row_stride: i64, group_stride: i64| Matrices {
            data,
            element: Element::Bf16,
            columns: places,
            rows,
            groups: self.groups,
            row_stride,
            group_stride,
        };
        let given = |view: &View, element: Element, rows: i64, group_stride: i64| Matrices {
            data: view.data,
            element,
            columns: self.columns,
            rows,
            groups: self.groups,
            row_stride: view.strides[2],
            group_stride,
        };
        let x_matrices = if self.is_x_widened {
            widened(of_x.to, self.rows, self.groups * places, places)
        } else {
            given(&x, Element::Bf16, self.rows, self.columns)
        };
        let weight_matrices = if self.is_weight_widened {
            widened(of_weight.to, self.outputs, places, self.outputs * places)
        } else {
            let element = if self.is_fp8 { Element::Byte } else { Element::Bf16 };
            given(&weight, element, self.outputs, self.outputs * weight.strides[2])
        };
        let results = Matrices {
            data: out.data,
            element: Element::Bf16,
            columns: self.outputs,
            rows: self.rows,
            groups: self.groups,
            row_stride: out.strides[2],
            group_stride: self.outputs,
        };
        let is_out_mapped = out.format() == Some(Format::Bf16) && results.is_mappable();
        let (pairs, row_tiles) = (self.pairs(), self.row_tiles(*tile_rows));
        let stage = i64::from(BOX_COLUMNS);
        // Stages of FP8 weights come in pairs.
        let step = if self.is_fp8 { 2 * stage } else { stage };
        let p = ManyRows {
            rows: self.rows,
            outputs: self.outputs,
            columns: self.columns,
            stages: ((self.columns + step - 1) / step * step / stage) as i32,
            groups: self.groups as i32,
            row_tiles: row_tiles as i32,
            output_pairs: pairs as i32,
            scales: weight.scale,
            scale_stride: weight.scale_strides[2],
            scale_columns: ((self.columns + 31) / 32) as i32,
            is_out_mapped: is_out_mapped.into(),
        };
        let clusters = (pairs * row_tiles * self.groups).min(self.clusters) as u32;
        let grid = Grid { shared_bytes: SHARED_BYTES, ..Grid::new(clusters * CLUSTER, THREADS) };
        let (weights, rows) = (weight_matrices.map(OUTPUTS)?, x_matrices.map(tile_rows / CLUSTER)?);
        // A kernel that does not use it is told of something else.
        let results = if is_out_mapped { results.map(*tile_rows)? } else { rows };
        launch!(stream, function, grid, weights, rows, results, p, out)
    }
}
