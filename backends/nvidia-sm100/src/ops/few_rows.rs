//! Tables of the kernels that take narrow operands on the tensor cores, and the segments of a sum.

use deepinfer_plugin_api::Format;
use deepinfer_plugin_api::sdk::tensor::View;

use crate::device::Device;

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

/// Threads of a block of the kernels of `common/few_codes.cuh`, and its warps, each with outputs of its own.
pub(crate) const CODE_THREADS: u32 = 256;
pub(crate) const CODE_WARPS: usize = CODE_THREADS as usize / 32;

/// Whether those kernels take FP8 rows and these weights: on Hopper, where it is known that they give the same bits as the others,
/// and with whole panels of columns.
pub(crate) fn takes_codes(device: &Device, x: &View, weight: &View, columns: usize) -> bool {
    let is_of = |view: &View, format: Format| view.format == format as i32;
    let (panel, bits) = if is_of(weight, Format::Fp4Row32) { (256, 4) } else { (128, 8) };
    device.is_hopper()
        && is_of(x, Format::Fp8Row32)
        && (is_of(weight, Format::Fp4Row32) || is_of(weight, Format::Fp8Tile32))
        && columns > 0
        && columns.is_multiple_of(panel)
        && are_words(x, 8)
        && are_words(weight, bits)
}

/// Whether rows, of elements of so many bits, begin at multiples of 16 bytes, and their scales at multiples of four.
fn are_words(view: &View, bits: usize) -> bool {
    let is_multiple = |number: usize, of: usize| number.is_multiple_of(of);
    is_multiple(view.data.addr(), 16)
        && is_multiple(view.strides[2].unsigned_abs() as usize, 16 * 8 / bits)
        && is_multiple(view.scale.addr(), 4)
        && is_multiple(view.scale_strides[2].unsigned_abs() as usize, 4)
}
