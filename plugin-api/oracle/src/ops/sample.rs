//! Oracle of the draw. The noise is that of `deepinfer-numerics`: the catalogue defines it by that crate.

use deepinfer_plugin_api::numerics::gumbel::{Domain, noise};

use crate::bound::Bound;
use crate::call::Call;
use crate::want::{Element, Want, Wants};

pub(crate) fn fused_sample(call: &Call, _: Bound) -> Wants {
    let (logits, inverse) = (call.tensor("logits"), call.tensor("inv_temperature").values());
    let (seeds, positions) = (call.tensor("seed").ints(), call.tensor("position").ints());
    let (vocabulary, values) = (logits.shape[1], logits.values());
    let draw = |n: usize| {
        let row = &values[n * vocabulary..][..vocabulary];
        let is_bad = row.iter().any(|x| x.is_nan() || *x == f32::INFINITY);
        if is_bad || row.iter().all(|x| *x == f32::NEG_INFINITY) {
            return -1;
        }
        let score = |v: usize| match inverse[n] {
            0.0 => row[v],
            inverse => {
                let scaled = row[v] * inverse;
                scaled + noise(seeds[n] as u64, positions[n] as u32, v as u32, Domain::TargetDraw, 0)
            }
        };
        // Only a strictly larger score replaces an earlier one.
        (1..vocabulary).fold((0, score(0)), |best, v| if score(v) > best.1 { (v, score(v)) } else { best }).0 as i64
    };
    let tokens = (0..logits.shape[0]).map(draw).map(Element::Int).collect();
    vec![("token", Want::Elements(tokens))]
}
