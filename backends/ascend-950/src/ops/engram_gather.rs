//! `engram_gather`: rows of an n-gram table side by side.

use deepinfer_plugin_api::generated::EngramGatherArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(EngramGather, engram_gather, flags = PROMISES);

static ENGRAM_GATHER: Function = Function::new(&images::ENGRAM_GATHER, c"engram_gather");

tiling! {
    struct EngramGatherTiling: 72 {
        lookups: i64, per_row: i64, table_rows: i64, columns: i64, table_stride: i64, scale_stride: i64, rows_stride: i64,
        out_stride: i64, table_format: i32, out_format: i32,
    }
}

fn engram_gather(cx: &Cx<'_>, a: EngramGatherArgs<'_>) -> Result<(), Fault> {
    let (table, rows, out, stream) = (a.table.view()?, a.rows.view()?, a.out.view()?, stream(cx)?);
    let columns = table.columns();
    let lookups = if columns == 0 { 0 } else { rows.rows() * rows.columns() };
    let tiling = EngramGatherTiling {
        lookups,
        per_row: rows.columns(),
        table_rows: table.rows(),
        columns,
        table_stride: table.strides[2],
        scale_stride: table.scale_strides[2],
        rows_stride: rows.strides[2],
        out_stride: out.strides[2],
        table_format: table.format,
        out_format: out.format,
    };
    launch!(stream, ENGRAM_GATHER, blocks(stream, lookups), [table.data, table.scale, rows.data, out.data], tiling)
}
