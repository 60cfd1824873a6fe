//! `gather`: copies of table rows. No arithmetic but the conversion between F32 and BF16.

use deepinfer_plugin_api::generated::GatherArgs;
use deepinfer_plugin_api::numerics::Bf16;
use deepinfer_plugin_api::sdk::tensor::Element;
use deepinfer_plugin_api::sdk::{Cx, Fault};
use deepinfer_plugin_api::{Format, Shaped};

use crate::parallel;

deepinfer_plugin_api::kernel!(Gather, gather);

fn gather(_: &Cx<'_>, mut a: GatherArgs<'_>) -> Result<(), Fault> {
    match (a.table.format(), a.out.format()) {
        (Some(Format::F32), Some(Format::F32)) => copy::<f32, f32>(&mut a, |v| v),
        (Some(Format::Bf16), Some(Format::Bf16)) => copy::<Bf16, Bf16>(&mut a, |v| v),
        (Some(Format::I32), Some(Format::I32)) => copy::<i32, i32>(&mut a, |v| v),
        (Some(Format::U8), Some(Format::U8)) => copy::<u8, u8>(&mut a, |v| v),
        (Some(Format::Bf16), Some(Format::F32)) => copy::<Bf16, f32>(&mut a, Bf16::to_f32),
        (Some(Format::F32), Some(Format::Bf16)) => copy::<f32, Bf16>(&mut a, Bf16::from_f32),
        (table, out) => {
            let name = |format: Option<Format>| format.map_or("an unknown format", Format::name);
            Err(Fault::invalid(format!(
                "gather: out is {} and table {}, but only F32 and BF16 are converted into each other",
                name(out),
                name(table)
            )))
        }
    }
}

fn copy<T: Element, U: Element + Default>(
    a: &mut GatherArgs<'_>,
    convert: impl Fn(T) -> U + Send + Sync,
) -> Result<(), Fault> {
    let (table, index) = (a.table.rows::<T>()?, a.index.slice::<i32>()?);
    let repeat = a.repeat as usize;
    parallel::for_each_row(a.out.rows_mut::<U>()?, a.dims.c / 4, |i, out| {
        match usize::try_from(index[i / repeat]).ok().filter(|&row| row < a.dims.n) {
            Some(row) => out.iter_mut().zip(table.row(row)).for_each(|(out, &v)| *out = convert(v)),
            None => out.fill(U::default()),
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::generated::Gather;

    use super::*;
    use crate::testing::{Tensor, call};

    fn run(table: &Tensor, index: &[i32], repeat: u32, mut out: Tensor) -> Result<Tensor, String> {
        let index = Tensor::i32(&[index.len()], index);
        call::<Gather>(|a| {
            (a.table, a.index, a.repeat, a.out) = (table.input(), index.input(), repeat, out.output());
        })?;
        Ok(out)
    }

    #[test]
    fn rows_are_repeated_and_rows_outside_are_zeros() {
        let table = Tensor::f32(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        for table in [table.padded(3), table] {
            let out = run(&table, &[2, -1, 3, 0], 2, Tensor::unwritten(Format::F32, &[4, 2, 2])).unwrap();
            let expected = [5.0, 6.0, 5.0, 6.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 1.0, 2.0];
            assert_eq!(out.floats(), expected);
        }
    }

    #[test]
    fn integers_and_payloads_are_copied() {
        let nan = f32::from_bits(0x7F80_0001);
        let out = run(&Tensor::f32(&[1, 1], &[nan]), &[0], 1, Tensor::unwritten(Format::F32, &[1, 1, 1])).unwrap();
        assert_eq!(out.floats()[0].to_bits(), nan.to_bits());
        let out = run(&Tensor::i32(&[2, 1], &[7, -9]), &[1], 1, Tensor::unwritten(Format::I32, &[1, 1, 1])).unwrap();
        assert_eq!(out.ints(), [-9]);
        let out = run(&Tensor::u8(&[2, 1], &[7, 9]), &[1, 2], 1, Tensor::unwritten(Format::U8, &[2, 1, 1])).unwrap();
        assert_eq!(out.to_bytes(), [9, 0]);
    }

    #[test]
    fn bf16_widens_and_f32_rounds_to_even() {
        let tie = 1.0 + 2.0f32.powi(-8);
        let table = Tensor::f32(&[1, 2], &[tie, f32::from_bits(0x7F80_0001)]);
        let out = run(&table, &[0], 1, Tensor::unwritten(Format::Bf16, &[1, 1, 2])).unwrap();
        assert_eq!(out.to_bytes(), Tensor::bf16(&[2], &[1.0, f32::from_bits(0x7FC0_0000)]).to_bytes());
        let table = Tensor::bf16(&[1, 2], &[1.5, -3.0]);
        let out = run(&table, &[0], 1, Tensor::unwritten(Format::F32, &[1, 1, 2])).unwrap();
        assert_eq!(out.floats(), [1.5, -3.0]);
    }

    #[test]
    fn other_conversions_are_refused_and_nothing_is_accepted() {
        let message = run(&Tensor::u8(&[1, 1], &[1]), &[0], 1, Tensor::unwritten(Format::F32, &[1, 1, 1])).err();
        assert!(message.unwrap().contains("out is F32 and table U8"));
        let table = Tensor::f32(&[1, 2], &[1.0, 2.0]);
        assert!(run(&table, &[], 1, Tensor::unwritten(Format::F32, &[0, 1, 2])).is_ok());
        assert!(run(&table, &[0], 0, Tensor::unwritten(Format::F32, &[1, 0, 2])).is_ok());
    }
}
