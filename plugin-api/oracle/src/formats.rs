//! The number formats once more, by table search instead of bit tricks, so that an error in the shared crate shows.

use deepinfer_plugin_api::Format;

use crate::tensor::HostTensor;

/// Value of an E4M3 code.
pub(crate) fn e4m3(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f64::NAN,
        (0, _) => mantissa * 2f64.powi(-9),
        _ => (8.0 + mantissa) * 2f64.powi(exponent - 10),
    };
    if code >> 7 == 1 { -magnitude } else { magnitude }
}

/// Value of an E2M1 code.
pub(crate) fn e2m1(code: u8) -> f64 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code >> 3 & 1 == 1 { -magnitude } else { magnitude }
}

/// Value of a UE8M0 scale byte.
pub(crate) fn ue8m0(byte: u8) -> f64 {
    if byte == 255 { f64::NAN } else { 2f64.powi(i32::from(byte) - 127) }
}

/// Nearest of the ascending `magnitudes`, of two equally near the even index; beyond the last, the last.
fn nearest(magnitudes: impl Fn(u8) -> f64, count: u8, x: f64) -> u8 {
    let (mut low, mut high) = (0, count - 1);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if magnitudes(middle) <= x { low = middle } else { high = middle }
    }
    let (below, above) = (x - magnitudes(low), magnitudes(high) - x);
    if below < above || (below == above && low % 2 == 0) { low } else { high }
}

/// E4M3 code of a value: nearest, ties to even, at most 448.
pub(crate) fn to_e4m3(x: f64) -> u8 {
    let sign = u8::from(x.is_sign_negative()) << 7;
    if x.is_nan() { sign | 0x7F } else { sign | nearest(e4m3, 127, x.abs()) }
}

/// E2M1 code of a value: nearest, ties to even, at most 6.
pub(crate) fn to_e2m1(x: f64) -> u8 {
    let sign = u8::from(x.is_sign_negative()) << 3;
    if x.is_nan() { sign | 7 } else { sign | nearest(e2m1, 8, x.abs()) }
}

/// BF16 bits of a value: nearest, ties to even; a NaN stays one.
pub(crate) fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let (kept, cut) = ((bits >> 16) as u16, bits & 0xFFFF);
    if x.is_nan() {
        return kept | 0x40;
    }
    kept + u16::from(cut > 0x8000 || (cut == 0x8000 && kept % 2 == 1))
}

/// The nearest BF16 value.
pub(crate) fn bf16(x: f32) -> f32 {
    f32::from_bits(u32::from(bf16_bits(x)) << 16)
}

/// Scale byte of a group: the rules of `quantize` in the catalogue; the products are F32.
pub(crate) fn scale_byte(format: Format, group: &[f32]) -> u8 {
    let amax = group.iter().fold(0.0, |m: f32, x| if x.is_nan() { f32::NAN } else { m.max(x.abs()) });
    let amax = if group.iter().any(|x| x.is_nan()) { f32::NAN } else { amax };
    let power = |least: f32, factor: f32| {
        let wanted = f64::from(amax.max(least) * factor);
        let byte = (0..255).find(|&byte| ue8m0(byte) >= wanted);
        if amax.is_finite() { byte.expect("a power of two above every F32 value over 6") } else { 255 }
    };
    match format {
        Format::Fp8Row32 | Format::Fp8Tile32 => power(1e-4, 1.0 / 448.0),
        Format::Fp4Row32 => power(6.0 * 2f32.powi(-126), 1.0 / 6.0),
        Format::Fp4Row16 if amax.is_nan() => 0x7F,
        Format::Fp4Row16 => to_e4m3(f64::from((amax.max(6.0 * 2f32.powi(-9)) * (1.0 / 6.0)).min(448.0))),
        other => panic!("{other} has no scales"),
    }
}

/// Value of a scale byte.
pub(crate) fn scale_value(format: Format, byte: u8) -> f64 {
    if format == Format::Fp4Row16 { e4m3(byte) } else { ue8m0(byte) }
}

/// Code of an element under a scale. In a group without a finite scale it is the largest code with the sign of `x`.
pub(crate) fn element_code(format: Format, x: f32, scale: f64) -> u8 {
    let scaled = (x / scale as f32).copysign(x);
    match format {
        Format::Fp8Row32 | Format::Fp8Tile32 => to_e4m3(f64::from(scaled)),
        _ => to_e2m1(f64::from(scaled)),
    }
}

/// Calls `f` with the index of each scale and the elements under it.
fn groups(format: Format, shape: &[usize], mut f: impl FnMut(usize, &[usize])) {
    let info = format.scale().expect("a quantised format");
    let (outer, rest) = shape.split_at(shape.len() - 2);
    let (rows, columns) = (rest[0], rest[1]);
    let mut scale = 0;
    for matrix in 0..outer.iter().product::<usize>() {
        for row in (0..rows).step_by(info.rows) {
            for column in (0..columns).step_by(info.columns) {
                let lines = row..rows.min(row + info.rows);
                let elements: Vec<usize> = lines
                    .flat_map(|r| (column..columns.min(column + info.columns)).map(move |c| (r, c)))
                    .map(|(r, c)| (matrix * rows + r) * columns + c)
                    .collect();
                f(scale, &elements);
                scale += 1;
            }
        }
    }
}

/// Fills codes and scales of `out` from values.
pub(crate) fn quantize(values: &[f32], out: &mut HostTensor) {
    let (format, shape) = (out.format, out.shape.clone());
    groups(format, &shape, |scale, elements| {
        let group: Vec<f32> = elements.iter().map(|&i| values[i]).collect();
        out.scales[scale] = scale_byte(format, &group);
        let divisor = scale_value(format, out.scales[scale]);
        for (&i, &x) in elements.iter().zip(&group) {
            set_code(out, i, element_code(format, x, divisor));
        }
    });
}

/// The values of a quantised tensor: element times scale, rounded to F32.
pub(crate) fn dequantize(tensor: &HostTensor) -> Vec<f32> {
    let mut out = vec![0.0; tensor.len()];
    groups(tensor.format, &tensor.shape, |scale, elements| {
        let scale = scale_value(tensor.format, tensor.scales[scale]);
        for &i in elements {
            out[i] = (element_value(tensor, i) * scale) as f32;
        }
    });
    out
}

fn element_value(tensor: &HostTensor, i: usize) -> f64 {
    match tensor.element_bytes() {
        Some(_) => e4m3(tensor.codes[i]),
        None => e2m1(tensor.codes[i / 2] >> (4 * (i % 2)) & 15),
    }
}

fn set_code(tensor: &mut HostTensor, i: usize, code: u8) {
    match tensor.element_bytes() {
        Some(_) => tensor.codes[i] = code,
        // Even elements lie in the low half.
        None => {
            let byte = &mut tensor.codes[i / 2];
            *byte = if i.is_multiple_of(2) { *byte & 0xF0 | code } else { *byte & 0x0F | code << 4 };
        }
    }
}
