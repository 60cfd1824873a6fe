//! `rope`: rotates the pairs of the last channels of every vector.
//!
//! The angle is one F32 product. Its sine and cosine are f64, not rounded on their own; the two products and their sum
//! are f64 and rounded once to F32 (then to BF16 when `x` is).

use deepinfer_plugin_api::generated::RopeArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::arguments::switch;
use crate::float::{Float, by_float};
use crate::parallel;

deepinfer_plugin_api::kernel!(Rope, rope);

fn rope(_: &Cx<'_>, mut a: RopeArgs<'_>) -> Result<(), Fault> {
    by_float!(a.x, rotate(&mut a))
}

fn rotate<T: Float>(a: &mut RopeArgs<'_>) -> Result<(), Fault> {
    let inverse = switch("rope", "inverse", a.inverse)?;
    let (d, r) = (a.dims.d, a.dims.r);
    if 2 * r > d {
        return Err(Fault::invalid(format!("rope: {r} freqs rotate {} channels, but x has {d}", 2 * r)));
    }
    if a.dims.t == 0 || a.dims.h == 0 {
        return Ok(());
    }
    let (positions, freqs) = (a.positions.slice::<i32>()?, a.freqs.slice::<f32>()?);
    let mut heads = a.x.rows_mut::<T>()?;
    let tokens: Vec<_> = heads.chunks_mut(a.dims.h).collect();
    parallel::for_each_row(tokens, 40 * r + 4 * r * a.dims.h, |t, heads| {
        let position = positions[t] as f32;
        let turns: Vec<(f64, f64)> = freqs
            .iter()
            .map(|&freq| {
                let (sin, cos) = libm::sincos(f64::from(position * freq));
                (if inverse { -sin } else { sin }, cos)
            })
            .collect();
        for head in heads {
            for ([a, b], &(sin, cos)) in head[d - 2 * r..].as_chunks_mut::<2>().0.iter_mut().zip(&turns) {
                let (x, y) = (a.widen(), b.widen());
                *a = T::round(x * cos - y * sin);
                *b = T::round(x * sin + y * cos);
            }
        }
    });
    Ok(())
}
