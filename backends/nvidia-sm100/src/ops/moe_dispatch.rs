//! `moe_dispatch`: rows copied to their experts, sorted by expert.

use deepinfer_plugin_api::generated::MoeDispatchArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};
use deepinfer_plugin_api::{Format, Shaped};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(MoeDispatch, moe_dispatch, flags = super::FLAGS);

static FEW: Function = Function::new(&images::MOE_DISPATCH, c"moe_dispatch_few");
static COUNT: Function = Function::new(&images::MOE_DISPATCH, c"moe_dispatch_count");
static PLACE: Function = Function::new(&images::MOE_DISPATCH, c"moe_dispatch_place");
static COPY: Function = Function::new(&images::MOE_DISPATCH, c"moe_dispatch_copy");
const FEW_THREADS: u32 = 128;
const THREADS: u32 = 1024;
const COPY_THREADS: u32 = 128;
/// What a warp copies of a row at once.
const WARP_BYTES: i64 = 2048;
/// Pairs of which each may look at all others.
const FEW_PAIRS: i64 = 2048;
/// Chunks of pairs whose counts each chunk may add up.
const MOST_CHUNKS: i64 = 256;

fn moe_dispatch(cx: &Cx<'_>, a: MoeDispatchArgs<'_>) -> Result<(), Fault> {
    let pairs = a.dims.t as i64 * a.dims.k as i64;
    if pairs > i64::from(i32::MAX) {
        return Err(Fault::invalid(format!("experts has {pairs} pairs, more than an I32 row of row_of can name")));
    }
    let (x, row_of, out, expert_start) = (a.x.view()?, a.row_of.view()?, a.out.view()?, a.expert_start.view()?);
    let (experts, weights, row_weight) = (a.experts.view()?, a.weights.view()?, a.row_weight.view()?);
    let stream = stream(cx)?;
    // The counts of a chunk, one per expert, stand in `row_weight` until the rows are copied.
    let count = (expert_start.columns() - 1) as i32;
    let pairs_of = |chunks: i64| chunks * i64::from(count) <= pairs;
    if pairs <= FEW_PAIRS || !pairs_of(1) {
        let grid = Grid::new(pairs as u32 + 1, FEW_THREADS);
        return launch!(stream, FEW, grid, x, experts, weights, out, row_weight, expert_start, row_of);
    }
    let chunks_of = |rounds: i64| (pairs + rounds * i64::from(THREADS) - 1) / (rounds * i64::from(THREADS));
    let fits = |&rounds: &i64| chunks_of(rounds) <= MOST_CHUNKS && pairs_of(chunks_of(rounds));
    let rounds = (1..).find(fits).unwrap_or(1);
    let chunks = Grid::new(chunks_of(rounds) as u32, THREADS);
    launch!(stream, COUNT, chunks, experts, row_of, row_weight, count, rounds as u32)?;
    launch!(stream, PLACE, chunks, experts, row_of, row_weight, expert_start, count, rounds as u32)?;
    let size = match a.x.format() {
        Some(Format::F32) => 4,
        Some(Format::Bf16) => 2,
        _ => 1,
    };
    // Without columns the weights still move.
    let pieces = ((x.columns() * size + WARP_BYTES - 1) / WARP_BYTES).max(1);
    let grid = Grid::of_warps(x.rows() * pieces, COPY_THREADS)?;
    launch!(stream, COPY, grid, x, weights, row_of, expert_start, out, row_weight, pieces as u32)
}
