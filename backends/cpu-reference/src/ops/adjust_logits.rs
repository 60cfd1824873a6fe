//! `adjust_logits`: biases, then penalties for tokens that have occurred, in place.

use std::ops::Range;

use deepinfer_plugin_api::generated::AdjustLogitsArgs;
use deepinfer_plugin_api::sdk::tensor::Rows;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::arguments::index;
use crate::parallel;

deepinfer_plugin_api::kernel!(AdjustLogits, adjust_logits);

const OP: &str = "adjust_logits";

/// The penalties of a row.
struct Penalties {
    repetition: f32,
    inv_repetition: f32,
    frequency: f32,
    presence: f32,
}

impl Penalties {
    /// The logit of a token that occurred, `count` times in the output.
    fn apply(&self, logit: f32, count: i32) -> f32 {
        let logit = logit * if logit > 0.0 { self.inv_repetition } else { self.repetition };
        if count > 0 { logit - (self.frequency * count as f32 + self.presence) } else { logit }
    }
}

/// One row: where its lists lie.
struct RowLists {
    biases: Range<usize>,
    seen: Range<usize>,
    penalties: Penalties,
}

fn adjust_logits(_: &Cx<'_>, mut a: AdjustLogitsArgs<'_>) -> Result<(), Fault> {
    let rows = row_lists(&a)?;
    let (bias_token, bias_value) = (a.bias_token.slice::<i32>()?, a.bias_value.slice::<f32>()?);
    let (seen_token, seen_count) = (a.seen_token.slice::<i32>()?, a.seen_count.slice::<i32>()?);
    let longest = rows.iter().map(|row| row.biases.len() + row.seen.len()).max().unwrap_or(0);
    parallel::for_each_row(a.logits.rows_mut::<f32>()?, 2 * longest, |n, logits| {
        let RowLists { biases, seen, penalties } = &rows[n];
        for (&token, value) in bias_token[biases.clone()].iter().zip(&bias_value[biases.clone()]) {
            logits[token as usize] += value;
        }
        for (&token, &count) in seen_token[seen.clone()].iter().zip(&seen_count[seen.clone()]) {
            let logit = &mut logits[token as usize];
            *logit = penalties.apply(*logit, count);
        }
    });
    Ok(())
}

/// The lists and penalties of each row, checked.
fn row_lists(a: &AdjustLogitsArgs<'_>) -> Result<Vec<RowLists>, Fault> {
    let vocabulary = a.dims.v;
    let (bias_range, seen_range) = (a.bias_range.rows::<i32>()?, a.seen_range.rows::<i32>()?);
    let (bias_token, bias_value) = (a.bias_token.slice::<i32>()?, a.bias_value.slice::<f32>()?);
    let (seen_token, seen_count) = (a.seen_token.slice::<i32>()?, a.seen_count.slice::<i32>()?);
    let [repetition, inv_repetition] = [a.repetition.slice::<f32>()?, a.inv_repetition.slice::<f32>()?];
    let [frequency, presence] = [a.frequency.slice::<f32>()?, a.presence.slice::<f32>()?];
    let row = |n: usize| {
        let biases = list("bias_range", "bias_token", n, &bias_range, bias_token, vocabulary)?;
        let seen = list("seen_range", "seen_token", n, &seen_range, seen_token, vocabulary)?;
        for i in biases.clone() {
            real("bias_value", i, bias_value[i], "finite or -infinity", bias_value[i] < f32::INFINITY)?;
        }
        for i in seen.clone() {
            // Any number that is not negative.
            index(OP, "seen_count", &[i], seen_count[i], 1 << 31)?;
        }
        for (name, factor) in [("repetition", repetition[n]), ("inv_repetition", inv_repetition[n])] {
            real(name, n, factor, "above 0 and finite", factor > 0.0 && factor.is_finite())?;
        }
        for (name, penalty) in [("frequency", frequency[n]), ("presence", presence[n])] {
            real(name, n, penalty, "finite", penalty.is_finite())?;
        }
        let penalties = Penalties {
            repetition: repetition[n],
            inv_repetition: inv_repetition[n],
            frequency: frequency[n],
            presence: presence[n],
        };
        Ok(RowLists { biases, seen, penalties })
    };
    (0..a.dims.n).map(row).collect()
}

