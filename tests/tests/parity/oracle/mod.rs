//! What each op must give, computed in f64 straight from `plugin-api/OPS.md`.
//!
//! The oracles share no code with any kernel. An oracle of an EXACT op gives bits; the others give values with the
//! error that the contract allows, derived from the data.

pub(crate) mod cache;
pub(crate) mod dense;
pub(crate) mod engram;
pub(crate) mod formats;
pub(crate) mod moe;
pub(crate) mod sample;
pub(crate) mod select;

use deepinfer_ops::Format;

use crate::host::{Case, HostTensor};

/// Unit roundoff of the narrowest accumulator that the contracts allow, F32.
pub(crate) const U: f64 = 1.0 / (1 << 24) as f64;

/// What an element of an output must be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Element {
    /// Within `slack` of `value` before the rounding to the output's format.
    Near {
        /// Exact result.
        value: f64,
        /// Largest error before the last rounding.
        slack: f64,
    },
    /// This integer.
    Int(i64),
    /// These bits of an F32.
    Bits(u32),
    /// As before the call.
    Kept,
    /// The contract does not say.
    Any,
}

impl Element {
    /// A sum of `terms` products whose magnitudes sum to `magnitude`, accumulated in F32.
    pub(crate) fn sum(value: f64, terms: usize, magnitude: f64) -> Self {
        Element::Near { value, slack: 2.0 * (terms + 2) as f64 * U * magnitude }
    }

    /// A value with a relative error of `ulps` F32 roundings.
    pub(crate) fn relative(value: f64, roundings: f64) -> Self {
        Element::Near { value, slack: roundings * U * value.abs() }
    }
}

/// What an output must be.
pub(crate) enum Want {
    /// These bits.
    Exact(HostTensor),
    /// These bits, but any NaN for a NaN.
    ExactButNan(HostTensor),
    /// One rule per element.
    Elements(Vec<Element>),
    /// The FP8 quantisation of values between these bounds.
    Fp8Between(Vec<f32>, Vec<f32>),
}

/// Wanted outputs by argument.
pub(crate) type Wants = Vec<(&'static str, Want)>;

/// Half the distance of neighbouring values of a float format at `x`.
pub(crate) fn half_ulp(format: Format, x: f64) -> f64 {
    let precision = if format == Format::Bf16 { 8 } else { 24 };
    let exponent = if x == 0.0 || !x.is_finite() { -126 } else { (x.abs().log2().floor() as i32).max(-126) };
    2f64.powi(exponent - precision)
}

/// Compares an output with what it must be.
///
/// # Errors
/// Names the first element that differs.
pub(crate) fn compare(want: &Want, found: &HostTensor, before: &HostTensor) -> Result<(), String> {
    match want {
        Want::Exact(wanted) if wanted == found => Ok(()),
        Want::Exact(wanted) => Err(first_difference(wanted, found)),
        Want::ExactButNan(wanted) if wanted.same_but_nan(found) => Ok(()),
        Want::ExactButNan(wanted) => Err(first_difference(wanted, found)),
        Want::Elements(elements) => compare_elements(elements, found, before),
        Want::Fp8Between(low, high) => compare_fp8(low, high, found),
    }
}

fn first_difference(wanted: &HostTensor, found: &HostTensor) -> String {
    let differs = |a: &[u8], b: &[u8]| a.iter().zip(b).position(|(a, b)| a != b);
    if let Some(i) = differs(&wanted.codes, &found.codes) {
        let element = wanted.element_bytes().map_or(2 * i, |size| i / size);
        return format!(
            "element {element} (byte {i}) of shape {:?} is {:#04x}, expected {:#04x}",
            wanted.shape, found.codes[i], wanted.codes[i]
        );
    }
    let i = differs(&wanted.scales, &found.scales).expect("some difference");
    format!("scale {i} is {:#04x}, expected {:#04x}", found.scales[i], wanted.scales[i])
}

fn compare_elements(elements: &[Element], found: &HostTensor, before: &HostTensor) -> Result<(), String> {
    assert_eq!(elements.len(), found.len(), "the oracle gives {} elements for {:?}", elements.len(), found.shape);
    let is_float = matches!(found.format, Format::F32 | Format::Bf16);
    let floats = if is_float { found.values() } else { Vec::new() };
    let ints = if is_float { Vec::new() } else { found.ints() };
    for (i, element) in elements.iter().enumerate() {
        let right = match *element {
            Element::Any => true,
            Element::Kept => found.element(i) == before.element(i),
            Element::Int(value) => ints[i] == value,
            Element::Bits(bits) => floats[i].to_bits() == bits,
            Element::Near { value, slack } => is_near(found.format, f64::from(floats[i]), value, slack),
        };
        if !right {
            let value = if is_float { format!("{:e}", floats[i]) } else { ints[i].to_string() };
            return Err(format!("element {i} of shape {:?} is {value}, expected {element:?}", found.shape));
        }
    }
    Ok(())
}

fn is_near(format: Format, found: f64, value: f64, slack: f64) -> bool {
    if value.is_nan() || found.is_nan() {
        return value.is_nan() && found.is_nan();
    }
    if value.is_infinite() {
        return found == value;
    }
    let reach = slack + half_ulp(format, value.abs() + slack);
    // A value may round to infinity where the largest finite value is within reach.
    let largest = if format == Format::Bf16 { 3.389_531_389_251_535_5e38 } else { f64::from(f32::MAX) };
    (found - value).abs() <= reach || (found.is_infinite() && found * value > 0.0 && value.abs() + reach > largest)
}

/// The scale must follow from a largest magnitude between the bounds, and each code from a value between them.
fn compare_fp8(low: &[f32], high: &[f32], found: &HostTensor) -> Result<(), String> {
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
            return Err(format!("scale {group} is {byte}, expected {least} to {most}"));
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
                return Err(format!("code {i} is {code:#04x} ({value}), expected {a} to {b} under scale {byte}"));
            }
        }
    }
    Ok(())
}

/// The oracle of an op.
pub(crate) type Oracle = fn(&Case) -> Wants;
