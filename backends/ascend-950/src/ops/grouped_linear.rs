//! `grouped_linear`: products of row ranges with one weight matrix each.
//!
//! The matrices travel in the tiling struct, 96 to a launch; a call with more experts is several launches, each of which takes
//! the rows of its own experts.

use deepinfer_plugin_api::generated::GroupedLinearArgs;
use deepinfer_plugin_api::sdk::tensor::View;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, Tiling, blocks, launch, stream, tiling};
use crate::stream::Stream;

deepinfer_plugin_api::kernel!(GroupedLinear, grouped_linear, flags = PROMISES);

static GROUPED_LINEAR: Function = Function::new(&images::GROUPED_LINEAR, c"grouped_linear");
/// Rows, and outputs, of a tile.
const TILE: usize = 32;
/// Matrices of a launch.
const MOST_MATRICES: usize = 96;

tiling! {
    struct GroupedLinearTiling: 80 {
        rows: i64, outputs: i64, columns: i64, x_stride: i64, x_scale_stride: i64, out_stride: i64,
        experts: i64, first: i64, count: i64, x_format: i32, out_format: i32,
    }
}

/// A matrix, as the kernel's file has it.
#[repr(C)]
#[derive(Clone, Copy)]
struct ExpertMatrix {
    data: u64,
    scale: u64,
    stride: i64,
    scale_stride: i64,
    format: i32,
    reserved: i32,
}

impl ExpertMatrix {
    const NONE: Self = Self { data: 0, scale: 0, stride: 0, scale_stride: 0, format: 0, reserved: 0 };

    fn of(view: &View, stream: &Stream) -> Self {
        let address = |data: *mut u8| stream.device().for_kernels(data.expose_provenance() as u64);
        Self {
            data: address(view.data),
            scale: address(view.scale),
            stride: view.strides[2],
            scale_stride: view.scale_strides[2],
            format: view.format,
            reserved: 0,
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct WithMatrices {
    numbers: GroupedLinearTiling,
    matrices: [ExpertMatrix; MOST_MATRICES],
}

const _: () = assert!(size_of::<ExpertMatrix>() == 40, "the kernel's file states another size");
// SAFETY: plain numbers in the order of C, as the kernel's file has them.
unsafe impl Tiling for WithMatrices {}

fn grouped_linear(cx: &Cx<'_>, a: GroupedLinearArgs<'_>) -> Result<(), Fault> {
    let (x, starts, out, stream) = (a.x.view()?, a.expert_start.view()?, a.out.view()?, stream(cx)?);
    let weights = a.weight.tensors();
    let numbers = GroupedLinearTiling {
        rows: a.dims.m as i64,
        outputs: a.dims.o as i64,
        columns: a.dims.k as i64,
        x_stride: x.strides[2],
        x_scale_stride: x.scale_strides[2],
        out_stride: out.strides[2],
        experts: weights.len() as i64,
        first: 0,
        count: 0,
        x_format: x.format,
        out_format: out.format,
    };
    // Without experts the starts can still be wrong: there is always a launch, and a block.
    for first in (0..weights.len().max(1)).step_by(MOST_MATRICES) {
        let some = &weights[first..weights.len().min(first + MOST_MATRICES)];
        let (first, count) = (first as i64, some.len() as i64);
        let mut tiling = WithMatrices {
            numbers: GroupedLinearTiling { first, count, ..numbers },
            matrices: [ExpertMatrix::NONE; MOST_MATRICES],
        };
        for (matrix, weight) in tiling.matrices.iter_mut().zip(some) {
            *matrix = ExpertMatrix::of(&weight.view()?, stream);
        }
        let tiles = (a.dims.m.div_ceil(TILE) + some.len()) * a.dims.o.div_ceil(TILE);
        let blocks = blocks(stream, tiles.max(1) as i64);
        let addresses = [x.data, x.scale, starts.data, out.data, stream.fault_word()];
        let [x, x_scale, starts, out, faults] = addresses;
        launch!(stream, GROUPED_LINEAR, blocks, [x, x_scale, starts, out, faults], tiling)?;
    }
    Ok(())
}
