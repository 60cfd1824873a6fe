//! `hc_mix`: the mixing coefficients of a hyper-connection.

use deepinfer_plugin_api::generated::HcMixArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{Grid, launch, stream};

deepinfer_plugin_api::kernel!(HcMix, hc_mix, flags = super::FLAGS);

/// For a stream of four copies.
static FOUR: Function = Function::new(&images::HC_MIX_FOUR, c"hc_mix_four");
/// Rows that a block of it takes, a warp each.
const ROWS: i64 = 4;
/// It takes an `eps` of at least this: no reciprocal of a sum overflows F32 then.
const LEAST_EPS: f32 = 1e-12;
/// For any stream.
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
    let rows = a.mix.view()?.rows();
    if a.copies == 4 && (LEAST_EPS..=1.0).contains(&a.eps) {
        let grid = Grid::of_items((rows + ROWS - 1) / ROWS * ROWS * 32, ROWS as u32 * 32)?;
        return launch!(
            stream(cx)?,
            FOUR,
            grid,
            a.mix.view()?,
            a.rstd.view()?,
            a.base.view()?,
            a.scale.view()?,
            a.pre.view()?,
            a.post.view()?,
            a.comb.view()?,
            a.iters,
            a.eps,
        );
    }
    let mut grid = Grid::of_items(rows * i64::from(THREADS), THREADS)?;
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
