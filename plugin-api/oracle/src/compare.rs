//! How far an output is from what it must be, as a share of what the contract allows.

use std::fmt::LowerExp;

use deepinfer_plugin_api::Format;

use crate::formats;
use crate::mismatch::{Distance, Mismatch};
use crate::tensor::HostTensor;
use crate::want::{Element, Want, half_ulp};

/// Largest finite BF16 value.
const BF16_MAX: f64 = 3.389_531_389_251_535_5e38;

/// Compares an output with what it must be. Returns the largest error that the last rounding does not explain, as a share of
/// what is allowed before it: 0 where bits must be equal and are, 1 at the bound.
///
/// # Errors
/// The worst element that is not within its bound; of equally bad ones, the first.
pub fn compare(name: &str, want: &Want, found: &HostTensor, before: &HostTensor) -> Result<f64, Box<Mismatch>> {
    let at = |mut mismatch: Box<Mismatch>| {
        name.clone_into(&mut mismatch.argument);
        mismatch
    };
    match want {
        Want::Exact(wanted) if wanted == found => Ok(0.0),
        Want::ExactButNan(wanted) if wanted.same_but_nan(found) => Ok(0.0),
        Want::Exact(wanted) => Err(at(Box::new(first_difference(wanted, found, false)))),
        Want::ExactButNan(wanted) => Err(at(Box::new(first_difference(wanted, found, true)))),
        Want::Elements(elements) => compare_elements(elements, found, before).map_err(at),
        Want::Fp8Between(low, high) => compare_fp8(low, high, found).map_err(at),
    }
}

/// An element that must have other bits.
fn wrong_bits(found: &HostTensor, element: usize, value: [String; 2], bits: [String; 2]) -> Mismatch {
    let ([found_value, wanted_value], [found_bits, wanted_bits]) = (value, bits);
    Mismatch {
        argument: String::new(),
        part: String::new(),
        shape: found.shape.clone(),
        element,
        found: found_value,
        found_bits,
        wanted: wanted_value,
        wanted_bits,
        distance: None,
    }
}

/// The first element, or else the first scale, of two tensors of one format and shape that differ.
pub fn first_difference(wanted: &HostTensor, found: &HostTensor, nan_is_nan: bool) -> Mismatch {
    let floats = |tensor: &HostTensor| match tensor.format {
        Format::F32 | Format::Bf16 => tensor.values(),
        _ => Vec::new(),
    };
    let (a, b) = (floats(found), floats(wanted));
    let are_nan = |i: usize| nan_is_nan && !a.is_empty() && a[i].is_nan() && b[i].is_nan();
    let differing = (0..found.len()).find(|&i| code(found, i) != code(wanted, i) && !are_nan(i));
    if let Some(i) = differing {
        return wrong_bits(found, i, [found, wanted].map(|t| value_text(t, i)), [found, wanted].map(|t| code(t, i)));
    }
    let scale = found.scales.iter().zip(&wanted.scales).position(|(a, b)| a != b).unwrap_or(0);
    let bytes = [found, wanted].map(|t| t.scales.get(scale).copied().unwrap_or(0));
    let values = bytes.map(|byte| number(formats::scale_value(found.format, byte)));
    Mismatch { part: "scale".to_owned(), ..wrong_bits(found, scale, values, bytes.map(|b| format!("{b:#04x}"))) }
}

/// The bits of an element.
fn code(tensor: &HostTensor, i: usize) -> String {
    match tensor.element_bytes() {
        Some(_) => {
            let digits: String = tensor.element(i).iter().rev().map(|byte| format!("{byte:02x}")).collect();
            format!("0x{digits}")
        }
        None => format!("{:#03x}", tensor.codes[i / 2] >> (4 * (i % 2)) & 15),
    }
}

/// The number that an element stands for, without its scale.
fn value_text(tensor: &HostTensor, i: usize) -> String {
    let bytes = || tensor.element(i);
    match tensor.format {
        Format::F32 => number(f32::from_le_bytes(bytes().try_into().expect("four bytes"))),
        Format::Bf16 => number(f32::from_le_bytes([0, 0, bytes()[0], bytes()[1]])),
        Format::I32 => i32::from_le_bytes(bytes().try_into().expect("four bytes")).to_string(),
        Format::I64 => i64::from_le_bytes(bytes().try_into().expect("eight bytes")).to_string(),
        Format::U8 => tensor.codes[i].to_string(),
        Format::Fp8Row32 | Format::Fp8Tile32 => number(formats::e4m3(tensor.codes[i])),
        Format::Fp4Row32 | Format::Fp4Row16 => number(formats::e2m1(tensor.codes[i / 2] >> (4 * (i % 2)) & 15)),
    }
}

