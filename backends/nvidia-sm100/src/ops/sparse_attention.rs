//! `sparse_attention`: attention of each row over listed cache entries, with a sink.

use deepinfer_plugin_api::generated::SparseAttentionArgs;
use deepinfer_plugin_api::sdk::tensor::View;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::cache;
use crate::image::{Function, images};
use crate::launch::{Grid, Param, launch, stream};

deepinfer_plugin_api::kernel!(SparseAttention, sparse_attention);

static SPARSE_ATTENTION: Function = Function::new(&images::SPARSE_ATTENTION, c"sparse_attention");
const OP: &str = "sparse_attention";
const THREADS: u32 = 256;
/// Most heads of a block.
const MOST_HEADS: usize = 8;
/// Dynamic shared memory of a block: 48 KiB without the kernel's own.
const SHARED_BYTES: usize = (48 << 10) - 256;

/// A cache, and the entries of each row in it, as `sparse_attention.cu` has it.
#[repr(C)]
struct Source {
    cache: View,
    slots: View,
    format: u32,
    entries: u32,
}

// SAFETY: laid out as in `sparse_attention.cu`.
unsafe impl Param for Source {}

/// Bytes of shared memory that `entries` entries need with `heads` heads: scores, an address, a distance.
const fn bytes_of(entries: usize, heads: usize) -> usize {
    entries * (heads * size_of::<f64>() + size_of::<u64>() + size_of::<u32>())
}

fn sparse_attention(cx: &Cx<'_>, a: SparseAttentionArgs<'_>) -> Result<(), Fault> {
    let d = a.dims;
    if a.round_probs > 1 {
        return Err(Fault::invalid(format!("round_probs is {}, but must be 0 or 1", a.round_probs)));
    }
    // A cache without pages has entries of any size.
    let page_bytes = |pages: usize, bytes: usize| if pages == 0 { usize::MAX } else { bytes };
    let (format, entries) = (a.window_format, a.window_entries_per_page);
    cache::check_layout(OP, "window", format, entries, d.d, page_bytes(d.p, d.b))?;
    let window = Source { cache: a.window.view()?, slots: a.window_slots.view()?, format, entries };
    let global = match (&a.global, &a.global_slots) {
        (Some(pages), Some(slots)) => {
            let (format, entries) = (a.global_format, a.global_entries_per_page);
            cache::check_layout(OP, "global", format, entries, d.d, page_bytes(d.g, d.a))?;
            Source { cache: pages.view()?, slots: slots.view()?, format, entries }
        }
        (None, None) => Source { cache: View::ABSENT, slots: View::ABSENT, format: 0, entries: 1 },
        _ => return Err(Fault::invalid("global and global_slots must be present together")),
    };
    let listed = (window.slots.columns() + global.slots.columns()) as usize;
    let Some(heads) = (1..=MOST_HEADS).rev().find(|&heads| bytes_of(listed, heads) <= SHARED_BYTES) else {
        return Err(Fault::unsupported(format!(
            "window_slots and global_slots list {listed} entries for a row, but at most {} fit the shared memory of a block",
            SHARED_BYTES / bytes_of(1, 1)
        )));
    };
    let (q, out) = (a.q.view()?, a.out.view()?);
    // Without heads a slot can still be wrong: every row has a block.
    let blocks = d.t as i64 * d.h.div_ceil(heads).max(1) as i64;
    let mut grid = Grid::of_items(blocks * i64::from(THREADS), THREADS)?;
    grid.shared_bytes = bytes_of(listed, heads) as u32;
    launch!(
        stream(cx)?,
        SPARSE_ATTENTION,
        grid,
        q,
        window,
        global,
        a.sink.view()?,
        out,
        listed as i64,
        heads as u32,
        a.scale,
        a.round_probs
    )
}
