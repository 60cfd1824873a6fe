//! `compress_and_update_state`: groups of tokens pooled, then the latest rows kept.

use deepinfer_plugin_api::generated::CompressAndUpdateStateArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(CompressAndUpdateState, compress_and_update_state, flags = super::FLAGS);

static COMPRESS: Function = Function::new(&images::COMPRESS_AND_UPDATE_STATE, c"compress");
static UPDATE_STATE: Function = Function::new(&images::COMPRESS_AND_UPDATE_STATE, c"update_state");
const THREADS: u32 = 128;
/// The addresses of a group's members, 16 bytes each, fit the shared memory that a block gets without asking.
const MOST_MEMBERS: u32 = 3072;

fn compress_and_update_state(cx: &Cx<'_>, a: CompressAndUpdateStateArgs<'_>) -> Result<(), Fault> {
    const OP: &str = "compress_and_update_state";
    let (ratio, ring) = (a.ratio, a.dims.s);
    if ratio < 2 || ratio as usize > ring {
        return Err(Fault::invalid(format!("{OP}: ratio is {ratio}, but must be at least 2 and at most S = {ring}")));
    }
    if ratio > MOST_MEMBERS {
        return Err(Fault::unsupported(format!(
            "{OP}: groups of {ratio} tokens; the kernel takes at most {MOST_MEMBERS}"
        )));
    }
    let (latent, score, state) = (a.latent.view()?, a.score.view()?, a.state.view()?);
    let (positions, request_start, state_slot) = (a.positions.view()?, a.request_start.view()?, a.state_slot.view()?);
    let (group_row, row_request) = (a.group_row.view()?, a.row_request.view()?);
    let stream = stream(cx)?;
    let blocks = |count: i64| Grid::of_items(count * i64::from(THREADS), THREADS);
    let mut groups = blocks(group_row.columns())?;
    groups.shared_bytes = 16 * ratio;
    launch!(
        stream,
        COMPRESS,
        groups,
        latent,
        score,
        state,
        group_row,
        positions,
        row_request,
        request_start,
        state_slot,
        a.out.view()?,
        ratio,
    )?;
    let places = blocks(request_start.columns())?;
    launch!(stream, UPDATE_STATE, places, latent, score, state, positions, request_start, state_slot)
}
