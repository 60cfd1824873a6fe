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
