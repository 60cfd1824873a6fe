//! `fused_sample`: the next token of each row, by the Gumbel-max rule or greedily.
//!
//! Only F32 products, sums and comparisons, and the integer arithmetic of the noise. A column whose noise cannot lift it
//! above the best one so far is passed over before its noise is computed: with the random integer at hand, its leading
//! zeros bound the noise. That leaves a few logarithms per row.

use deepinfer_plugin_api::generated::FusedSampleArgs;
use deepinfer_plugin_api::numerics::gumbel::{self, Domain};
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::arguments::index;
use crate::parallel;

deepinfer_plugin_api::kernel!(FusedSample, fused_sample);

const OP: &str = "fused_sample";

fn fused_sample(_: &Cx<'_>, mut a: FusedSampleArgs<'_>) -> Result<(), Fault> {
    let (logits, seed) = (a.logits.rows::<f32>()?, a.seed.slice::<i64>()?);
    let (inv_temperature, position) = (a.inv_temperature.slice::<f32>()?, a.position.slice::<i32>()?);
    for n in 0..a.dims.n {
        index(OP, "position", &[n], position[n], i32::MAX as usize)?;
        if !(inv_temperature[n] >= 0.0 && inv_temperature[n].is_finite()) {
            return Err(Fault::invalid(format!(
                "{OP}: inv_temperature[{n}] is {}, but must be finite and at least 0",
                inv_temperature[n]
            )));
        }
    }
    let tokens: Vec<&mut i32> = a.token.slice_mut::<i32>()?.iter_mut().collect();
    parallel::for_each_row(tokens, 4 * a.dims.v, |n, token| {
        let logits = logits.row(n);
        *token = match inv_temperature[n] {
            _ if !can_draw(logits) => -1,
            0.0 => argmax(logits),
            scale => draw(logits, scale, seed[n] as u64, position[n] as u32),
        };
    });
    Ok(())
}

/// Whether a row has a finite logit and neither NaN nor +infinity.
fn can_draw(logits: &[f32]) -> bool {
    logits.iter().all(|&logit| logit < f32::INFINITY) && logits.iter().any(|&logit| logit > f32::NEG_INFINITY)
}

/// The lowest column of the largest logit.
fn argmax(logits: &[f32]) -> i32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
    logits.iter().position(|&logit| logit == largest).map_or(-1, |v| v as i32)
}

/// The lowest column of the largest `logit * scale + noise`.
fn draw(logits: &[f32], scale: f32, seed: u64, position: u32) -> i32 {
    let (mut best, mut token) = (None, -1);
    for (block, logits) in (0..).zip(logits.chunks(4)) {
        let lanes = gumbel::lanes(seed, position, block, Domain::TargetDraw, 0);
        for (i, (&logit, lane)) in logits.iter().zip(lanes).enumerate() {
            let scaled = logit * scale;
            // Rounding is monotonic: what the bound cannot lift above the best, the noise cannot.
            if best.is_some_and(|best| scaled + NOISE_BOUND[lane.leading_zeros() as usize] <= best) {
                continue;
            }
            let value = scaled + gumbel::from_lane(lane);
            if best.is_none_or(|best| value > best) {
                (best, token) = (Some(value), 4 * block as i32 + i as i32);
            }
        }
    }
    token
}

