//! `fused_sample`: the next token of each row, by the Gumbel-max rule or greedily, over what the filters leave.
//!
//! Only F32 products, sums and comparisons, and the integer arithmetic of noise and weights. A column whose noise cannot lift it
//! above the best one so far is passed over before its noise is computed: with the random integer at hand, its leading
//! zeros bound the noise. That leaves a few logarithms per row. A block of columns that no noise can lift is passed over as
//! a whole, and so is one that the filters drop.

use deepinfer_plugin_api::generated::FusedSampleArgs;
use deepinfer_plugin_api::numerics::gumbel::{self, Domain};
use deepinfer_plugin_api::numerics::sampling::{Draw, TOP_P_VOCABULARY};
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::arguments::index;
use crate::filters::{Cut, Row, Scratch, Work};
use crate::parallel;

deepinfer_plugin_api::kernel!(FusedSample, fused_sample);

const OP: &str = "fused_sample";

fn fused_sample(_: &Cx<'_>, mut a: FusedSampleArgs<'_>) -> Result<(), Fault> {
    let draws = draws(&a)?;
    let logits = a.logits.rows::<f32>()?;
    let tokens: Vec<&mut i32> = a.token.slice_mut::<i32>()?.iter_mut().collect();
    // Nanoseconds of a column without a filter, and with the one that needs a weight of each.
    let cost_ns = if a.top_p.is_some() { 10 } else { 4 };
    parallel::for_each_row_with(tokens, cost_ns * a.dims.v, Scratch::default, |scratch, n, token| {
        *token = match Row::new(logits.row(n), scratch) {
            None => -1,
            Some((row, _)) if draws[n].inv_temperature == 0.0 => row.argmax() as i32,
            Some((row, work)) => {
                let cut = cut(&row, &draws[n], work);
                draw(&row, &draws[n], cut) as i32
            }
        };
    });
    Ok(())
}

/// The arguments of each row, checked.
fn draws(a: &FusedSampleArgs<'_>) -> Result<Vec<Draw>, Fault> {
    let (seed, position) = (a.seed.slice::<i64>()?, a.position.slice::<i32>()?);
    let inv_temperature = a.inv_temperature.slice::<f32>()?;
    let child = a.child.as_ref().map(|child| child.slice::<i32>()).transpose()?;
    let min_p_log = a.min_p_log.as_ref().map(|min_p| min_p.slice::<f32>()).transpose()?;
    let top_k = a.top_k.as_ref().map(|top_k| top_k.slice::<i32>()).transpose()?;
    let top_p = a.top_p.as_ref().map(|top_p| top_p.slice::<f32>()).transpose()?;
    if top_p.is_some() && a.dims.v > TOP_P_VOCABULARY {
        return Err(Fault::invalid(format!(
            "{OP}: top_p is given with {} columns of logits, but sums at most {TOP_P_VOCABULARY} weights",
            a.dims.v
        )));
    }
    // Any number that is not negative.
    let natural = |name: &str, n: usize, value: i32| index(OP, name, &[n], value, 1 << 31);
    let real = |name: &str, n: usize, value: f32, rule: &str, is_right: bool| match is_right {
        true => Ok(value),
        false => Err(Fault::invalid(format!("{OP}: {name}[{n}] is {value}, but must be {rule}"))),
    };
    let row = |n: usize| {
        let scale = inv_temperature[n];
        let mut draw = Draw::unfiltered(
            real("inv_temperature", n, scale, "finite and at least 0", scale >= 0.0 && scale.is_finite())?,
            seed[n] as u64,
            natural("position", n, position[n])? as u32,
        );
        if let Some(child) = child {
            draw.child = natural("child", n, child[n])? as u32;
        }
        if let Some(min_p_log) = min_p_log {
            draw.min_p_log = real("min_p_log", n, min_p_log[n], "at most 0", min_p_log[n] <= 0.0)?;
        }
        if let Some(top_k) = top_k {
            draw.top_k = natural("top_k", n, top_k[n])? as u32;
        }
        if let Some(top_p) = top_p {
            let rule = "above 0 and at most 1";
            draw.top_p = real("top_p", n, top_p[n], rule, top_p[n] > 0.0 && top_p[n] <= 1.0)?;
        }
        Ok(draw)
    };
    (0..a.dims.n).map(row).collect()
}

/// What the filters leave.
fn cut(row: &Row<'_>, draw: &Draw, work: &mut Work) -> Cut {
    let scale = draw.inv_temperature;
    let mut cut = row.min_p(scale, draw.min_p_log);
    if draw.top_k > 0 {
        cut = row.top_k(scale, draw.top_k as usize, cut, work);
    }
    if draw.top_p < 1.0 {
        cut = row.top_p(scale, draw.top_p, cut, work);
    }
    cut
}

