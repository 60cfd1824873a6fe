//! `convert_kv_index`: entry positions of a request to cache slots, through its page table.

use deepinfer_plugin_api::generated::ConvertKvIndexArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::index_quads::index_quads;
use crate::launch::{launch, stream};

deepinfer_plugin_api::kernel!(ConvertKvIndex, convert_kv_index, flags = super::FLAGS);

/// The kernel then divides.
const NO_POWER: u32 = 32;
static CONVERT_KV_INDEX: Function = Function::new(&images::CONVERT_KV_INDEX, c"convert_kv_index");

fn convert_kv_index(cx: &Cx<'_>, a: ConvertKvIndexArgs<'_>) -> Result<(), Fault> {
    let entries = a.entries_per_page;
    if entries == 0 {
        return Err(Fault::invalid("entries_per_page is 0, but must be at least 1"));
    }
    let slots = a.slots.view()?;
    // Without positions a request can still be wrong: every row has a thread.
    let (grid, row_log2) = index_quads(slots.rows(), slots.columns())?;
    let (positions, row_request, table) = (a.positions.view()?, a.row_request.view()?, a.block_table.view()?);
    let entries_log2 = if entries.is_power_of_two() { entries.ilog2() } else { NO_POWER };
    launch!(stream(cx)?, CONVERT_KV_INDEX, grid, positions, row_request, table, slots, entries, entries_log2, row_log2)
}
