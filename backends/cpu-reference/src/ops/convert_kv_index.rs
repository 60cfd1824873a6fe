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

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::generated::ConvertKvIndex;

    use crate::testing::{Tensor, call};

    /// Two requests: pages 4, 0, 7 and pages 2, none, none; four entries each.
    fn run(positions: &[i32], requests: &[i32], entries: u32) -> Result<Vec<i32>, String> {
        let shape = [requests.len(), positions.len() / requests.len().max(1)];
        let (positions, requests) = (Tensor::i32(&shape, positions), Tensor::i32(&[requests.len()], requests));
        let table = Tensor::i32(&[2, 3], &[4, 0, 7, 2, -1, i32::MAX]).padded(2);
        let mut slots = Tensor::unwritten(Format::I32, &shape);
        call::<ConvertKvIndex>(|a| {
            (a.positions, a.row_request, a.block_table) = (positions.input(), requests.input(), table.input());
            (a.entries_per_page, a.slots) = (entries, slots.output());
        })?;
        Ok(slots.ints())
    }

    #[test]
    fn positions_go_through_the_page_table() {
        let slots = run(&[0, 3, 4, 11, -1, 3, 0, -5], &[0, 1], 4).unwrap();
        assert_eq!(slots, [16, 19, 0, 31, -1, 11, 8, -1]);
        assert!(run(&[], &[], 4).unwrap().is_empty());
    }

    #[test]
    fn positions_without_a_page_are_refused() {
        let beyond = "positions[0, 1] is 12, but the 3 pages of request 0 hold 12 entries";
        assert!(run(&[0, 12], &[0], 4).unwrap_err().contains(beyond));
        assert!(run(&[4, 0], &[1], 4).unwrap_err().contains("positions[0, 0] is 4, but block_table[1, 1] is -1"));
        assert!(run(&[8], &[1], 4).unwrap_err().contains("block_table[1, 2] is 2147483647"));
        assert!(run(&[0], &[2], 4).unwrap_err().contains("row_request[0] is 2"));
        assert!(run(&[0], &[0], 0).unwrap_err().contains("entries_per_page is 0"));
    }
}
