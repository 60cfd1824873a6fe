//! `convert_kv_index`: entry positions of a request to cache slots, through its page table.

use deepinfer_plugin_api::generated::ConvertKvIndexArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::arguments::{index, positive};

deepinfer_plugin_api::kernel!(ConvertKvIndex, convert_kv_index);

fn convert_kv_index(_: &Cx<'_>, mut a: ConvertKvIndexArgs<'_>) -> Result<(), Fault> {
    const OP: &str = "convert_kv_index";
    let entries = positive(OP, "entries_per_page", a.entries_per_page)?;
    let (positions, request) = (a.positions.rows::<i32>()?, a.row_request.slice::<i32>()?);
    let table = a.block_table.rows::<i32>()?;

    let mut found = Vec::with_capacity(a.dims.t * a.dims.k);
    for (t, &q) in request.iter().enumerate() {
        let pages = table.row(index(OP, "row_request", &[t], q, a.dims.q)?);
        for (j, &position) in positions.row(t).iter().enumerate() {
            found.push(match usize::try_from(position) {
                Ok(position) => {
                    slot(pages, entries, position).ok_or_else(|| no_page(t, j, position, q, pages, entries))?
                }
                Err(_) => -1,
            });
        }
    }
    for (t, row) in a.slots.rows_mut::<i32>()?.into_iter().enumerate() {
        row.copy_from_slice(&found[t * a.dims.k..][..a.dims.k]);
    }
    Ok(())
}

/// Slot of an entry, if the table has its page and the slot is an `i32`.
#[inline]
fn slot(pages: &[i32], entries: usize, position: usize) -> Option<i32> {
    let page = usize::try_from(*pages.get(position / entries)?).ok()?;
    i32::try_from(page.checked_mul(entries)?.checked_add(position % entries)?).ok()
}

#[cold]
fn no_page(t: usize, j: usize, position: usize, q: i32, pages: &[i32], entries: usize) -> Fault {
    let g = position / entries;
    Fault::invalid(match pages.get(g) {
        None => format!(
            "convert_kv_index: positions[{t}, {j}] is {position}, but the {} pages of request {q} hold {} entries",
            pages.len(),
            pages.len() * entries
        ),
        Some(page) => format!(
            "convert_kv_index: positions[{t}, {j}] is {position}, but block_table[{q}, {g}] is {page}; it must be at least 0 \
             and its slots below 2^31"
        ),
    })
}
