//! `quantize`: rows to a scaled 8- or 4-bit format, by the rules of `deepinfer_plugin_api::numerics::group`.

use deepinfer_plugin_api::generated::QuantizeArgs;
use deepinfer_plugin_api::numerics::{Fp4Scale, group};
use deepinfer_plugin_api::sdk::{Cx, Fault};
use deepinfer_plugin_api::{Format, Shaped};

use crate::arguments::whole_groups;
use crate::parallel;

deepinfer_plugin_api::kernel!(Quantize, quantize);

fn quantize(_: &Cx<'_>, mut a: QuantizeArgs<'_>) -> Result<(), Fault> {
    let encode: fn(&[f32], &mut [u8], &mut [u8]) = match a.out.format() {
        Some(Format::Fp8Row32) => group::quantize_fp8,
        Some(Format::Fp4Row32) => |x, codes, scales| group::quantize_fp4(x, codes, scales, Fp4Scale::Ue8m0),
        _ => |x, codes, scales| group::quantize_fp4(x, codes, scales, Fp4Scale::E4m3),
    };
    let columns = a.out.format().and_then(Format::scale).map_or(1, |scale| scale.columns);
    whole_groups("quantize", "x", a.dims.n, columns)?;
    let x = a.x.floats()?;
    let (codes, scales) = a.out.quantized_rows_mut()?;
    let rows = codes.into_iter().zip(scales).collect();
    parallel::for_each_row_with(rows, 2 * a.dims.n, Vec::new, |scratch, t, (codes, scales)| {
        encode(x.load(t, scratch), codes, scales);
    });
    Ok(())
}
