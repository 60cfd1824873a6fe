//! `moe_dispatch`: rows copied to their experts, by a counting sort that keeps the order of rows.

use deepinfer_plugin_api::generated::MoeDispatchArgs;
use deepinfer_plugin_api::numerics::Bf16;
use deepinfer_plugin_api::sdk::tensor::{Element, Rows};
use deepinfer_plugin_api::sdk::{Cx, Fault};
use deepinfer_plugin_api::{Format, Shaped};

use crate::arguments::index;
use crate::parallel;

deepinfer_plugin_api::kernel!(MoeDispatch, moe_dispatch);

fn moe_dispatch(_: &Cx<'_>, mut a: MoeDispatchArgs<'_>) -> Result<(), Fault> {
    match a.x.format() {
        Some(Format::F32) => {
            let x = a.x.rows::<f32>()?;
            let source = sort(&mut a)?;
            copy(&x, a.out.rows_mut()?, &source);
        }
        Some(Format::Bf16) => {
            let x = a.x.rows::<Bf16>()?;
            let source = sort(&mut a)?;
            copy(&x, a.out.rows_mut()?, &source);
        }
        _ => {
            let (x_codes, x_scales) = (a.x.codes()?, a.x.scales()?);
            let source = sort(&mut a)?;
            let (codes, scales) = a.out.quantized_rows_mut()?;
            copy(&x_codes, codes, &source);
            copy(&x_scales, scales, &source);
        }
    }
    Ok(())
}

/// Writes everything but `out` and returns the row of `x` for each row of `out`. Weights beyond the pairs are 0.
fn sort(a: &mut MoeDispatchArgs<'_>) -> Result<Vec<usize>, Fault> {
    let (experts, weights) = (a.experts.rows::<i32>()?, a.weights.rows::<f32>()?);
    let mut start = vec![0; a.dims.e + 1];
    for t in 0..a.dims.t {
        for (j, &expert) in experts.row(t).iter().enumerate().filter(|(_, expert)| **expert >= 0) {
            start[index("moe_dispatch", "experts", &[t, j], expert, a.dims.e)? + 1] += 1;
        }
    }
    for e in 0..a.dims.e {
        start[e + 1] += start[e];
    }

    let (row_weight, expert_start) = (a.row_weight.slice_mut::<f32>()?, a.expert_start.slice_mut::<i32>()?);
    let row_of = a.row_of.rows_mut::<i32>()?;
    expert_start.iter_mut().zip(&start).for_each(|(out, &m)| *out = m as i32);
    row_weight.fill(0.0);
    let mut source = vec![0; start[a.dims.e]];
    for (t, row_of) in row_of.into_iter().enumerate() {
        for ((row_of, &expert), &weight) in row_of.iter_mut().zip(experts.row(t)).zip(weights.row(t)) {
            *row_of = -1;
            if let Ok(expert) = usize::try_from(expert) {
                let m: usize = start[expert];
                start[expert] += 1;
                *row_of = m as i32;
                source[m] = t;
                row_weight[m] = weight;
            }
        }
    }
    Ok(source)
}

fn copy<T: Element>(x: &Rows<'_, T>, mut out: Vec<&mut [T]>, source: &[usize]) {
    out.truncate(source.len());
    parallel::for_each_row(out, x.columns() / 8, |m, out| out.copy_from_slice(x.row(source[m])));
}
