//! `gather`: rows of a table by index.

use deepinfer_plugin_api::generated::GatherArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};
use deepinfer_plugin_api::{Format, Shaped};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(Gather, gather, flags = PROMISES);

static GATHER: Function = Function::new(&images::GATHER, c"gather");
/// What a block takes of a row at a time: bytes to copy, or columns to convert.
const PIECE_BYTES: i64 = 16_384;
const PIECE_COLUMNS: i64 = 4096;

tiling! {
    struct GatherTiling: 64 {
        indices: i64, table_rows: i64, columns: i64, repeat: i64, table_stride: i64, out_stride: i64, repeat_stride: i64,
        table_format: i32, out_format: i32,
    }
}

fn gather(cx: &Cx<'_>, a: GatherArgs<'_>) -> Result<(), Fault> {
    let floats = [Some(Format::F32), Some(Format::Bf16)];
    let (from, to) = (a.table.format(), a.out.format());
    if from != to && !(floats.contains(&from) && floats.contains(&to)) {
        let name = |format: Option<Format>| format.map_or("an unknown format", Format::name);
        return Err(Fault::invalid(format!(
            "out is {} and table {}, but only F32 and BF16 are converted into each other",
            name(to),
            name(from)
        )));
    }
    let (table, index, out, stream) = (a.table.view()?, a.index.view()?, a.out.view()?, stream(cx)?);
    let size = match to {
        Some(Format::U8) => 1,
        Some(Format::Bf16) => 2,
        Some(Format::I64) => 8,
        _ => 4,
    };
    let (indices, columns) = (index.columns(), out.columns());
    let pieces = columns.unsigned_abs().div_ceil(if from == to { PIECE_BYTES / size } else { PIECE_COLUMNS } as u64);
    let tiling = GatherTiling {
        indices,
        table_rows: table.rows(),
        columns,
        repeat: i64::from(a.repeat),
        table_stride: table.strides[2],
        out_stride: out.strides[1],
        repeat_stride: out.strides[2],
        table_format: table.format,
        out_format: out.format,
    };
    let blocks = blocks(stream, indices.saturating_mul(pieces as i64));
    launch!(stream, GATHER, blocks, [table.data, index.data, out.data], tiling)
}
