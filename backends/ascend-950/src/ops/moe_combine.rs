//! `moe_combine`: the sum of the expert outputs of each row and of the shared expert's.

use deepinfer_plugin_api::generated::MoeCombineArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, optional, stream, tiling};

deepinfer_plugin_api::kernel!(MoeCombine, moe_combine, flags = PROMISES);

static MOE_COMBINE: Function = Function::new(&images::MOE_COMBINE, c"moe_combine");
/// Columns that a block takes at a time.
const PIECE: u64 = 4096;

tiling! {
    struct MoeCombineTiling: 72 {
        rows: i64, columns: i64, outputs: i64, places: i64, y_stride: i64, list_stride: i64, shared_stride: i64, out_stride: i64,
        format: i32, has_shared: i32,
    }
}

fn moe_combine(cx: &Cx<'_>, a: MoeCombineArgs<'_>) -> Result<(), Fault> {
    let (y, row_of, out, stream) = (a.y.view()?, a.row_of.view()?, a.out.view()?, stream(cx)?);
    let shared = optional(&a.shared)?;
    let tiling = MoeCombineTiling {
        rows: out.rows(),
        columns: out.columns(),
        outputs: y.rows(),
        places: row_of.columns(),
        y_stride: y.strides[2],
        list_stride: row_of.strides[2],
        shared_stride: shared.strides[2],
        out_stride: out.strides[2],
        format: out.format,
        has_shared: i32::from(a.shared.is_some()),
    };
    // Without columns a place can still be wrong: every row has a piece.
    let pieces = tiling.columns.unsigned_abs().div_ceil(PIECE).max(1) as i64;
    launch!(
        stream,
        MOE_COMBINE,
        blocks(stream, tiling.rows.saturating_mul(pieces)),
        [y.data, row_of.data, shared.data, out.data, stream.fault_word()],
        tiling
    )
}
