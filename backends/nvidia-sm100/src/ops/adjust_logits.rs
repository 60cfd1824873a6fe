//! `adjust_logits`: biases, then penalties for tokens that have occurred.

use deepinfer_plugin_api::generated::AdjustLogitsArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(AdjustLogits, adjust_logits, flags = super::FLAGS);

static ADJUST_LOGITS: Function = Function::new(&images::ADJUST_LOGITS, c"adjust_logits");
const THREADS: u32 = 512;

fn adjust_logits(cx: &Cx<'_>, a: AdjustLogitsArgs<'_>) -> Result<(), Fault> {
    let logits = a.logits.view()?;
    let grid = Grid::of_items(logits.shape[2] * i64::from(THREADS), THREADS)?;
    launch!(
        stream(cx)?,
        ADJUST_LOGITS,
        grid,
        logits,
        a.bias_range.view()?,
        a.bias_token.view()?,
        a.bias_value.view()?,
        a.repetition.view()?,
        a.inv_repetition.view()?,
        a.frequency.view()?,
        a.presence.view()?,
        a.seen_range.view()?,
        a.seen_token.view()?,
        a.seen_count.view()?,
    )
}
