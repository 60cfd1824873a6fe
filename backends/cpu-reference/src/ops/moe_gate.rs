//! `moe_gate`: the experts of each row and their weights.
//!
//! Scores are computed in f64 and rounded to F32; the bias is added in F32, so that the order of experts is that of the
//! PyTorch reference. The sum of the chosen scores is f64, best first; a weight is rounded once.

use deepinfer_plugin_api::generated::MoeGateArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::arguments::switch;
use crate::parallel;
use crate::scalar::{sigmoid, softplus};

deepinfer_plugin_api::kernel!(MoeGate, moe_gate);

fn moe_gate(_: &Cx<'_>, mut a: MoeGateArgs<'_>) -> Result<(), Fault> {
    let score: fn(&[f32], &mut Vec<f32>) = match a.scoring {
        0 => |logits, scores| scores.extend(logits.iter().map(|&z| softplus(f64::from(z)).sqrt() as f32)),
        1 => |logits, scores| scores.extend(logits.iter().map(|&z| sigmoid(f64::from(z)) as f32)),
        2 => softmax,
        other => return Err(Fault::invalid(format!("moe_gate: scoring is {other}, but must be 0, 1 or 2"))),
    };
    let normalise = switch("moe_gate", "normalize", a.normalize)? && a.dims.k > 1;
    if a.dims.k > a.dims.e {
        return Err(Fault::invalid(format!(
            "moe_gate: experts has {} columns, but there are only {} experts",
            a.dims.k, a.dims.e
        )));
    }
    let (logits, bias) = (a.logits.rows::<f32>()?, a.bias.slice::<f32>()?);
    let bias_vl = a.bias_vl.map_or(Ok(bias), |bias| bias.slice::<f32>())?;
    let image_mask = a.image_mask.map(|mask| mask.slice::<u8>()).transpose()?;

    let rows = a.experts.rows_mut::<i32>()?.into_iter().zip(a.weights.rows_mut::<f32>()?).collect();
    parallel::for_each_row_with(rows, 50 * a.dims.e, Vec::new, |scores, t, (experts, weights)| {
        scores.clear();
        score(logits.row(t), scores);
        let is_image = image_mask.is_some_and(|mask| mask[t] != 0);
        choose(scores, if is_image { bias_vl } else { bias }, experts);
        let chosen = experts.iter().map(|&e| f64::from(scores[e as usize]));
        let divisor = if normalise { chosen.clone().sum::<f64>() + 1e-20 } else { 1.0 };
        for (weight, score) in weights.iter_mut().zip(chosen) {
            *weight = (f64::from(a.route_scale) * score / divisor) as f32;
        }
    });
    Ok(())
}

/// Softmax in f64: exponentials of the distance to the largest, summed in ascending order of experts.
fn softmax(logits: &[f32], scores: &mut Vec<f32>) {
    // `max` drops a NaN, but the exponentials keep it.
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let exponentials = logits.iter().map(|&z| libm::exp(f64::from(z) - largest));
    let sum: f64 = exponentials.clone().sum();
    scores.extend(exponentials.map(|v| (v / sum) as f32));
}

/// The experts of largest `score + bias`, best first; of equal ones the lower; NaN below everything.
fn choose(scores: &[f32], bias: &[f32], experts: &mut [i32]) {
    let biased = |e: usize| scores[e] + bias[e];
    let better = |a: f32, b: f32| a > b || (b.is_nan() && !a.is_nan());
    let mut found = 0;
    for e in 0..scores.len() {
        // Behind all that are at least as good: those came first.
        let place = experts[..found].iter().rposition(|&other| !better(biased(e), biased(other as usize)));
        let place = place.map_or(0, |p| p + 1);
        if place < experts.len() {
            found = (found + 1).min(experts.len());
            experts.copy_within(place..found - 1, place + 1);
            experts[place] = e as i32;
        }
    }
}
