//! `fused_sample`: one token per row.

use deepinfer_numerics::{fixed_exp, fixed_log};
use deepinfer_plugin_api::generated::FusedSampleArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, optional, stream, tiling};

deepinfer_plugin_api::kernel!(FusedSample, fused_sample, flags = PROMISES);

static FUSED_SAMPLE: Function = Function::new(&images::FUSED_SAMPLE, c"fused_sample");
/// Most columns over which weights are summed without overflow.
const TOP_P_VOCABULARY: i64 = 1 << 17;
/// Places of the optional arguments in the catalogue.
const CHILD: u32 = 5;
const MIN_P_LOG: u32 = 6;
const TOP_K: u32 = 7;
const TOP_P: u32 = 8;

tiling! {
    /// Behind the numbers the tables of the fixed-point functions, which a kernel has no other place for.
    struct FusedSampleTiling: 2080 {
        rows: i64, columns: i64, logit_stride: i64, given: u32, reserved: u32, logarithms: [u64; 128], powers: [u32; 256],
    }
}

fn fused_sample(cx: &Cx<'_>, a: FusedSampleArgs<'_>) -> Result<(), Fault> {
    let (logits, stream) = (a.logits.view()?, stream(cx)?);
    let columns = logits.columns();
    if columns > i64::from(i32::MAX) {
        return Err(Fault::invalid(format!("logits has {columns} columns, more than an I32 token can name")));
    }
    if a.top_p.is_some() && columns > TOP_P_VOCABULARY {
        return Err(Fault::invalid(format!(
            "top_p is given with {columns} columns of logits, but sums at most {TOP_P_VOCABULARY} weights"
        )));
    }
    let [child, min_p_log] = [optional(&a.child)?, optional(&a.min_p_log)?];
    let [top_k, top_p] = [optional(&a.top_k)?, optional(&a.top_p)?];
    let bit = |is_given: bool, place: u32| u32::from(is_given) << place;
    let tiling = FusedSampleTiling {
        rows: logits.rows(),
        columns,
        logit_stride: logits.strides[2],
        given: bit(a.child.is_some(), CHILD)
            | bit(a.min_p_log.is_some(), MIN_P_LOG)
            | bit(a.top_k.is_some(), TOP_K)
            | bit(a.top_p.is_some(), TOP_P),
        reserved: 0,
        logarithms: fixed_log::table(),
        powers: fixed_exp::table(),
    };
    launch!(
        stream,
        FUSED_SAMPLE,
        blocks(stream, tiling.rows),
        [
            logits.data,
            a.inv_temperature.view()?.data,
            a.seed.view()?.data,
            a.position.view()?.data,
            a.token.view()?.data,
            child.data,
            min_p_log.data,
            top_k.data,
            top_p.data,
            stream.fault_word(),
        ],
        tiling
    )
}
