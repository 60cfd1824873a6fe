//! `convert_kv_index`: entry positions of a request to cache slots, through its page table.

use deepinfer_plugin_api::generated::ConvertKvIndexArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(ConvertKvIndex, convert_kv_index, flags = PROMISES);

static CONVERT_KV_INDEX: Function = Function::new(&images::CONVERT_KV_INDEX, c"convert_kv_index");
/// Positions that a block takes at a time.
const PIECE: u64 = 2048;

tiling! {
    struct ConvertKvIndexTiling: 64 {
        rows: i64, columns: i64, position_stride: i64, slot_stride: i64, requests: i64, pages: i64, table_stride: i64,
        entries: u32, reserved: u32,
    }
}

fn convert_kv_index(cx: &Cx<'_>, a: ConvertKvIndexArgs<'_>) -> Result<(), Fault> {
    if a.entries_per_page == 0 {
        return Err(Fault::invalid("entries_per_page is 0, but must be at least 1"));
    }
    let (positions, row_request, slots) = (a.positions.view()?, a.row_request.view()?, a.slots.view()?);
    let (table, stream) = (a.block_table.view()?, stream(cx)?);
    let tiling = ConvertKvIndexTiling {
        rows: slots.rows(),
        columns: slots.columns(),
        position_stride: positions.strides[2],
        slot_stride: slots.strides[2],
        requests: table.rows(),
        pages: table.columns(),
        table_stride: table.strides[2],
        entries: a.entries_per_page,
        reserved: 0,
    };
    // Without positions a request can still be wrong: every row has a piece.
    let pieces = tiling.columns.unsigned_abs().div_ceil(PIECE).max(1) as i64;
    launch!(
        stream,
        CONVERT_KV_INDEX,
        blocks(stream, tiling.rows.saturating_mul(pieces)),
        [positions.data, row_request.data, table.data, slots.data, stream.fault_word()],
        tiling
    )
}
