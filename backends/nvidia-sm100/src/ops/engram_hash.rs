//! `engram_hash`: rows of the n-gram tables, then the latest ids of each request.

use deepinfer_plugin_api::generated::EngramHashArgs;
use deepinfer_plugin_api::sdk::tensor::View;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(EngramHash, engram_hash, flags = super::FLAGS);

static ENGRAM_HASH: Function = Function::new(&images::ENGRAM_HASH, c"engram_hash");
static UPDATE_HISTORY: Function = Function::new(&images::ENGRAM_HASH, c"update_history");
const THREADS: u32 = 128;
const WARP: i64 = 32;

fn engram_hash(cx: &Cx<'_>, a: EngramHashArgs<'_>) -> Result<(), Fault> {
    let (n, j) = (a.dims.n, a.dims.j);
    if n < 2 || !j.is_multiple_of(n - 1) {
        return Err(Fault::invalid(format!(
            "engram_hash: multipliers has {n} columns and primes {j}, but N must be at least 2 and J a multiple of N - 1"
        )));
    }
    let (token_ids, token_map, history) = (a.token_ids.view()?, a.token_map.view()?, a.history.view()?);
    let image_mask = a.image_mask.as_ref().map_or(Ok(View::ABSENT), |mask| mask.view())?;
    let (request_start, state_slot) = (a.request_start.view()?, a.state_slot.view()?);
    let (multipliers, primes, offsets) = (a.multipliers.view()?, a.primes.view()?, a.offsets.view()?);
    let rows = a.rows.view()?;
    let stream = stream(cx)?;
    let (tables, tokens) = (primes.rows() * primes.columns(), token_ids.columns());
    // A thread for each number of a token, a layer in each row of blocks.
    let mut numbers = Grid::of_items(tokens * primes.columns(), THREADS)?;
    numbers.blocks.1 = u16::try_from(primes.rows())
        .map_err(|_| Fault::unsupported(format!("engram_hash: {} layers are more than 65535", primes.rows())))?
        .into();
    launch!(
        stream,
        ENGRAM_HASH,
        numbers,
        token_ids,
        token_map,
        image_mask,
        history,
        request_start,
        state_slot,
        multipliers,
        primes,
        offsets,
        rows,
        a.pad,
    )?;
    launch!(
        stream,
        UPDATE_HISTORY,
        Grid::of_items(tables.max(tokens).max(request_start.columns() * WARP), THREADS)?,
        token_ids,
        token_map,
        image_mask,
        history,
        request_start,
        state_slot,
        primes,
        offsets,
    )
}
