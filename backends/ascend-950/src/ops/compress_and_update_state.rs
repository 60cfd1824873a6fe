//! `compress_and_update_state`: groups of tokens pooled, then the latest rows kept.

use deepinfer_plugin_api::generated::CompressAndUpdateStateArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(CompressAndUpdateState, compress_and_update_state, flags = PROMISES);

static COMPRESS: Function = Function::new(&images::COMPRESS_AND_UPDATE_STATE, c"compress");
static UPDATE_STATE: Function = Function::new(&images::COMPRESS_AND_UPDATE_STATE, c"update_state");
/// Elements of the scores of all members that a block keeps, and of one.
const KEPT: i64 = 16_384;
const PIECE: i64 = 2048;
/// Elements of a block of 32 bytes of F32.
const BLOCK: i64 = 8;

tiling! {
    struct CompressTiling: 120 {
        rows: i64, columns: i64, requests: i64, slots: i64, latent_stride: i64, score_stride: i64, slot_stride: i64,
        place_stride: i64, latent_part: i64, ring: i64, groups: i64, ratio: i64, piece: i64, out_stride: i64,
        out_format: i32, reserved: i32,
    }
}

fn compress_and_update_state(cx: &Cx<'_>, a: CompressAndUpdateStateArgs<'_>) -> Result<(), Fault> {
    const OP: &str = "compress_and_update_state";
    let (ratio, ring) = (i64::from(a.ratio), a.dims.s);
    if ratio < 2 || a.ratio as usize > ring {
        return Err(Fault::invalid(format!("{OP}: ratio is {ratio}, but must be at least 2 and at most S = {ring}")));
    }
    // The more members, the shorter a piece of each.
    let piece = (KEPT / ratio / BLOCK * BLOCK).min(PIECE);
    if piece == 0 {
        let most = KEPT / BLOCK;
        return Err(Fault::unsupported(format!("{OP}: groups of {ratio} tokens; the kernel takes at most {most}")));
    }
    let (latent, score, state, out) = (a.latent.view()?, a.score.view()?, a.state.view()?, a.out.view()?);
    let (positions, request_start, state_slot) = (a.positions.view()?, a.request_start.view()?, a.state_slot.view()?);
    let (group_row, row_request, stream) = (a.group_row.view()?, a.row_request.view()?, stream(cx)?);
    let (groups, columns, requests) = (group_row.columns(), latent.columns(), state_slot.columns());
    let tiling = CompressTiling {
        rows: latent.rows(),
        columns,
        requests,
        slots: state.shape[0],
        latent_stride: latent.strides[2],
        score_stride: score.strides[2],
        slot_stride: state.strides[0],
        place_stride: state.strides[1],
        latent_part: state.strides[2],
        ring: state.shape[1],
        groups,
        ratio,
        piece,
        out_stride: out.strides[2],
        out_format: out.format,
        reserved: 0,
    };
    // Without channels a group can still be wrong.
    let pieces = columns.unsigned_abs().div_ceil(piece.unsigned_abs()).max(1) as i64;
    launch!(
        stream,
        COMPRESS,
        blocks(stream, groups.saturating_mul(pieces)),
        [
            latent.data,
            score.data,
            state.data,
            group_row.data,
            positions.data,
            row_request.data,
            request_start.data,
            state_slot.data,
            out.data,
            stream.fault_word(),
        ],
        tiling
    )?;
    launch!(
        stream,
        UPDATE_STATE,
        blocks(stream, requests + 1),
        [latent.data, score.data, state.data, positions.data, request_start.data, state_slot.data, stream.fault_word(),],
        tiling
    )
}
