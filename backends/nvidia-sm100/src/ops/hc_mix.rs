//! `hc_mix`: the mixing coefficients of a hyper-connection.

use deepinfer_plugin_api::generated::HcMixArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(HcMix, hc_mix);

static HC_MIX: Function = Function::new(&images::HC_MIX, c"hc_mix");
const THREADS: u32 = 32;
/// The two matrices of a row in F64 fit the shared memory that a block gets without asking.
const MOST_COPIES: u32 = 55;

fn hc_mix(cx: &Cx<'_>, a: HcMixArgs<'_>) -> Result<(), Fault> {
    for (name, value) in [("copies", a.copies), ("iters", a.iters)] {
        if value == 0 {
            return Err(Fault::invalid(format!("hc_mix: {name} is 0, but must be at least 1")));
        }
    }
    let mut grid = Grid::of_items(a.mix.view()?.rows() * i64::from(THREADS), THREADS)?;
    if grid.blocks.0 == 0 {
        return Ok(());
    }
    if a.copies > MOST_COPIES {
        return Err(Fault::unsupported(format!(
            "hc_mix: a stream of {} copies; the kernel takes at most {MOST_COPIES}",
            a.copies
        )));
    }
    grid.shared_bytes = 2 * 8 * a.copies * a.copies;
    launch!(
        stream(cx)?,
        HC_MIX,
        grid,
        a.mix.view()?,
        a.rstd.view()?,
        a.base.view()?,
        a.scale.view()?,
        a.pre.view()?,
        a.post.view()?,
        a.comb.view()?,
        a.copies,
        a.iters,
        a.eps,
    )
}
