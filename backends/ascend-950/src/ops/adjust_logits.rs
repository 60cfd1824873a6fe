//! `adjust_logits`: biases, then penalties for tokens that have occurred.

use deepinfer_plugin_api::generated::AdjustLogitsArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(AdjustLogits, adjust_logits, flags = PROMISES);

static ADJUST_LOGITS: Function = Function::new(&images::ADJUST_LOGITS, c"adjust_logits");

tiling! {
    struct AdjustLogitsTiling: 56 {
        rows: i64, columns: i64, logit_stride: i64, bias_range_stride: i64, biases: i64, seen_range_stride: i64, seen: i64,
    }
}

fn adjust_logits(cx: &Cx<'_>, a: AdjustLogitsArgs<'_>) -> Result<(), Fault> {
    let (logits, stream) = (a.logits.view()?, stream(cx)?);
    let (bias_range, bias_token, bias_value) = (a.bias_range.view()?, a.bias_token.view()?, a.bias_value.view()?);
    let (seen_range, seen_token, seen_count) = (a.seen_range.view()?, a.seen_token.view()?, a.seen_count.view()?);
    let tiling = AdjustLogitsTiling {
        rows: logits.rows(),
        columns: logits.columns(),
        logit_stride: logits.strides[2],
        bias_range_stride: bias_range.strides[2],
        biases: bias_token.columns(),
        seen_range_stride: seen_range.strides[2],
        seen: seen_token.columns(),
    };
    launch!(
        stream,
        ADJUST_LOGITS,
        blocks(stream, tiling.rows),
        [
            logits.data,
            bias_range.data,
            bias_token.data,
            bias_value.data,
            a.repetition.view()?.data,
            a.inv_repetition.view()?.data,
            a.frequency.view()?.data,
            a.presence.view()?.data,
            seen_range.data,
            seen_token.data,
            seen_count.data,
            stream.fault_word(),
        ],
        tiling
    )
}
