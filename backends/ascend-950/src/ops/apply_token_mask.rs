//! `apply_token_mask`: -infinity where a bit mask has no bit, in place.

use deepinfer_plugin_api::generated::ApplyTokenMaskArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(ApplyTokenMask, apply_token_mask, flags = PROMISES);

static APPLY_TOKEN_MASK: Function = Function::new(&images::APPLY_TOKEN_MASK, c"apply_token_mask");
/// Tokens that a block takes at a time.
const PIECE: u64 = 8192;

tiling! {
    struct ApplyTokenMaskTiling: 40 { rows: i64, columns: i64, logit_stride: i64, masks: i64, mask_stride: i64 }
}

fn apply_token_mask(cx: &Cx<'_>, a: ApplyTokenMaskArgs<'_>) -> Result<(), Fault> {
    let (logits, mask_index, masks, stream) = (a.logits.view()?, a.mask_index.view()?, a.masks.view()?, stream(cx)?);
    let (rows, columns, logit_stride, mask_stride) =
        (logits.rows(), logits.columns(), logits.strides[2], masks.strides[2]);
    let tiling = ApplyTokenMaskTiling { rows, columns, logit_stride, masks: masks.rows(), mask_stride };
    // Without columns an index can still be wrong: every row has a piece.
    let pieces = columns.unsigned_abs().div_ceil(PIECE).max(1) as i64;
    let blocks = blocks(stream, rows.saturating_mul(pieces));
    launch!(stream, APPLY_TOKEN_MASK, blocks, [logits.data, mask_index.data, masks.data, stream.fault_word()], tiling)
}
