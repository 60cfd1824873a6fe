//! `index_scores`: scores of cached index keys against the index queries of each row.

use deepinfer_plugin_api::generated::IndexScoresArgs;
use deepinfer_plugin_api::sdk::tensor::{In, View};
use deepinfer_plugin_api::sdk::{Cx, Fault, cache_format};
use deepinfer_plugin_api::{CacheFormat, Format};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(IndexScores, index_scores, flags = super::FLAGS);

/// The kernels of a format of keys.
struct Kernels {
    /// Rows with keys of their own, fewer heads than [`HEADS`].
    few_heads: Function,
    /// Rows with keys of their own.
    row: Function,
    /// Rows that share their keys.
    rows: Function,
}

macro_rules! kernels {
    ($few_heads:literal, $row:literal, $rows:literal) => {
        Kernels {
            few_heads: Function::new(&images::INDEX_SCORES, $few_heads),
            row: Function::new(&images::INDEX_SCORES, $row),
            rows: Function::new(&images::INDEX_SCORES, $rows),
        }
    };
}

static BF16: Kernels = kernels!(c"index_scores_bf16_few_heads", c"index_scores_bf16_row", c"index_scores_bf16_rows");
static FP8: Kernels = kernels!(c"index_scores_fp8_few_heads", c"index_scores_fp8_row", c"index_scores_fp8_rows");
static FP4_ROW16: Kernels =
    kernels!(c"index_scores_fp4_row16_few_heads", c"index_scores_fp4_row16_row", c"index_scores_fp4_row16_rows");
static FP4_ROW32: Kernels =
    kernels!(c"index_scores_fp4_row32_few_heads", c"index_scores_fp4_row32_row", c"index_scores_fp4_row32_rows");
const THREADS: u32 = 256;
/// Channels of a head, and most heads.
const DIM: usize = 128;
const HEADS: usize = 32;
/// Rows that a block takes of those that share their keys.
const SHARING_ROWS: usize = 8;
/// Columns that the warpgroups of a block take at a time.
const TILE: usize = 128;
/// Blocks that fill a large device once or twice: each stages its queries. How columns are cut does not show in the scores.
const BLOCKS: usize = 256;

static WIDE: Function = Function::new(&images::INDEX_SCORES_WIDE, c"index_scores_wide");
const WIDE_THREADS: u32 = 256;
/// Columns that a block takes.
const WIDE_COLUMNS: usize = 64;

fn index_scores(cx: &Cx<'_>, a: IndexScoresArgs<'_>) -> Result<(), Fault> {
    let d = a.dims;
    if a.candidates.is_some() && a.block_size == 0 {
        return Err(Fault::invalid("block_size is 0, but must be at least 1 with candidates"));
    }
    // A cache without pages has entries of any size.
    let page_bytes = if d.p == 0 { usize::MAX } else { d.b };
    cache_format(("index_scores", "keys"), a.format, a.entries_per_page, d.d, page_bytes)?;
    let (q, head_weight, keys) = (a.q.view()?, a.head_weight.view()?, a.keys.view()?);
    let (row_request, block_table, visible) = (a.row_request.view()?, a.block_table.view()?, a.visible.view()?);
    let candidates = a.candidates.as_ref().map_or(Ok(View::ABSENT), In::view)?;
    let out = a.out.view()?;

    let kernels = match CacheFormat::from_u32(a.format) {
        Some(CacheFormat::Bf16) => Some(&BF16),
        Some(CacheFormat::Fp8) => Some(&FP8),
        Some(CacheFormat::Fp4Row16) => Some(&FP4_ROW16),
        Some(CacheFormat::Fp4Row32) => Some(&FP4_ROW32),
        _ => None,
    };
    let has_narrow_queries = matches!(q.format(), Some(Format::Bf16 | Format::Fp4Row32));
    let is_small = d.n <= i32::MAX as usize && u32::try_from(keys.strides[2]).is_ok();
    let is_narrow = has_narrow_queries && d.d == DIM && (1..=HEADS).contains(&d.h) && is_small;
    let Some(kernels) = kernels.filter(|_| is_narrow) else {
        // Without columns a request can still be wrong: every row has a block.
        let pieces = d.n.div_ceil(WIDE_COLUMNS).max(1) as i64;
        let grid = Grid::of_items(d.t as i64 * pieces * i64::from(WIDE_THREADS), WIDE_THREADS)?;
        return launch!(
            stream(cx)?,
            WIDE,
            grid,
            q,
            head_weight,
            keys,
            row_request,
            block_table,
            visible,
            candidates,
            out,
            d.d as i64,
            a.scale,
            a.format,
            a.entries_per_page,
            a.block_size,
            pieces,
        );
    };
    // Rows share keys where there are clearly more rows than requests; a block finds out which do.
    let (kernel, rows) = match () {
        () if d.h < HEADS => (&kernels.few_heads, 1),
        () if candidates.rank > 0 || d.t < 3 * d.q => (&kernels.row, 1),
        () => (&kernels.rows, SHARING_ROWS),
    };
    let groups = d.t.div_ceil(rows);
    let tiles = d.n.div_ceil(TILE).max(1);
    let columns = TILE * tiles.div_ceil(tiles.min(BLOCKS.div_ceil(groups.max(1))));
    let pieces = d.n.div_ceil(columns).max(1);
    let grid = Grid {
        // The tile of the queries and its boundary, the weights, and two numbers of each row.
        shared_bytes: (1024 + rows * (HEADS * (2 * DIM + 4) + 16)).next_multiple_of(1024) as u32,
        ..Grid::of_items((groups * pieces) as i64 * i64::from(THREADS), THREADS)?
    };
    let entries = a.entries_per_page;
    // Of what is no power of two, 32.
    let log2 = |n: u32| if n.is_power_of_two() { n.ilog2() } else { 32 };
    launch!(
        stream(cx)?,
        kernel,
        grid,
        q,
        head_weight,
        keys,
        row_request,
        block_table,
        visible,
        candidates,
        out,
        a.scale,
        entries,
        log2(entries),
        a.block_size,
        log2(a.block_size),
        columns as u32,
    )
}