fn number(x: impl LowerExp) -> String {
    format!("{x:e}")
}

fn compare_elements(elements: &[Element], found: &HostTensor, before: &HostTensor) -> Result<f64, Box<Mismatch>> {
    assert_eq!(elements.len(), found.len(), "the oracle gives {} elements for {:?}", elements.len(), found.shape);
    let is_float = matches!(found.format, Format::F32 | Format::Bf16);
    let floats = if is_float { found.values() } else { Vec::new() };
    let ints = if is_float { Vec::new() } else { found.ints() };
    let share = |i: usize| {
        let exact = |is_right: bool| if is_right { 0.0 } else { f64::INFINITY };
        match elements[i] {
            Element::Any => 0.0,
            Element::Kept => exact(found.element(i) == before.element(i)),
            Element::Int(value) => exact(ints[i] == value),
            Element::Bits(bits) => exact(floats[i].to_bits() == bits),
            Element::Near { value, slack } => share_of_bound(found.format, f64::from(floats[i]), value, slack),
        }
    };
    // Only a larger share replaces an earlier one.
    let (mut worst, mut at) = (0.0, None);
    for i in 0..elements.len() {
        let share = share(i);
        if share > worst {
            (worst, at) = (share, Some(i));
        }
    }
    match at {
        Some(i) if worst > 1.0 => Err(Box::new(mismatch(&elements[i], found, before, i))),
        _ => Ok(worst),
    }
}

fn mismatch(element: &Element, found: &HostTensor, before: &HostTensor, i: usize) -> Mismatch {
    let one = |value: f64| HostTensor::floats(found.format, &[1], &[value as f32]);
    let (value, bits) = match *element {
        Element::Near { value, .. } => (number(value), code(&one(value), 0)),
        Element::Int(value) => {
            let one = match found.format {
                Format::I64 => HostTensor::i64(&[1], &[value]),
                Format::I32 => HostTensor::i32(&[1], &[value as i32]),
                _ => HostTensor::u8(&[1], vec![value as u8]),
            };
            (value.to_string(), code(&one, 0))
        }
        Element::Bits(bits) => (number(f32::from_bits(bits)), format!("{bits:#010x}")),
        Element::Kept => (format!("{} as before the call", value_text(before, i)), code(before, i)),
        Element::Any => unreachable!("any value is right"),
    };
    let out = wrong_bits(found, i, [value_text(found, i), value], [code(found, i), bits]);
    let Element::Near { value, slack } = *element else { return out };
    let distance = Distance {
        error: (f64::from(found.values()[i]) - value).abs(),
        rounding: half_ulp(found.format, value.abs() + slack),
        allowed: slack,
    };
    let is_finite = [distance.error, distance.rounding, slack].into_iter().all(f64::is_finite);
    Mismatch { distance: is_finite.then_some(distance), ..out }
}

