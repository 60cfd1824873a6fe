//! `engram_gate`: the gated n-gram value added to every copy of the stream, in place.
//!
//! Everything is f64 with the sums of [`sum`](crate::sum); the new stream is rounded once.

use deepinfer_plugin_api::generated::EngramGateArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::float::{Float, by_float};
use crate::scalar::{inverse_root_mean, sigmoid};
use crate::{parallel, sum};

deepinfer_plugin_api::kernel!(EngramGate, engram_gate);

fn engram_gate(_: &Cx<'_>, mut a: EngramGateArgs<'_>) -> Result<(), Fault> {
    by_float!(a.x, add_gated(&mut a))
}

fn add_gated<T: Float>(a: &mut EngramGateArgs<'_>) -> Result<(), Fault> {
    let (copies, d, eps) = (a.dims.c, a.dims.d, a.eps);
    if copies == 0 || d == 0 {
        return Ok(());
    }
    let kv = a.kv.rows::<T>()?;
    let image_mask = a.image_mask.map(|mask| mask.slice::<u8>()).transpose()?;
    let (q_weight, k_weight) = (a.q_weight.floats()?, a.k_weight.floats()?);
    let (mut q_row, mut k_row) = (Vec::new(), Vec::new());
    let mut gains = Vec::with_capacity(copies * d);
    for i in 0..copies {
        let gain = q_weight.load(i, &mut q_row).iter().zip(k_weight.load(i, &mut k_row));
        // A product of two F32 values is exact in f64.
        gains.extend(gain.map(|(&q, &k)| f64::from(q) * f64::from(k)));
    }

    let mut x = a.x.rows_mut::<T>()?;
    let tokens: Vec<_> = x.chunks_mut(copies).collect();
    let scratch = || (Vec::new(), Vec::new(), Vec::new());
    parallel::for_each_row_with(tokens, 2 * copies * d, scratch, |(x_row, kv_row, gated), t, x| {
        let (keys, value) = T::load(kv.row(t), kv_row).split_at(copies * d);
        let is_image = image_mask.is_some_and(|mask| mask[t] != 0);
        for ((x, key), gain) in x.iter_mut().zip(keys.chunks_exact(d)).zip(gains.chunks_exact(d)) {
            let stream = T::load(x, x_row);
            let rstd = |row: &[f32]| inverse_root_mean(sum::sum_of_squares(row), d, eps);
            let dot = sum::sum_by(d, |k| f64::from(stream[k]) * gain[k] * f64::from(key[k]));
            let dot = dot * rstd(stream) * rstd(key) / (d as f64).sqrt();
            let gate = if is_image { 0.0 } else { gate(dot) };
            gated.clear();
            gated.extend(stream.iter().zip(value).map(|(&x, &v)| f64::from(x) + gate * f64::from(v)));
            T::round_row(gated, x);
        }
    });
    Ok(())
}

