//! `moe_combine`: the expert outputs of each row and the shared expert's, added in F32: from +0, the rows of `y` in
//! ascending order, the shared output last.

use deepinfer_plugin_api::generated::MoeCombineArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::arguments::index;
use crate::float::{Float, by_float};
use crate::parallel;

deepinfer_plugin_api::kernel!(MoeCombine, moe_combine);

fn moe_combine(_: &Cx<'_>, mut a: MoeCombineArgs<'_>) -> Result<(), Fault> {
    by_float!(a.y, combine(&mut a))
}

fn combine<T: Float>(a: &mut MoeCombineArgs<'_>) -> Result<(), Fault> {
    let (y, row_of) = (a.y.rows::<T>()?, a.row_of.rows::<i32>()?);
    let shared = a.shared.map(|shared| shared.rows::<T>()).transpose()?;
    for t in 0..a.dims.t {
        for (j, &m) in row_of.row(t).iter().enumerate().filter(|(_, m)| **m >= 0) {
            index("moe_combine", "row_of", &[t, j], m, a.dims.m)?;
        }
    }
    let cost_ns = (a.dims.k + 2) * a.dims.n / 4;
    let scratch = || (Vec::new(), Vec::new(), vec![0.0; a.dims.n]);
    parallel::for_each_row_with(a.out.rows_mut::<T>()?, cost_ns, scratch, |(order, decoded, sums), t, out| {
        order.clear();
        order.extend(row_of.row(t).iter().filter_map(|&m| usize::try_from(m).ok()));
        order.sort_unstable();
        sums.fill(0.0f32);
        for terms in order.iter().map(|&m| y.row(m)).chain(shared.map(|shared| shared.row(t))) {
            sums.iter_mut().zip(T::load(terms, decoded)).for_each(|(sum, term)| *sum += term);
        }
        T::store_row(sums, out);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::generated::{GroupedLinear, Linear, MoeCombine, MoeDispatch, Quantize, SwigluQuantize};

    use crate::golden::{Golden, assert_close};
    use crate::testing::{Tensor, call};

    fn run(
        y: &Tensor,
        row_of: &Tensor,
        shared: Option<&Tensor>,
        format: Format,
        shape: &[usize],
    ) -> Result<Tensor, String> {
        let mut out = Tensor::unwritten(format, shape);
        call::<MoeCombine>(|a| {
            (a.y, a.row_of, a.out) = (y.input(), row_of.input(), out.output());
            if let Some(shared) = shared {
                a.shared = shared.input();
            }
        })?;
        Ok(out)
    }

    /// 2^24 + 1 is no F32 value: whether the ones are added before or after shows in the sum.
    #[test]
    fn the_order_is_that_of_the_rows() {
        let big = 16_777_216.0;
        let y = Tensor::f32(&[4, 1], &[1.0, 1.0, big, -big]);
        let shared = Tensor::f32(&[1, 1], &[1.0]);
        let sum = |row_of: &[i32], shared: Option<&Tensor>| {
            run(&y, &Tensor::i32(&[1, 4], row_of), shared, Format::F32, &[1, 1]).unwrap().floats()[0]
        };
        // 1 + 1 + 2^24, whatever the order in which experts were chosen.
        assert_eq!([sum(&[2, 0, 1, -1], None), sum(&[0, 1, 2, -1], None)], [big + 2.0; 2]);
        // The shared output comes last, and is lost.
        assert_eq!(sum(&[2, -1, -1, -1], Some(&shared)), big);
        assert_eq!(sum(&[3, 2, -1, -1], Some(&shared)), 1.0);
        assert_eq!(sum(&[-1; 4], None).to_bits(), 0);
    }

    #[test]
    fn bf16_is_rounded_at_the_end() {
        let y = Tensor::bf16(&[3, 1], &[1.0, 2.0f32.powi(-8), 2.0f32.powi(-8)]);
        let out = run(&y, &Tensor::i32(&[1, 3], &[0, 1, 2]), None, Format::Bf16, &[1, 1]).unwrap();
        assert_eq!(out.floats(), [1.0 + 2.0f32.powi(-7)]);
        let zero = Tensor::f32(&[1, 1], &[-0.0]);
        let out = run(&zero, &Tensor::i32(&[1, 1], &[0]), None, Format::F32, &[1, 1]).unwrap();
        assert_eq!(out.floats()[0].to_bits(), 0, "the sum starts from +0");
    }

    #[test]
    fn refusals_and_nothing() {
        let y = Tensor::f32(&[2, 1], &[1.0; 2]);
        let message = run(&y, &Tensor::i32(&[1, 2], &[0, 2]), None, Format::F32, &[1, 1]).err().unwrap();
        assert!(message.contains("row_of[0, 1] is 2"), "{message}");
        assert!(run(&y, &Tensor::i32(&[0, 2], &[]), None, Format::F32, &[0, 1]).is_ok());
    }

    /// The golden layer: dispatch, experts, combine, with the stored FP4 and FP8 weights.
    #[test]
    fn golden_layer() {
        let file = Golden::open("moe");
        let experts: [Vec<Tensor>; 3] =
            [("w1", [64, 128]), ("w3", [64, 128]), ("w2", [128, 64])].map(|(name, shape)| {
                let part = |e: usize, part: &str| file.u8(&format!("experts.{e}.{name}.{part}"));
                (0..8)
                    .map(|e| Tensor::scaled(Format::Fp4Row32, &shape, &part(e, "weight"), &part(e, "scale")))
                    .collect()
            });
        let shared = [("w1", [64, 128]), ("w3", [64, 128]), ("w2", [128, 64])].map(|(name, shape)| {
            let part = |part: &str| file.u8(&format!("shared_experts.{name}.{part}"));
            Tensor::scaled(Format::Fp8Tile32, &shape, &part("weight"), &part("scale"))
        });
        let x = Tensor::f32(&[12, 128], &file.f32("x"));
        for part in ["text", "image"] {
            let chosen = Tensor::i32(&[12, 2], &file.i32(&format!("{part}.experts")));
            let weights = Tensor::f32(&[12, 2], &file.f32(&format!("{part}.weights")));
            let layer = |rounded| layer(&x, (&chosen, &weights), &experts, &shared, rounded);
            assert_close(&layer(false), &file.f32(&format!("{part}.out_exact")), 1e-5, 0.0);
            assert_close(&layer(true), &file.f32(&format!("{part}.out_act8")), 2e-3, 0.0);
        }
    }

    fn layer(
        x: &Tensor,
        (chosen, weights): (&Tensor, &Tensor),
        experts: &[Vec<Tensor>; 3],
        shared: &[Tensor; 3],
        rounded: bool,
    ) -> Vec<f32> {
        let format = if rounded { Format::Fp8Row32 } else { Format::F32 };
        let mut input = Tensor::f32(&[12, 128], &x.floats());
        if rounded {
            input = Tensor::unwritten(format, &[12, 128]);
            call::<Quantize>(|a| (a.x, a.out) = (x.input(), input.output())).unwrap();
        }
        let mut rows = Tensor::unwritten(format, &[24, 128]);
        let mut row_weight = Tensor::unwritten(Format::F32, &[24]);
        let mut start = Tensor::unwritten(Format::I32, &[9]);
        let mut row_of = Tensor::unwritten(Format::I32, &[12, 2]);
        call::<MoeDispatch>(|a| {
            (a.x, a.experts, a.weights) = (input.input(), chosen.input(), weights.input());
            (a.out, a.row_weight) = (rows.output(), row_weight.output());
            (a.expert_start, a.row_of) = (start.output(), row_of.output());
        })
        .unwrap();
        let grouped = |x: &Tensor, weight: &[Tensor], columns: usize| {
            let list: Vec<_> = weight.iter().map(Tensor::input).collect();
            let mut out = Tensor::unwritten(Format::F32, &[24, columns]);
            call::<GroupedLinear>(|a| {
                (a.x, a.expert_start, a.out) = (x.input(), start.input(), out.output());
                (a.weight.ptr, a.weight.len) = (list.as_ptr(), list.len() as u64);
            })
            .unwrap();
            out
        };
        let plain = |x: &Tensor, weight: &Tensor, columns: usize| {
            let mut out = Tensor::unwritten(Format::F32, &[12, columns]);
            call::<Linear>(|a| (a.x, a.weight, a.groups, a.out) = (x.input(), weight.input(), 1, out.output()))
                .unwrap();
            out
        };
        let activate = |gate: &Tensor, up: &Tensor, weight: Option<&Tensor>, rows: usize| {
            let mut out = Tensor::unwritten(format, &[rows, 64]);
            call::<SwigluQuantize>(|a| {
                (a.gate, a.up, a.limit, a.out) = (gate.input(), up.input(), 10.0, out.output());
                if let Some(weight) = weight {
                    a.row_weight = weight.input();
                }
            })
            .unwrap();
            out
        };
        let [w1, w3, w2] = experts;
        let hidden = activate(&grouped(&rows, w1, 64), &grouped(&rows, w3, 64), Some(&row_weight), 24);
        let y = grouped(&hidden, w2, 128);
        let [w1, w3, w2] = shared;
        let hidden = activate(&plain(&input, w1, 64), &plain(&input, w3, 64), None, 12);
        let shared = plain(&hidden, w2, 128);
        run(&y, &row_of, Some(&shared), Format::F32, &[12, 128]).unwrap().floats()
    }
}
