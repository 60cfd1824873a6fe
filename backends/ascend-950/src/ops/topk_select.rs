//! `topk_select`: the columns of the largest scores, ascending.

use deepinfer_plugin_api::generated::TopkSelectArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(TopkSelect, topk_select, flags = PROMISES);

static TOPK_SELECT: Function = Function::new(&images::TOPK_SELECT, c"topk_select");

tiling! {
    struct TopkSelectTiling: 40 { rows: i64, columns: i64, score_stride: i64, places: i64, out_stride: i64 }
}

fn topk_select(cx: &Cx<'_>, a: TopkSelectArgs<'_>) -> Result<(), Fault> {
    let (scores, out, stream) = (a.scores.view()?, a.out.view()?, stream(cx)?);
    let (columns, places) = (scores.columns(), out.columns());
    if columns > i64::from(i32::MAX) {
        return Err(Fault::invalid(format!("scores has {columns} columns, more than an I32 can name")));
    }
    // Without places there is nothing to write.
    let rows = if places == 0 { 0 } else { out.rows() };
    let tiling =
        TopkSelectTiling { rows, columns, score_stride: scores.strides[2], places, out_stride: out.strides[2] };
    launch!(stream, TOPK_SELECT, blocks(stream, rows), [scores.data, out.data], tiling)
}
