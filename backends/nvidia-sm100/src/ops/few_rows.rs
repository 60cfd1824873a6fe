//! Tables of the kernels that take narrow operands on the tensor cores, and the segments of a sum.

use deepinfer_plugin_api::Format;
use deepinfer_plugin_api::sdk::tensor::View;

/// Outputs of a tile.
pub(crate) const TILE_OUTPUTS: usize = 128;
/// Shared memory of a block; a kernel that needs more stops.
pub(crate) const SHARED_BYTES: u32 = 66 << 10;
/// Threads of a block.
pub(crate) const THREADS: u32 = 128;
/// Rows of weights under one scale, where the format has tiles.
pub(crate) const TILED_ROWS: usize = 32;
/// What a kernel counts in 32 bits, a tile beyond it too.
pub(crate) const MOST_EXTENT: usize = i32::MAX as usize - 1024;
/// Segments begin at multiples of it.
const SEGMENT_STEP: usize = 128;

/// Place of a narrow format of x in tables of kernels.
pub(crate) fn place_of_x(x: &View) -> Option<usize> {
    [Format::Bf16, Format::Fp8Row32].iter().position(|&format| x.format == format as i32)
}

/// Narrow formats of weights, in the order of tables of kernels.
pub(crate) const WEIGHTS: [Format; 3] = [Format::Bf16, Format::Fp8Tile32, Format::Fp4Row32];

/// Place of a narrow format of weights in tables of kernels.
pub(crate) fn place_of_weight(weight: &View) -> Option<usize> {
    WEIGHTS.iter().position(|&format| weight.format == format as i32)
}

/// The parts of a sum, by the rule of `common/segments.cuh`: columns of each but the last, and how many there are.
pub(crate) fn segments(columns: usize) -> (usize, usize) {
    let most = match columns {
        2048.. => 8,
        1024.. => 4,
        512.. => 2,
        _ => 1,
    };
    let each = columns.div_ceil(most * SEGMENT_STEP) * SEGMENT_STEP;
    (each, if each == 0 { 1 } else { columns.div_ceil(each) })
}