/// The largest noise of a random integer by its leading zeros: that of the smallest such integer, since the noise falls
/// as the integer grows.
const NOISE_BOUND: [f32; 33] = {
    let mut bound = [0.0; 33];
    let mut zeros = 0;
    while zeros <= 32 {
        bound[zeros] = gumbel::from_lane(if zeros == 32 { 0 } else { 1 << (31 - zeros) });
        zeros += 1;
    }
    bound
};

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::generated::FusedSample;

    use super::*;
    use crate::random;
    use crate::testing::{Tensor, call};

    fn run(logits: &Tensor, scale: &[f32], seed: &[i64], position: &[i32]) -> Result<Vec<i32>, String> {
        let n = scale.len();
        let (scale, seed, position) = (Tensor::f32(&[n], scale), Tensor::i64(&[n], seed), Tensor::i32(&[n], position));
        let mut token = Tensor::unwritten(Format::I32, &[n]);
        call::<FusedSample>(|a| {
            (a.logits, a.inv_temperature, a.seed) = (logits.input(), scale.input(), seed.input());
            (a.position, a.token) = (position.input(), token.output());
        })?;
        Ok(token.ints())
    }

    fn greedy(logits: &[f32]) -> i32 {
        run(&Tensor::f32(&[1, logits.len()], logits), &[0.0], &[0], &[0]).unwrap()[0]
    }

    /// By the definition, with the noise of every column.
    fn plain(logits: &[f32], scale: f32, seed: u64, position: u32) -> i32 {
        let noise = |v: usize| gumbel::noise(seed, position, v as u32, Domain::TargetDraw, 0);
        let values: Vec<f32> = logits.iter().enumerate().map(|(v, &logit)| logit * scale + noise(v)).collect();
        let best = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        values.iter().position(|&value| value == best).unwrap() as i32
    }

    #[test]
    fn equals_the_definition() {
        const V: usize = 1023;
        for (scale, spread) in [(1.0, 1.0), (0.3, 5.0), (1e-30, 1.0), (3.0, 9.0), (1e30, 1e30), (1.0, 0.0)] {
            let logits: Vec<f32> = random::floats(70, 40 * V).iter().map(|v| v * spread).collect();
            let scales = [scale; 40];
            let seeds: Vec<i64> = (0..40).map(|n| (n - 20) * 0x0123_4567_89AB_CDEF).collect();
            let positions: Vec<i32> = (0..40).map(|n| n * n * 1000).collect();
            let ours = run(&Tensor::f32(&[40, V], &logits).padded(1), &scales, &seeds, &positions).unwrap();
            for (n, row) in logits.chunks(V).enumerate() {
                assert_eq!(ours[n], plain(row, scale, seeds[n] as u64, positions[n] as u32), "scale {scale}, row {n}");
            }
        }
    }

    /// F32 values near 1e8 lie 8 apart, so that much of the noise rounds to the same sum.
    #[test]
    fn equal_sums_go_to_the_lowest_column() {
        let logits = [1e8; 20];
        for position in 0..200 {
            let ours = run(&Tensor::f32(&[1, 20], &logits), &[1.0], &[5], &[position]).unwrap();
            assert_eq!(ours, [plain(&logits, 1.0, 5, position as u32)]);
        }
    }

    #[test]
    fn masked_columns_are_never_drawn() {
        let mut logits = vec![f32::NEG_INFINITY; 50];
        logits[13] = -1e30;
        for position in 0..20 {
            assert_eq!(run(&Tensor::f32(&[1, 50], &logits), &[0.7], &[1], &[position]).unwrap(), [13]);
        }
    }

    /// Each column is drawn about as often as its probability says: within five standard deviations.
    #[test]
    fn frequencies_are_probabilities() {
        const DRAWS: i32 = 20_000;
        let probability = [0.5f32, 0.25, 0.125, 0.1, 0.025];
        let logits = Tensor::f32(&[1, 5], &probability.map(f32::ln));
        let mut counts = [0; 5];
        for position in 0..DRAWS {
            counts[run(&logits, &[1.0], &[99], &[position]).unwrap()[0] as usize] += 1;
        }
        for (count, p) in counts.into_iter().zip(probability) {
            let (mean, deviation) = (DRAWS as f32 * p, (DRAWS as f32 * p * (1.0 - p)).sqrt());
            assert!((count as f32 - mean).abs() < 5.0 * deviation, "{count} instead of {mean}");
        }
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        assert_eq!(greedy(&[1.0, 3.0, 3.0, 2.0]), 1);
        assert_eq!(greedy(&[-1.0, -0.0, 0.0]), 1);
        assert_eq!(greedy(&[f32::NEG_INFINITY, f32::MIN]), 1);
    }

    #[test]
    fn rows_without_a_distribution_give_minus_one() {
        let bad = [[f32::NAN, 1.0], [1.0, f32::INFINITY], [f32::NEG_INFINITY; 2]];
        let logits = Tensor::f32(&[3, 2], bad.as_flattened());
        for scale in [0.0, 1.0] {
            assert_eq!(run(&logits, &[scale; 3], &[1; 3], &[0; 3]).unwrap(), [-1; 3]);
        }
        assert_eq!(run(&Tensor::f32(&[1, 0], &[]), &[1.0], &[1], &[0]).unwrap(), [-1]);
        assert!(run(&Tensor::f32(&[0, 4], &[]), &[], &[], &[]).unwrap().is_empty());
    }

    #[test]
    fn refusals() {
        let logits = Tensor::f32(&[2, 1], &[1.0; 2]);
        for bad in [-1.0, f32::NAN, f32::INFINITY] {
            let message = run(&logits, &[1.0, bad], &[0; 2], &[0; 2]).unwrap_err();
            assert!(message.contains("inv_temperature[1] is"), "{message}");
        }
        assert!(run(&logits, &[1.0; 2], &[0; 2], &[0, -1]).unwrap_err().contains("position[1] is -1"));
    }

    /// The noise falls as its integer grows, so a class of integers is bounded by its smallest.
    #[test]
    fn bounds_hold() {
        for (zeros, bound) in NOISE_BOUND.into_iter().enumerate() {
            let low = if zeros == 32 { 0 } else { 1u32 << (31 - zeros) };
            assert_eq!(low.leading_zeros() as usize, zeros);
            let lanes = [low, low + low / 3, low + low / 2, low.saturating_mul(2).saturating_sub(1).max(low)];
            assert!(lanes.iter().all(|&lane| gumbel::from_lane(lane) <= bound));
            assert_eq!(gumbel::from_lane(low), bound);
        }
        assert!(NOISE_BOUND.is_sorted());
    }
}
