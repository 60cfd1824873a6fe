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

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::generated::{Linear, MoeGate};

    use crate::golden::{Golden, assert_close};
    use crate::random;
    use crate::testing::{Tensor, call};

    /// The scalars of a call.
    #[derive(Clone, Copy)]
    struct Rule {
        scoring: u32,
        normalize: u32,
        route_scale: f32,
        k: usize,
    }

    /// Logits, bias, and the bias and mask of image positions.
    type Inputs<'a> = (&'a Tensor, &'a Tensor, Option<(&'a Tensor, &'a Tensor)>);

    fn run(rows: usize, rule: Rule, (logits, bias, image): Inputs<'_>) -> Result<(Vec<i32>, Vec<f32>), String> {
        let mut experts = Tensor::unwritten(Format::I32, &[rows, rule.k]);
        let mut weights = Tensor::unwritten(Format::F32, &[rows, rule.k]);
        call::<MoeGate>(|a| {
            (a.logits, a.bias) = (logits.input(), bias.input());
            if let Some((bias_vl, mask)) = image {
                (a.bias_vl, a.image_mask) = (bias_vl.input(), mask.input());
            }
            (a.scoring, a.normalize, a.route_scale) = (rule.scoring, rule.normalize, rule.route_scale);
            (a.experts, a.weights) = (experts.output(), weights.output());
        })?;
        Ok((experts.ints(), weights.floats()))
    }

    /// One row of logits without a bias.
    fn row(logits: &[f32], rule: Rule) -> Result<(Vec<i32>, Vec<f32>), String> {
        let bias = Tensor::f32(&[logits.len()], &vec![0.0; logits.len()]);
        run(1, rule, (&Tensor::f32(&[1, logits.len()], logits), &bias, None))
    }

    #[test]
    fn golden() {
        let file = Golden::open("moe");
        let (x, weight) = (Tensor::f32(&[12, 128], &file.f32("x")), Tensor::bf16(&[8, 128], &file.bf16("gate.weight")));
        let mut logits = Tensor::unwritten(Format::F32, &[12, 8]);
        call::<Linear>(|a| (a.x, a.weight, a.groups, a.out) = (x.input(), weight.input(), 1, logits.output())).unwrap();
        let vector = |name| Tensor::f32(&[8], &file.f32(name));
        let (bias, bias_vl) = (vector("gate.bias"), vector("gate.bias_vl"));
        let mask = Tensor::u8(&[12], &file.u8("image_mask"));
        let rule = Rule { scoring: 0, normalize: 1, route_scale: 1.5, k: 2 };
        for (part, image) in [("text", None), ("image", Some((&bias_vl, &mask)))] {
            let (experts, weights) = run(12, rule, (&logits, &bias, image)).unwrap();
            assert_eq!(experts, file.i32(&format!("{part}.experts")));
            assert_close(&weights, &file.f32(&format!("{part}.weights")), 1e-6, 0.0);
            // All experts, best first, without normalisation: the scores themselves.
            let all = Rule { normalize: 0, route_scale: 1.0, k: 8, ..rule };
            let (experts, weights) = run(12, all, (&logits, &bias, image)).unwrap();
            let scores = file.f32(&format!("{part}.scores"));
            let golden: Vec<f32> = experts.iter().zip(0..).map(|(&e, i)| scores[i / 8 * 8 + e as usize]).collect();
            assert_close(&weights, &golden, 1e-6, 0.0);
        }
    }

    #[test]
    fn score_functions() {
        let plain = Rule { scoring: 0, normalize: 0, route_scale: 2.0, k: 2 };
        let (experts, weights) = row(&[0.0, 100.0], plain).unwrap();
        assert_eq!((experts, weights[0]), (vec![1, 0], 20.0));
        assert_eq!(weights[1], (2.0 * 2f64.ln().sqrt()) as f32);
        assert_eq!(row(&[0.0, -200.0], Rule { scoring: 1, ..plain }).unwrap().1, [1.0, 0.0]);
        assert_eq!(row(&[3.0, 3.0], Rule { scoring: 2, ..plain }).unwrap().1, [1.0, 1.0]);
        let (_, normalised) = row(&[3.0, 3.0], Rule { normalize: 1, ..plain }).unwrap();
        assert_eq!(normalised, [1.0, 1.0]);
        // One expert is never normalised.
        assert_eq!(row(&[100.0, 0.0], Rule { normalize: 1, k: 1, ..plain }).unwrap().1, [20.0]);
    }

    /// By the definition: a stable sort of the biased scores.
    #[test]
    fn equal_values_go_to_the_lower_expert_and_nan_is_last() {
        let picks = random::indices(40, 50 * 24, 9);
        let value = |&i: &i32| if i == 8 { f32::NAN } else { [0.0, -0.0, 1.0, 1.5, -2.0][i as usize % 5] };
        let logits: Vec<f32> = picks.iter().map(value).collect();
        let rule = Rule { scoring: 0, normalize: 0, route_scale: 1.0, k: 7 };
        let bias = Tensor::f32(&[24], &[0.25; 24]);
        let (experts, _) = run(50, rule, (&Tensor::f32(&[50, 24], &logits), &bias, None)).unwrap();
        for (row, experts) in logits.chunks(24).zip(experts.chunks(7)) {
            let mut order: Vec<usize> = (0..24).collect();
            // The score rises with the logit, and NaN goes to the end.
            order.sort_by(|&a, &b| {
                row[a]
                    .is_nan()
                    .cmp(&row[b].is_nan())
                    .then(row[b].partial_cmp(&row[a]).unwrap_or(std::cmp::Ordering::Equal))
            });
            assert!(experts.iter().zip(order).all(|(&e, wanted)| e as usize == wanted));
        }
    }

    #[test]
    fn the_bias_chooses_but_does_not_weigh() {
        let logits = Tensor::f32(&[2, 3], &[1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
        let (bias, bias_vl) = (Tensor::f32(&[3], &[9.0, 0.0, 0.0]), Tensor::f32(&[3], &[0.0, 9.0, 0.0]));
        let mask = Tensor::u8(&[2], &[0, 1]);
        let rule = Rule { scoring: 1, normalize: 0, route_scale: 1.0, k: 1 };
        let (experts, weights) = run(2, rule, (&logits, &bias, Some((&bias_vl, &mask)))).unwrap();
        assert_eq!(experts, [0, 1]);
        assert_eq!(weights, [crate::scalar::sigmoid(1.0) as f32, crate::scalar::sigmoid(2.0) as f32]);
    }

    #[test]
    fn refusals_and_nothing() {
        let rule = Rule { scoring: 0, normalize: 0, route_scale: 1.0, k: 1 };
        assert!(row(&[1.0], Rule { scoring: 3, ..rule }).unwrap_err().contains("scoring is 3, but must be 0, 1 or 2"));
        assert!(row(&[1.0], Rule { normalize: 2, ..rule }).unwrap_err().contains("normalize is 2"));
        assert!(row(&[1.0], Rule { k: 2, ..rule }).unwrap_err().contains("2 columns, but there are only 1 experts"));
        let (logits, bias) = (Tensor::f32(&[0, 3], &[]), Tensor::f32(&[3], &[0.0; 3]));
        assert!(run(0, rule, (&logits, &bias, None)).is_ok());
    }
}