/// The lowest of the columns up to the cut with the largest `logit * inv_temperature + noise`.
fn draw(row: &Row<'_>, draw: &Draw, cut: Cut) -> usize {
    const LANES: usize = 4;
    let (mut best, mut token) = (None, 0);
    for (first, logits, top) in row.blocks(draw.inv_temperature, cut) {
        // Rounding is monotonic: what the bound cannot lift above the best, the noise cannot.
        let is_beaten = |best: Option<f32>, score: f32, bound: f32| best.is_some_and(|best| score + bound <= best);
        if is_beaten(best, top, NOISE_BOUND[32]) {
            continue;
        }
        for (column, logits) in (first..).step_by(LANES).zip(logits.chunks(LANES)) {
            let block = (column / LANES) as u32;
            let lanes = gumbel::lanes(draw.seed, draw.position, block, Domain::TargetDraw, draw.child);
            for ((column, &logit), lane) in (column..).zip(logits).zip(lanes) {
                let score = logit * draw.inv_temperature;
                let bound = NOISE_BOUND[lane.leading_zeros() as usize];
                if is_beaten(best, score, bound) || logit == f32::NEG_INFINITY || !cut.keeps(score, column) {
                    continue;
                }
                let value = score + gumbel::from_lane(lane);
                if best.is_none_or(|best| value > best) {
                    (best, token) = (Some(value), column);
                }
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

    /// A call with filters.
    fn run_filtered(logits: &Tensor, draws: &[Draw]) -> Result<Vec<i32>, String> {
        let n = [draws.len()];
        let floats = |f: fn(&Draw) -> f32| Tensor::f32(&n, &draws.iter().map(f).collect::<Vec<_>>());
        let ints = |f: fn(&Draw) -> u32| Tensor::i32(&n, &draws.iter().map(|d| f(d) as i32).collect::<Vec<_>>());
        let scale = floats(|d| d.inv_temperature);
        let (min_p_log, top_p) = (floats(|d| d.min_p_log), floats(|d| d.top_p));
        let (position, child, top_k) = (ints(|d| d.position), ints(|d| d.child), ints(|d| d.top_k));
        let seed = Tensor::i64(&n, &draws.iter().map(|d| d.seed as i64).collect::<Vec<_>>());
        let mut token = Tensor::unwritten(Format::I32, &n);
        call::<FusedSample>(|a| {
            (a.logits, a.inv_temperature, a.seed) = (logits.input(), scale.input(), seed.input());
            (a.position, a.token, a.child) = (position.input(), token.output(), child.input());
            (a.min_p_log, a.top_k, a.top_p) = (min_p_log.input(), top_k.input(), top_p.input());
        })?;
        Ok(token.ints())
    }

    /// A call without the optional arguments.
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

    /// By the definition, which sorts all columns and computes the noise of each.
    fn by_definition(logits: &[f32], draw: &Draw) -> i32 {
        draw.token(logits, &mut vec![0; logits.len()]).map_or(-1, |token| token as i32)
    }

    fn plain(logits: &[f32], scale: f32, seed: u64, position: u32) -> i32 {
        by_definition(logits, &Draw::unfiltered(scale, seed, position))
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

    /// Rows with all kinds of filters side by side, each as the definition has it.
    #[test]
    fn filtered_rows_equal_the_definition() {
        const V: usize = 1500;
        let draws: Vec<Draw> = (0..240)
            .map(|n| Draw {
                inv_temperature: [1.0, 2.5, 0.0, 0.4][n % 4],
                seed: (n as u64).wrapping_mul(0x0123_4567_89AB_CDEF),
                position: n as u32,
                child: n as u32 % 3,
                min_p_log: [f32::NEG_INFINITY, -1.5, -0.0][n / 4 % 3],
                top_k: [0, 1, 50, 2000][n / 12 % 4],
                top_p: [1.0, 0.9, 0.2, 1e-9, 0.999_999][n / 48 % 5],
            })
            .collect();
        let mut logits: Vec<f32> = random::floats(71, draws.len() * V).iter().map(|v| v * 4.0).collect();
        // Every other row has ties.
        logits.chunks_mut(V).step_by(2).for_each(|row| row.iter_mut().for_each(|v| *v = v.round()));
        let ours = run_filtered(&Tensor::f32(&[draws.len(), V], &logits).padded(3), &draws).unwrap();
        for ((row, draw), token) in logits.chunks(V).zip(&draws).zip(ours) {
            assert_eq!(token, by_definition(row, draw), "{draw:?}");
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

        let draw = Draw::unfiltered(1.0, 0, 0);
        let refused = |bad: Draw| run_filtered(&logits, &[draw, bad]).unwrap_err();
        assert!(refused(Draw { child: u32::MAX, ..draw }).contains("child[1] is -1"));
        assert!(refused(Draw { top_k: u32::MAX, ..draw }).contains("top_k[1] is -1"));
        for bad in [0.1, f32::NAN] {
            assert!(refused(Draw { min_p_log: bad, ..draw }).contains("must be at most 0"));
        }
        for bad in [0.0, -0.5, 1.5, f32::NAN] {
            assert!(refused(Draw { top_p: bad, ..draw }).contains("must be above 0 and at most 1"));
        }
        let wide = Tensor::f32(&[1, TOP_P_VOCABULARY + 1], &vec![0.0; TOP_P_VOCABULARY + 1]);
        assert!(run_filtered(&wide, &[draw]).unwrap_err().contains("at most 131072 weights"));
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
