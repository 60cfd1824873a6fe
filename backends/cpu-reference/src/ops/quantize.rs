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

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::generated::Quantize;

    use super::*;
    use crate::golden::Golden;
    use crate::random;
    use crate::testing::{Tensor, call};

    fn run(x: &Tensor, format: Format, shape: &[usize]) -> Result<Tensor, String> {
        let mut out = Tensor::unwritten(format, shape);
        call::<Quantize>(|a| (a.x, a.out) = (x.input(), out.output()))?;
        Ok(out)
    }

    #[test]
    fn golden() {
        let file = Golden::open("quant");
        let formats = [
            (Format::Fp8Row32, "group.fp8_byte", "group.fp8_scale"),
            (Format::Fp4Row32, "group.fp4_packed", "group.fp4_scale"),
            (Format::Fp4Row16, "group.kv4_packed", "group.kv4_scale"),
        ];
        let values = file.f32("group.in");
        for (format, codes, scales) in formats {
            // The values are BF16 values, so both inputs give the same codes.
            for x in [Tensor::f32(&[6, 128], &values), Tensor::bf16(&[6, 128], &values).padded(8)] {
                let out = run(&x, format, &[6, 128]).unwrap();
                assert_eq!(out.to_bytes(), file.u8(codes), "{format}");
                assert_eq!(out.scale_bytes(), file.u8(scales), "{format}");
            }
        }
    }

    #[test]
    fn many_rows_equal_single_rows() {
        let values = random::floats(4, 300 * 160);
        for format in [Format::Fp8Row32, Format::Fp4Row32, Format::Fp4Row16] {
            let together = run(&Tensor::f32(&[300, 160], &values), format, &[300, 160]).unwrap();
            let expected = Tensor::floating(format, &[300, 160], &values);
            assert_eq!(together.to_bytes(), expected.to_bytes());
            assert_eq!(together.scale_bytes(), expected.scale_bytes());
        }
    }

    #[test]
    fn partial_groups_are_refused() {
        let x = Tensor::f32(&[1, 40], &[1.0; 40]);
        let message = run(&x, Format::Fp8Row32, &[1, 40]).err().unwrap();
        assert_eq!(message, "quantize: x has 40 columns, but the format needs a multiple of 32");
        assert!(run(&x, Format::Fp4Row16, &[1, 40]).is_err());
        assert!(run(&Tensor::f32(&[0, 64], &[]), Format::Fp4Row16, &[0, 64]).is_ok());
    }
}
