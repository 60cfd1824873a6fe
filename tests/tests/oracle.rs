//! cpu-reference is the numerical authority: its sums are those of the oracle but for the roundings of F64 and the last one.
//!
//! The contract of a summing op leaves room for an accumulator of F32. cpu-reference accumulates in F64, and is held here to
//! the same formulas with the unit roundoff of F64: a sum in F32, a term left out, or a rounding in between would show.

#![forbid(unsafe_code)]

use deepinfer_oracle::{Element, HostTensor, Outputs, Want, compare};
use deepinfer_parity::{Check, cases, run_call};
use deepinfer_plugin_api::contract::UNIT_ROUNDOFF;
use deepinfer_plugin_api::generated::OPS;
use deepinfer_plugin_api::{Class, Format};
use deepinfer_runtime::{Runtime, SearchPath, Selection};

/// Twice the unit roundoff of F64, because the oracle's own sums are as inexact.
const UNIT: f64 = f64::EPSILON;

/// Leaves room for the rounding to F32 of a BF16 result: cpu-reference does it, as the operators of the PyTorch reference do.
fn through_f32(want: Want, format: Format) -> Want {
    let mut elements = match want {
        Want::Elements(elements) if format == Format::Bf16 => elements,
        other => return other,
    };
    for element in &mut elements {
        if let Element::Near { value, slack } = element {
            *slack += UNIT_ROUNDOFF * value.abs();
        }
    }
    Want::Elements(elements)
}

#[track_caller]
fn hold(op: &str) {
    let runtime = Runtime::new(SearchPath::from_environment());
    let device = runtime.open(&Selection::parse("cpu").expect("a name")).unwrap_or_else(|error| panic!("{error}"));
    let mut ran = 0;
    for case in (0..3).flat_map(|seed| cases(op, Check::Value, seed, None)) {
        let call = case.call().0;
        let found: Outputs = run_call(&device, &call).unwrap_or_else(|error| panic!("{case}: {error}"));
        for (name, want) in call.wants_of(UNIT).unwrap_or_else(|error| panic!("{case}: {error}")) {
            let before: &HostTensor = call.tensor(name);
            let result = compare(name, &through_f32(want, before.format), &found[name], before);
            result.unwrap_or_else(|mismatch| panic!("{case}, seed {}: {mismatch}\n  {call}", case.seed));
        }
        ran += 1;
    }
    assert!(ran >= 3 * 64, "only {ran} calls of {op}");
}

/// A test for each op, so that they run side by side and each has a name.
macro_rules! held {
    ($($op:ident)*) => {
        /// Ops whose result is a sum, or is made of sums.
        const SUMMING: &[&str] = &[$(stringify!($op)),*];

        $(#[test]
        fn $op() {
            hold(stringify!($op));
        })*
    };
}

held! {
    rms_norm rstd linear grouped_linear hc_mix hc_collapse hc_expand index_scores compress_and_update_state
    sparse_attention engram_gate
}

#[test]
fn the_summing_ops_are_those_with_a_bound() {
    let bounded = OPS.iter().filter(|op| op.contract.class == Class::Bound).map(|op| op.name);
    let [mut bounded, mut summing] = [bounded.collect(), SUMMING.to_vec()];
    bounded.sort_unstable();
    summing.sort_unstable();
    assert_eq!(summing, bounded);
}
