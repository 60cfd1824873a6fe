//! `hc_mix`: the mixing coefficients of a hyper-connection.

use deepinfer_plugin_api::generated::HcMixArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, stream, tiling};

deepinfer_plugin_api::kernel!(HcMix, hc_mix, flags = PROMISES);

static HC_MIX: Function = Function::new(&images::HC_MIX, c"hc_mix");
/// Rows of a batch, of which a block has some.
const ROWS: u64 = 8;
/// The matrices of a batch fit the unified buffer with what is computed beside them.
const MOST_COPIES: u32 = 24;

tiling! {
    struct HcMixTiling: 64 {
        rows: i64, mix_stride: i64, pre_stride: i64, post_stride: i64, comb_stride: i64, comb_copy_stride: i64,
        copies: u32, iters: u32, eps: f32, reserved: i32,
    }
}

fn hc_mix(cx: &Cx<'_>, a: HcMixArgs<'_>) -> Result<(), Fault> {
    for (name, value) in [("copies", a.copies), ("iters", a.iters)] {
        if value == 0 {
            return Err(Fault::invalid(format!("hc_mix: {name} is 0, but must be at least 1")));
        }
    }
    let (mix, rstd, base, scale) = (a.mix.view()?, a.rstd.view()?, a.base.view()?, a.scale.view()?);
    let (pre, post, comb, stream) = (a.pre.view()?, a.post.view()?, a.comb.view()?, stream(cx)?);
    let rows = mix.rows();
    if rows == 0 {
        return Ok(());
    }
    if a.copies > MOST_COPIES {
        return Err(Fault::unsupported(format!(
            "hc_mix: a stream of {} copies; the kernel takes at most {MOST_COPIES}",
            a.copies
        )));
    }
    let tiling = HcMixTiling {
        rows,
        mix_stride: mix.strides[2],
        pre_stride: pre.strides[2],
        post_stride: post.strides[2],
        comb_stride: comb.strides[1],
        comb_copy_stride: comb.strides[2],
        copies: a.copies,
        iters: a.iters,
        eps: a.eps,
        reserved: 0,
    };
    let blocks = blocks(stream, rows.unsigned_abs().div_ceil(ROWS) as i64);
    launch!(
        stream,
        HC_MIX,
        blocks,
        [mix.data, rstd.data, base.data, scale.data, pre.data, post.data, comb.data],
        tiling
    )
}