/// `sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot))`; the comparison lets NaN through.
fn gate(dot: f64) -> f64 {
    let magnitude = if dot.abs() < 1e-6 { 1e-6 } else { dot.abs() };
    sigmoid(magnitude.sqrt().copysign(dot))
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::generated::{EngramGate, EngramGather, Linear};

    use super::*;
    use crate::golden::{Golden, assert_close};
    use crate::random;
    use crate::testing::{Tensor, call};

    /// `kv`, `q_weight`, `k_weight` and `image_mask`.
    type Inputs<'a> = (&'a Tensor, &'a Tensor, &'a Tensor, Option<&'a Tensor>);

    fn run(mut x: Tensor, (kv, q_weight, k_weight, mask): Inputs<'_>, eps: f32) -> Vec<f32> {
        call::<EngramGate>(|a| {
            (a.x, a.kv, a.eps) = (x.output(), kv.input(), eps);
            (a.q_weight, a.k_weight) = (q_weight.input(), k_weight.input());
            if let Some(mask) = mask {
                a.image_mask = mask.input();
            }
        })
        .unwrap();
        x.floats()
    }

    /// From the table rows on: lookup, projection and gate of both layers, with and without a mask.
    #[test]
    fn golden() {
        let file = Golden::open("engram");
        let mask: Vec<u8> = file.u8("text_mask").iter().map(|&text| 1 - text).collect();
        let mask = Tensor::u8(&[48], &mask);
        for (layer, slot, table_rows) in [(0, 0, 660), (2, 1, 864)] {
            let weight = |name: &str, shape: &[usize]| Tensor::f32(shape, &file.f32(&format!("layer{layer}.w.{name}")));
            let table = weight("embed.weight", &[table_rows, 32]);
            let projection = weight("wkv.weight", &[640, 192]);
            let (q_weight, k_weight) = (weight("q_weight", &[4, 128]), weight("k_weight", &[4, 128]));
            for (rows, out, mask) in [("rows", "out", None), ("rows_masked", "out_masked", Some(&mask))] {
                let rows = file.i64(rows);
                let rows: Vec<i32> = (0..48 * 6).map(|i| rows[(i / 6 * 2 + slot) * 6 + i % 6] as i32).collect();
                let rows = Tensor::i32(&[48, 6], &rows);
                let mut looked_up = Tensor::unwritten(Format::F32, &[48, 192]);
                call::<EngramGather>(|a| (a.table, a.rows, a.out) = (table.input(), rows.input(), looked_up.output()))
                    .unwrap();
                let mut kv = Tensor::unwritten(Format::F32, &[48, 640]);
                call::<Linear>(|a| {
                    (a.x, a.weight, a.groups, a.out) = (looked_up.input(), projection.input(), 1, kv.output());
                })
                .unwrap();
                let x = Tensor::f32(&[48, 4, 128], &file.f32(&format!("layer{layer}.x")));
                let ours = run(x, (&kv, &q_weight, &k_weight, mask), 1e-20);
                assert_close(&ours, &file.f32(&format!("layer{layer}.{out}")), 1e-5, 0.0);
            }
        }
    }

    #[test]
    fn rows_are_independent_and_bf16_is_rounded_last() {
        let (t, c, d) = (80, 2, 37);
        let weight = |seed| Tensor::bf16(&[c, d], &random::floats(seed, c * d));
        let (q_weight, k_weight) = (weight(61), weight(62));
        let x = Tensor::bf16(&[t, c, d], &random::floats(63, t * c * d));
        let kv = Tensor::bf16(&[t, (c + 1) * d], &random::floats(64, t * (c + 1) * d));
        let (x_values, kv_values) = (x.floats(), kv.floats());
        let mut together = Vec::new();
        for row in 0..t {
            let x = Tensor::f32(&[1, c, d], &x_values[row * c * d..][..c * d]);
            let kv = Tensor::f32(&[1, (c + 1) * d], &kv_values[row * (c + 1) * d..][..(c + 1) * d]);
            together.extend(run(x, (&kv, &q_weight, &k_weight, None), 1e-6));
        }
        let wide_kv = Tensor::f32(&[t, (c + 1) * d], &kv_values).padded(4);
        let wide = run(Tensor::f32(&[t, c, d], &x_values), (&wide_kv, &q_weight, &k_weight, None), 1e-6);
        assert_eq!(wide, together);
        let narrow = run(x, (&kv, &q_weight, &k_weight, None), 1e-6);
        assert_eq!(narrow, Tensor::bf16(&[t, c, d], &wide).floats());
    }

    #[test]
    fn a_nan_stays_in_its_row_and_a_mask_closes_the_gate() {
        let ones = Tensor::f32(&[1, 2], &[1.0; 2]);
        let x = || Tensor::f32(&[3, 1, 2], &[1.0, 2.0, 1.0, f32::NAN, 3.0, 4.0]);
        let kv = Tensor::f32(&[3, 4], &[1.0; 12]);
        let out = run(x(), (&kv, &ones, &ones, Some(&Tensor::u8(&[3], &[0, 0, 7]))), 0.0);
        assert!(out[..2].iter().all(|v| v.is_finite()) && out[0] > 1.0);
        assert!(out[2..4].iter().all(|v| v.is_nan()));
        assert_eq!(out[4..], [3.0, 4.0]);
    }

    #[test]
    fn the_gate_is_never_flat_at_zero() {
        assert_eq!([gate(0.0), gate(1e-9)], [sigmoid(1e-3); 2]);
        assert_eq!(gate(-0.0), sigmoid(-1e-3));
        assert_eq!(gate(-4.0), sigmoid(-2.0));
        assert!(gate(f64::NAN).is_nan());
    }

    #[test]
    fn no_rows() {
        let weight = Tensor::f32(&[2, 3], &[1.0; 6]);
        assert!(
            run(Tensor::f32(&[0, 2, 3], &[]), (&Tensor::f32(&[0, 9], &[]), &weight, &weight, None), 0.0).is_empty()
        );
    }
}
