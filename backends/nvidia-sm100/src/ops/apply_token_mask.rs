//! `apply_token_mask`: -infinity where a bit mask has no bit.

use deepinfer_plugin_api::generated::ApplyTokenMaskArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(ApplyTokenMask, apply_token_mask, flags = super::FLAGS);

static APPLY_TOKEN_MASK: Function = Function::new(&images::APPLY_TOKEN_MASK, c"apply_token_mask");
const THREADS: u32 = 256;
/// Tokens that a block takes.
const TOKENS: i64 = 64 * THREADS as i64;

fn apply_token_mask(cx: &Cx<'_>, a: ApplyTokenMaskArgs<'_>) -> Result<(), Fault> {
    let (logits, mask_index, masks) = (a.logits.view()?, a.mask_index.view()?, a.masks.view()?);
    // Without columns an index can still be wrong: every row has a block.
    let pieces = ((logits.columns() + TOKENS - 1) / TOKENS).max(1);
    let grid = Grid::of_items(logits.shape[2] * pieces * i64::from(THREADS), THREADS)?;
    launch!(stream(cx)?, APPLY_TOKEN_MASK, grid, logits, mask_index, masks, pieces as u32)
}
