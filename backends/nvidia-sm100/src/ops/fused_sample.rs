//! `fused_sample`: one token per row.

use deepinfer_plugin_api::generated::FusedSampleArgs;
use deepinfer_plugin_api::sdk::tensor::{In, View};
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(FusedSample, fused_sample, flags = super::FLAGS);

static FUSED_SAMPLE: Function = Function::new(&images::FUSED_SAMPLE, c"fused_sample");
const THREADS: u32 = 512;
/// Most columns over which weights are summed without overflow.
const TOP_P_VOCABULARY: i64 = 1 << 17;

fn fused_sample(cx: &Cx<'_>, a: FusedSampleArgs<'_>) -> Result<(), Fault> {
    let logits = a.logits.view()?;
    let columns = logits.columns();
    if columns > i64::from(i32::MAX) {
        return Err(Fault::invalid(format!("logits has {columns} columns, more than an I32 token can name")));
    }
    if a.top_p.is_some() && columns > TOP_P_VOCABULARY {
        return Err(Fault::invalid(format!(
            "top_p is given with {columns} columns of logits, but sums at most {TOP_P_VOCABULARY} weights"
        )));
    }
    let optional = |x: &Option<In<'_>>| x.as_ref().map_or(Ok(View::ABSENT), In::view);
    launch!(
        stream(cx)?,
        FUSED_SAMPLE,
        Grid::of_items(logits.shape[2] * i64::from(THREADS), THREADS)?,
        logits,
        a.inv_temperature.view()?,
        a.seed.view()?,
        a.position.view()?,
        a.token.view()?,
        optional(&a.child)?,
        optional(&a.min_p_log)?,
        optional(&a.top_k)?,
        optional(&a.top_p)?,
    )
}
