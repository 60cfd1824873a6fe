//! `gather`: copies of table rows, by index. No arithmetic but the conversion between F32 and BF16.
//!
//! The views of the arguments are checked before the kernel is called: formats, ranks, extents, and that every element lies
//! within its memory.

use deepinfer_plugin_api::generated::GatherArgs;
use deepinfer_plugin_api::numerics::Bf16;
use deepinfer_plugin_api::sdk::tensor::Element;
use deepinfer_plugin_api::sdk::{Cx, Fault};
use deepinfer_plugin_api::{Format, Shaped};

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
            let (out, table) = (name(out), name(table));
            Err(Fault::invalid(format!(
                "out is {out} and table {table}, but only F32 and BF16 are converted into each other"
            )))
        }
    }
}

fn copy<T: Element, U: Element + Default>(a: &mut GatherArgs<'_>, convert: impl Fn(T) -> U) -> Result<(), Fault> {
    let (table, index) = (a.table.rows::<T>()?, a.index.slice::<i32>()?);
    for (i, out) in a.out.rows_mut::<U>()?.into_iter().enumerate() {
        match usize::try_from(index[i / a.repeat as usize]).ok().filter(|&row| row < a.dims.n) {
            Some(row) => out.iter_mut().zip(table.row(row)).for_each(|(out, &v)| *out = convert(v)),
            None => out.fill(U::default()),
        }
    }
    Ok(())
}
