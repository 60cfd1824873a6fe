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
        let mut turned = vec![0.0; 2 * r];
        for head in heads {
            let tail = &mut head[d - 2 * r..];
            for (([a, b], pair), &(sin, cos)) in
                turned.as_chunks_mut::<2>().0.iter_mut().zip(tail.as_chunks::<2>().0).zip(&turns)
            {
                let [x, y] = pair.map(T::widen);
                (*a, *b) = (x * cos - y * sin, x * sin + y * cos);
            }
            T::round_row(&turned, tail);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::generated::Rope;

    use crate::golden::Golden;
    use crate::random;
    use crate::testing::{Tensor, call};

    fn run(x: &mut Tensor, positions: &[i32], freqs: &[f32], inverse: u32) -> Result<Vec<f32>, String> {
        let (t, r) = (positions.len(), freqs.len());
        let (positions, freqs) = (Tensor::i32(&[t], positions), Tensor::f32(&[r], freqs));
        call::<Rope>(|a| {
            (a.x, a.positions, a.freqs, a.inverse) = (x.output(), positions.input(), freqs.input(), inverse);
        })?;
        Ok(x.floats())
    }

    #[test]
    fn golden() {
        let file = Golden::open("rope");
        let positions = file.small("positions");
        for part in ["window", "compressed"] {
            let freqs = file.f32(&format!("freqs_{part}"));
            let (out, back) = (format!("{part}.out"), format!("{part}.inverse_of_out"));
            for (input, golden, inverse) in [("x", &out, 0), (&out, &back, 1)] {
                let ours = run(&mut Tensor::f32(&[11, 2, 96], &file.f32(input)), &positions, &freqs, inverse).unwrap();
                for (i, (ours, golden)) in ours.iter().zip(file.f32(golden)).enumerate() {
                    let bound = if positions[i / (2 * 96)] < 5000 { 2e-6 } else { 1e-5 };
                    assert!((ours - golden).abs() <= bound, "{part}, inverse {inverse}, element {i}");
                }
            }
        }
    }

    /// The angle is an F32 product: in F64 it would be off by several radians' worth of rounding here.
    #[test]
    fn the_angle_is_rounded_to_f32() {
        let (position, freq) = (1_048_575, 0.777_777_8f32);
        let angle = f64::from(position as f32 * freq);
        let out = run(&mut Tensor::f32(&[1, 1, 2], &[1.0, 0.0]), &[position], &[freq], 0).unwrap();
        assert_eq!(out, [libm::cos(angle) as f32, libm::sin(angle) as f32]);
    }

    #[test]
    fn only_the_last_channels_turn_and_rows_are_independent() {
        let (values, freqs) = (random::floats(5, 200 * 3 * 12), random::floats(6, 4));
        let positions: Vec<i32> = (0..200).map(|t| t * 37).collect();
        let together = run(&mut Tensor::f32(&[200, 3, 12], &values), &positions, &freqs, 0).unwrap();
        for (t, (before, after)) in values.chunks(36).zip(together.chunks(36)).enumerate() {
            assert!((0..36).filter(|i| i % 12 < 4).all(|i| before[i] == after[i]));
            let alone = run(&mut Tensor::f32(&[1, 3, 12], before), &positions[t..=t], &freqs, 0).unwrap();
            assert_eq!(alone, after);
        }
        let mut narrow = Tensor::bf16(&[200, 3, 12], &values);
        let wide = run(&mut Tensor::f32(&[200, 3, 12], &narrow.floats()), &positions, &freqs, 1).unwrap();
        let narrow = run(&mut narrow, &positions, &freqs, 1).unwrap();
        assert_eq!(narrow, Tensor::bf16(&[200, 3, 12], &wide).floats());
    }

    #[test]
    fn refusals_and_nothing() {
        let x = || Tensor::f32(&[1, 1, 4], &[1.0; 4]);
        assert!(run(&mut x(), &[0], &[1.0; 3], 0).unwrap_err().contains("3 freqs rotate 6 channels, but x has 4"));
        assert!(run(&mut x(), &[0], &[1.0; 2], 2).unwrap_err().contains("inverse is 2, but must be 0 or 1"));
        assert!(run(&mut Tensor::f32(&[0, 1, 4], &[]), &[], &[1.0], 0).unwrap().is_empty());
        assert_eq!(run(&mut x(), &[5], &[], 0).unwrap(), [1.0; 4]);
    }
}