/// The list of row `n`, of tokens that ascend strictly.
fn list(
    range: &str,
    token: &str,
    n: usize,
    ranges: &Rows<'_, i32>,
    tokens: &[i32],
    vocabulary: usize,
) -> Result<Range<usize>, Fault> {
    let [first, end] = [ranges.row(n)[0], ranges.row(n)[1]];
    let end = index(OP, range, &[n, 1], end, tokens.len() + 1)?;
    let first = index(OP, range, &[n, 0], first, end + 1)?;
    for i in first..end {
        index(OP, token, &[i], tokens[i], vocabulary)?;
        if i > first && tokens[i] <= tokens[i - 1] {
            return Err(Fault::invalid(format!(
                "{OP}: {token}[{i}] is {} after {}, but the tokens of a row's list must ascend strictly",
                tokens[i],
                tokens[i - 1]
            )));
        }
    }
    Ok(first..end)
}

fn real(name: &str, at: usize, value: f32, rule: &str, is_right: bool) -> Result<(), Fault> {
    match is_right {
        true => Ok(()),
        false => Err(Fault::invalid(format!("{OP}: {name}[{at}] is {value}, but must be {rule}"))),
    }
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::generated::AdjustLogits;

    use crate::testing::{Tensor, call};

    /// The arguments beside the logits, for rows of four tokens.
    #[derive(Clone)]
    struct Lists {
        bias_range: Vec<i32>,
        biases: Vec<(i32, f32)>,
        /// Repetition, its inverse, frequency, presence.
        penalties: Vec<[f32; 4]>,
        seen_range: Vec<i32>,
        seen: Vec<(i32, i32)>,
    }

    const OFF: [f32; 4] = [1.0, 1.0, 0.0, 0.0];

    impl Lists {
        fn of_one_row(biases: &[(i32, f32)], penalties: [f32; 4], seen: &[(i32, i32)]) -> Self {
            Self {
                bias_range: vec![0, biases.len() as i32],
                biases: biases.to_vec(),
                penalties: vec![penalties],
                seen_range: vec![0, seen.len() as i32],
                seen: seen.to_vec(),
            }
        }

        fn run(&self, logits: &mut Tensor) -> Result<Vec<f32>, String> {
            let n = self.penalties.len();
            let ranges = [&self.bias_range, &self.seen_range].map(|range| Tensor::i32(&[n, 2], range));
            let ints = |values: Vec<i32>| Tensor::i32(&[values.len()], &values);
            let floats = |values: Vec<f32>| Tensor::f32(&[values.len()], &values);
            let (bias_token, bias_value): (Vec<_>, Vec<_>) = self.biases.iter().copied().unzip();
            let (seen_token, seen_count): (Vec<_>, Vec<_>) = self.seen.iter().copied().unzip();
            let (bias_token, bias_value) = (ints(bias_token), floats(bias_value));
            let (seen_token, seen_count) = (ints(seen_token), ints(seen_count));
            let penalties = [0, 1, 2, 3].map(|i| floats(self.penalties.iter().map(|p| p[i]).collect()));
            call::<AdjustLogits>(|a| {
                (a.logits, a.bias_range, a.seen_range) = (logits.output(), ranges[0].input(), ranges[1].input());
                (a.bias_token, a.bias_value) = (bias_token.input(), bias_value.input());
                (a.repetition, a.inv_repetition) = (penalties[0].input(), penalties[1].input());
                (a.frequency, a.presence) = (penalties[2].input(), penalties[3].input());
                (a.seen_token, a.seen_count) = (seen_token.input(), seen_count.input());
            })?;
            Ok(logits.floats())
        }

        fn run_row(&self, logits: [f32; 4]) -> Vec<f32> {
            self.run(&mut Tensor::f32(&[1, 4], &logits)).unwrap()
        }
    }

    #[test]
    fn biases_come_before_penalties() {
        let lists = Lists::of_one_row(&[(0, -3.0), (2, f32::NEG_INFINITY)], [2.0, 0.5, 0.0, 0.0], &[(0, 0), (1, 0)]);
        // 1 - 3 is negative: times 2. Penalties first would give 1 / 2 - 3.
        assert_eq!(lists.run_row([1.0, 3.0, 5.0, -1.0]), [-4.0, 1.5, f32::NEG_INFINITY, -1.0]);
    }

    #[test]
    fn counts_of_the_output_are_penalised() {
        let lists = Lists::of_one_row(&[], [1.0, 1.0, 0.25, 0.5], &[(0, 0), (1, 1), (3, 4)]);
        assert_eq!(lists.run_row([1.0; 4]), [1.0, 0.25, 1.0, -0.5]);
        // Banned tokens stay banned, zeros keep their sign, and a NaN stays one.
        let banned = lists.run_row([-0.0, f32::NEG_INFINITY, 0.0, f32::NAN]);
        assert_eq!((banned[0].to_bits(), banned[1]), ((-0.0f32).to_bits(), f32::NEG_INFINITY));
        assert!(banned[3].is_nan());
    }

    /// Each operation rounds by itself: a fused one, or another order, would show in some of the values.
    #[test]
    fn every_operation_is_rounded() {
        let (frequency, presence, logit) = (0.1f32, 0.7f32, 1.3f32);
        let round = |exact: f64| exact as f32;
        let (mut fused_differ, mut others_differ) = (0, 0);
        for count in 1..100 {
            // The products and sums are exact in F64, or nearly so: they do not lie near the middle between two F32.
            let product = round(f64::from(frequency) * f64::from(count));
            let penalty = round(f64::from(product) + f64::from(presence));
            let wanted = round(f64::from(logit) - f64::from(penalty));
            let lists = Lists::of_one_row(&[], [1.0, 1.0, frequency, presence], &[(2, count)]);
            assert_eq!(lists.run_row([0.0, 0.0, logit, 0.0])[2].to_bits(), wanted.to_bits());
            fused_differ += usize::from(wanted != logit - frequency.mul_add(count as f32, presence));
            others_differ += usize::from(wanted != logit - product - presence);
        }
        assert!(fused_differ > 0 && others_differ > 0, "the values tell nothing");
    }

    #[test]
    fn rows_have_their_own_lists_anywhere() {
        let lists = Lists {
            bias_range: vec![3, 4, 0, 0, 1, 3],
            biases: vec![(9999, 0.0), (0, 1.0), (3, 2.0), (1, -1.0)],
            penalties: vec![OFF, [2.0, 0.5, 0.0, 0.0], OFF],
            seen_range: vec![0, 0, 0, 2, 0, 2],
            seen: vec![(0, 1), (3, 0)],
        };
        let mut logits = Tensor::f32(&[3, 4], &[1.0; 12]).padded(2);
        lists.run(&mut logits).unwrap();
        let rows: Vec<f32> = logits.floats();
        assert_eq!(rows[..4], [1.0, 0.0, 1.0, 1.0]);
        assert_eq!(rows[6..10], [0.5, 1.0, 1.0, 0.5]);
        assert_eq!(rows[12..16], [2.0, 1.0, 1.0, 3.0]);
    }

    #[test]
    fn refusals() {
        let good = Lists::of_one_row(&[(0, 1.0), (2, 1.0)], OFF, &[(1, 0), (2, 5)]);
        let refused = |change: fn(&mut Lists), part: &str| {
            let mut bad = good.clone();
            change(&mut bad);
            let mut logits = Tensor::f32(&[1, 4], &[1.0; 4]);
            let message = bad.run(&mut logits).unwrap_err();
            assert!(message.contains(part), "{message}");
            assert_eq!(logits.floats(), [1.0; 4], "refused, and yet written");
        };
        refused(
            |l| l.biases[1].0 = 0,
            "bias_token[1] is 0 after 0, but the tokens of a row's list must ascend strictly",
        );
        refused(|l| l.seen[0].0 = 3, "seen_token[1] is 2 after 3");
        refused(|l| l.seen[1].0 = 4, "seen_token[1] is 4, but must be at least 0 and below 4");
        refused(|l| l.seen[1].1 = -1, "seen_count[1] is -1");
        refused(|l| l.biases[0].1 = f32::NAN, "bias_value[0] is NaN, but must be finite or -infinity");
        refused(|l| l.biases[0].1 = f32::INFINITY, "bias_value[0] is inf");
        refused(|l| l.bias_range[1] = 3, "bias_range[0, 1] is 3, but must be at least 0 and below 3");
        refused(|l| l.seen_range = vec![2, 1], "seen_range[0, 0] is 2, but must be at least 0 and below 2");
        refused(|l| l.seen_range[0] = -1, "seen_range[0, 0] is -1");
        refused(|l| l.penalties[0][0] = 0.0, "repetition[0] is 0, but must be above 0 and finite");
        refused(|l| l.penalties[0][1] = f32::INFINITY, "inv_repetition[0] is inf");
        refused(|l| l.penalties[0][2] = f32::NAN, "frequency[0] is NaN, but must be finite");
        refused(|l| l.penalties[0][3] = f32::NEG_INFINITY, "presence[0] is -inf");
    }
}
