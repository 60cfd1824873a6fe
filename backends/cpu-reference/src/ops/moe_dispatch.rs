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
    let sorted = sort(&a)?;
    let (experts, weights) = (a.experts.rows::<i32>()?, a.weights.rows::<f32>()?);
    let (row_weight, expert_start) = (a.row_weight.slice_mut::<f32>()?, a.expert_start.slice_mut::<i32>()?);
    let row_of = a.row_of.rows_mut::<i32>()?;
    match a.x.format() {
        Some(Format::F32) => copy(&a.x.rows::<f32>()?, a.out.rows_mut()?, &sorted.source),
        Some(Format::Bf16) => copy(&a.x.rows::<Bf16>()?, a.out.rows_mut()?, &sorted.source),
        _ => {
            let (x_codes, x_scales) = (a.x.codes()?, a.x.scales()?);
            let (codes, scales) = a.out.quantized_rows_mut()?;
            copy(&x_codes, codes, &sorted.source);
            copy(&x_scales, scales, &sorted.source);
        }
    }

    expert_start.iter_mut().zip(&sorted.start).for_each(|(out, &m)| *out = m as i32);
    // Weights beyond the pairs are 0.
    row_weight.fill(0.0);
    let mut next = sorted.start;
    for (t, row_of) in row_of.into_iter().enumerate() {
        for ((row_of, &expert), &weight) in row_of.iter_mut().zip(experts.row(t)).zip(weights.row(t)) {
            *row_of = match usize::try_from(expert) {
                Ok(expert) => {
                    let m = next[expert];
                    next[expert] += 1;
                    row_weight[m] = weight;
                    m as i32
                }
                Err(_) => -1,
            };
        }
    }
    Ok(())
}

/// The order of `out`.
struct Sorted {
    /// First row of each expert, then the number of pairs.
    start: Vec<usize>,
    /// Row of `x` for each row.
    source: Vec<usize>,
}

fn sort(a: &MoeDispatchArgs<'_>) -> Result<Sorted, Fault> {
    let experts = a.experts.rows::<i32>()?;
    let mut start = vec![0; a.dims.e + 1];
    for t in 0..a.dims.t {
        for (j, &expert) in experts.row(t).iter().enumerate().filter(|(_, expert)| **expert >= 0) {
            start[index("moe_dispatch", "experts", &[t, j], expert, a.dims.e)? + 1] += 1;
        }
    }
    for e in 0..a.dims.e {
        start[e + 1] += start[e];
    }
    let mut source = vec![0; start[a.dims.e]];
    let mut next = start.clone();
    for t in 0..a.dims.t {
        for expert in experts.row(t).iter().filter_map(|&expert| usize::try_from(expert).ok()) {
            source[next[expert]] = t;
            next[expert] += 1;
        }
    }
    Ok(Sorted { start, source })
}

fn copy<T: Element>(x: &Rows<'_, T>, mut out: Vec<&mut [T]>, source: &[usize]) {
    out.truncate(source.len());
    parallel::for_each_row(out, x.columns() / 8, |m, out| out.copy_from_slice(x.row(source[m])));
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::generated::MoeDispatch;

    use super::*;
    use crate::random;
    use crate::testing::{Tensor, call};

    struct Dispatched {
        out: Tensor,
        row_weight: Vec<f32>,
        expert_start: Vec<i32>,
        row_of: Vec<i32>,
    }

    fn run(x: &Tensor, format: Format, n: usize, experts: &[[i32; 2]], e: usize) -> Result<Dispatched, String> {
        let t = experts.len();
        let weights: Vec<f32> = (0..2 * t).map(|i| i as f32 + 0.5).collect();
        let (experts, weights) = (Tensor::i32(&[t, 2], experts.as_flattened()), Tensor::f32(&[t, 2], &weights));
        let mut out = Tensor::unwritten(format, &[2 * t, n]);
        let mut row_weight = Tensor::unwritten(Format::F32, &[2 * t]);
        let mut expert_start = Tensor::unwritten(Format::I32, &[e + 1]);
        let mut row_of = Tensor::unwritten(Format::I32, &[t, 2]);
        call::<MoeDispatch>(|a| {
            (a.x, a.experts, a.weights) = (x.input(), experts.input(), weights.input());
            (a.out, a.row_weight) = (out.output(), row_weight.output());
            (a.expert_start, a.row_of) = (expert_start.output(), row_of.output());
        })?;
        let (row_weight, expert_start, row_of) = (row_weight.floats(), expert_start.ints(), row_of.ints());
        Ok(Dispatched { out, row_weight, expert_start, row_of })
    }

    #[test]
    fn pairs_are_sorted_by_expert_then_row_then_place() {
        let x = Tensor::f32(&[3, 1], &[10.0, 20.0, 30.0]);
        let sorted = run(&x, Format::F32, 1, &[[2, 0], [0, -1], [2, 2]], 4).unwrap();
        assert_eq!(sorted.expert_start, [0, 2, 2, 5, 5]);
        assert_eq!(sorted.row_of, [2, 0, 1, -1, 3, 4]);
        assert_eq!(sorted.row_weight, [1.5, 2.5, 0.5, 4.5, 5.5, 0.0]);
        let out = sorted.out.floats();
        assert_eq!(out[..5], [10.0, 20.0, 10.0, 30.0, 30.0]);
        // Not written: what the test had put there.
        assert_eq!(out[5].to_bits(), u32::MAX);
    }

    #[test]
    fn every_format_is_copied_bit_by_bit() {
        let (values, picks) = (random::floats(41, 40 * 64), random::indices(42, 80, 6));
        let experts: Vec<[i32; 2]> = picks.as_chunks().0.to_vec();
        for format in [Format::F32, Format::Bf16, Format::Fp8Row32] {
            let x = Tensor::floating(format, &[40, 64], &values);
            let sorted = run(&x, format, 64, &experts, 6).unwrap();
            let (x, out) = (x.floats(), sorted.out.floats());
            for (i, &m) in sorted.row_of.iter().enumerate() {
                assert_eq!(out[m as usize * 64..][..64], x[i / 2 * 64..][..64]);
                let range = sorted.expert_start[picks[i] as usize]..sorted.expert_start[picks[i] as usize + 1];
                assert!(range.contains(&m));
            }
        }
    }

    #[test]
    fn refusals_and_nothing() {
        let x = Tensor::f32(&[1, 1], &[1.0]);
        assert!(run(&x, Format::F32, 1, &[[0, 4]], 4).err().unwrap().contains("experts[0, 1] is 4"));
        assert_eq!(run(&Tensor::f32(&[0, 1], &[]), Format::F32, 1, &[], 2).unwrap().expert_start, [0; 3]);
    }
}