fn share_of_bound(format: Format, found: f64, value: f64, slack: f64) -> f64 {
    if value.is_nan() || found.is_nan() {
        return if value.is_nan() && found.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if value.is_infinite() {
        return if found == value { 0.0 } else { f64::INFINITY };
    }
    let rounding = half_ulp(format, value.abs() + slack);
    // A value may round to infinity where the largest finite value is within reach.
    let largest = if format == Format::Bf16 { BF16_MAX } else { f64::from(f32::MAX) };
    if found.is_infinite() && found * value > 0.0 && value.abs() + slack + rounding > largest {
        return 0.0;
    }
    let unexplained = (found - value).abs() - rounding;
    // Not even one of zero in zero, and no NaN: what is not a share is beyond every bound.
    match unexplained / slack {
        _ if unexplained <= 0.0 => 0.0,
        share if share.is_nan() => f64::INFINITY,
        share => share,
    }
}

/// The scale must follow from a largest magnitude between the bounds, and each code from a value between them.
fn compare_fp8(low: &[f32], high: &[f32], found: &HostTensor) -> Result<f64, Box<Mismatch>> {
    let format = Format::Fp8Row32;
    for (group, &byte) in found.scales.iter().enumerate() {
        let range = group * 32..group * 32 + 32;
        let magnitudes = |f: fn(f32, f32) -> f32| -> Vec<f32> {
            let pairs = low[range.clone()].iter().zip(&high[range.clone()]);
            pairs.map(|(a, b)| if a.is_nan() { *a } else { f(a.abs(), b.abs()) }).collect()
        };
        // Bounds of different signs enclose zero.
        let least = formats::scale_byte(format, &magnitudes(f32::min));
        let most = formats::scale_byte(format, &magnitudes(f32::max));
        if !(least..=most).contains(&byte) {
            let value = [byte, least].map(|b| number(formats::scale_value(format, b)));
            let bits = [format!("{byte:#04x}"), format!("{least:#04x} to {most:#04x}")];
            return Err(Box::new(Mismatch { part: "scale".to_owned(), ..wrong_bits(found, group, value, bits) }));
        }
        let scale = formats::scale_value(format, byte);
        for i in range {
            let bounds = [low[i], high[i]].map(|x| formats::element_code(format, x, scale));
            let code = found.codes[i];
            let [a, b] = bounds.map(formats::e4m3);
            let value = formats::e4m3(code);
            // The sign of a NaN that arithmetic made is not defined.
            let is_nan = low[i].is_nan() && value.is_nan();
            if !(is_nan || bounds.contains(&code) || (a <= value && value <= b)) {
                let values = [number(value), format!("{a:e} to {b:e} under scale {byte}")];
                let bits = [format!("{code:#04x}"), format!("{:#04x} to {:#04x}", bounds[0], bounds[1])];
                return Err(Box::new(wrong_bits(found, i, values, bits)));
            }
        }
    }
    Ok(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: f64, slack: f64) -> Element {
        Element::Near { value, slack }
    }

    #[test]
    fn the_worst_element_is_named_with_both_values_and_bits() {
        let found = HostTensor::floats(Format::F32, &[2, 2], &[1.0, 2.5, 4.0, 3.0]);
        let elements = [near(1.0, 0.0), near(2.0, 0.1), near(3.0, 0.1), near(2.0, 0.1)];
        let mismatch = compare("out", &Want::Elements(elements.to_vec()), &found, &found).unwrap_err();
        assert_eq!((mismatch.element, mismatch.found.as_str(), mismatch.wanted.as_str()), (2, "4e0", "3e0"));
        assert_eq!((mismatch.found_bits.as_str(), mismatch.wanted_bits.as_str()), ("0x40800000", "0x40400000"));
        let text = mismatch.to_string();
        for part in ["out[1, 0]", "4e0", "0x40400000", "error 1.000e0", "allowed 1.000e-1", "10.000 times"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn wrong_integers_show_their_bits() {
        let found = HostTensor::i32(&[2], &[5, -1]);
        let want = Want::Elements(vec![Element::Int(5), Element::Int(-2)]);
        let mismatch = compare("out", &want, &found, &found).unwrap_err();
        assert_eq!(mismatch.to_string(), "out[1] is -1 (0xffffffff), expected -2 (0xfffffffe): no error is allowed");
    }

    #[test]
    fn shares_of_the_bound() {
        let share = |found: f64, value: f64, slack: f64| share_of_bound(Format::F32, found, value, slack);
        assert!((share(1.05, 1.0, 0.1) - 0.5).abs() < 1e-6);
        assert!(share(1.2, 1.0, 0.1) > 1.9);
        // Half the distance of neighbours is the last rounding's.
        assert_eq!(share_of_bound(Format::Bf16, 1.003, 1.0, 0.0), 0.0);
        assert_eq!(share_of_bound(Format::Bf16, 1.004, 1.0, 0.0), f64::INFINITY);
        assert_eq!(share(f64::NAN, 1.0, 0.1), f64::INFINITY);
        assert_eq!(share(f64::NAN, f64::NAN, 0.1), 0.0);
        assert_eq!(share(f64::INFINITY, 3.5e38, 0.0), 0.0, "beyond the largest F32");
        assert_eq!(share(f64::INFINITY, 1e38, 0.0), f64::INFINITY);
        assert_eq!(share(f64::NEG_INFINITY, 3.5e38, 0.0), f64::INFINITY, "the wrong sign");
    }

    #[test]
    fn a_nan_for_a_nan_is_no_difference_and_the_element_after_it_is() {
        let nan = f32::from_bits(0xFFC1_2345);
        let found = HostTensor::floats(Format::Bf16, &[1, 3], &[nan, f32::NAN, 2.0]);
        let wanted = HostTensor::floats(Format::Bf16, &[1, 3], &[f32::NAN, nan, 1.0]);
        let mismatch = compare("out", &Want::ExactButNan(wanted), &found, &found).unwrap_err();
        assert_eq!((mismatch.element, mismatch.found_bits.as_str()), (2, "0x4000"));
    }

    #[test]
    fn a_wrong_scale_is_called_one() {
        let wanted = HostTensor::floats(Format::Fp4Row32, &[1, 32], &[1.0; 32]);
        let mut found = wanted.clone();
        found.scales[0] += 1;
        let mismatch = compare("out", &Want::Exact(wanted), &found, &found).unwrap_err();
        assert!(mismatch.to_string().contains("scale 0 of out"), "{mismatch}");
    }
}
