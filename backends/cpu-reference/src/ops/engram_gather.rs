//! `engram_gather`: table rows side by side. Each value is one F32 product, then rounded to BF16 when `out` is.

use deepinfer_plugin_api::generated::EngramGatherArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::float::{Float, by_float};
use crate::parallel;

deepinfer_plugin_api::kernel!(EngramGather, engram_gather);

fn engram_gather(_: &Cx<'_>, mut a: EngramGatherArgs<'_>) -> Result<(), Fault> {
    by_float!(a.out, look_up(&mut a))
}

fn look_up<T: Float>(a: &mut EngramGatherArgs<'_>) -> Result<(), Fault> {
    let (table, rows) = (a.table.floats()?, a.rows.rows::<i32>()?);
    let columns = a.dims.c;
    if columns == 0 {
        return Ok(());
    }
    parallel::for_each_row_with(a.out.rows_mut::<T>()?, a.dims.j * columns, Vec::new, |scratch, t, out| {
        for (out, &row) in out.chunks_exact_mut(columns).zip(rows.row(t)) {
            match usize::try_from(row).ok().filter(|&row| row < a.dims.n) {
                Some(row) => T::store_row(table.load(row, scratch), out),
                None => out.fill(T::from_f32(0.0)),
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::generated::EngramGather;

    use crate::random;
    use crate::testing::{Tensor, call};

    fn run(table: &Tensor, rows: &Tensor, out: Format, shape: &[usize]) -> Vec<f32> {
        let mut out = Tensor::unwritten(out, shape);
        call::<EngramGather>(|a| (a.table, a.rows, a.out) = (table.input(), rows.input(), out.output())).unwrap();
        out.floats()
    }

    #[test]
    fn rows_of_any_format_lie_side_by_side() {
        let values = random::floats(60, 5 * 64);
        let rows = Tensor::i32(&[2, 3], &[4, 0, 5, -1, 2, 2]);
        for format in [Format::F32, Format::Bf16, Format::Fp8Row32] {
            let table = Tensor::floating(format, &[5, 64], &values);
            let stored = table.floats();
            let row = |i: usize| &stored[i * 64..][..64];
            let zeros = &[0.0; 64][..];
            let expected = [row(4), row(0), zeros, zeros, row(2), row(2)].concat();
            assert_eq!(run(&table, &rows, Format::F32, &[2, 192]), expected);
            let narrow = Tensor::bf16(&[384], &expected).floats();
            assert_eq!(run(&table, &rows, Format::Bf16, &[2, 192]), narrow);
        }
    }

    #[test]
    fn nothing() {
        let table = Tensor::f32(&[2, 0], &[]);
        assert!(run(&table, &Tensor::i32(&[2, 3], &[0; 6]), Format::F32, &[2, 0]).is_empty());
        let table = Tensor::f32(&[0, 2], &[]);
        assert_eq!(run(&table, &Tensor::i32(&[1, 2], &[0, 1]), Format::F32, &[1, 4]), [0.0; 4]);
        assert!(run(&table, &Tensor::i32(&[0, 2], &[]), Format::F32, &[0, 4]).is_empty());
    }
}
