//! `apply_token_mask`: -infinity where a bit mask has no bit, in place.

use deepinfer_plugin_api::generated::ApplyTokenMaskArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::parallel;

deepinfer_plugin_api::kernel!(ApplyTokenMask, apply_token_mask);

/// Tokens of a word.
const WORD: usize = 32;

fn apply_token_mask(_: &Cx<'_>, mut a: ApplyTokenMaskArgs<'_>) -> Result<(), Fault> {
    const OP: &str = "apply_token_mask";
    let (mask_index, masks) = (a.mask_index.slice::<i32>()?, a.masks.rows::<i32>()?);
    for (n, &mask) in mask_index.iter().enumerate() {
        if mask < -1 || mask >= 0 && mask as usize >= a.dims.q {
            return Err(Fault::invalid(format!(
                "{OP}: mask_index[{n}] is {mask}, but must be -1, or at least 0 and below {}",
                a.dims.q
            )));
        }
    }
    parallel::for_each_row(a.logits.rows_mut::<f32>()?, a.dims.v, |n, logits| {
        let Ok(mask) = usize::try_from(mask_index[n]) else { return };
        for (logits, &word) in logits.chunks_mut(WORD).zip(masks.row(mask)) {
            for (bit, logit) in logits.iter_mut().enumerate() {
                *logit = if word >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use deepinfer_plugin_api::generated::ApplyTokenMask;

    use crate::random;
    use crate::testing::{Tensor, call};

    fn run(logits: &mut Tensor, mask_index: &[i32], masks: &Tensor) -> Result<Vec<f32>, String> {
        let mask_index = Tensor::i32(&[mask_index.len()], mask_index);
        call::<ApplyTokenMask>(|a| {
            (a.logits, a.mask_index, a.masks) = (logits.output(), mask_index.input(), masks.input());
        })?;
        Ok(logits.floats())
    }

    #[test]
    fn a_cleared_bit_bans_its_token() {
        const V: usize = 70;
        let words = [1 << 5 | i32::MIN, -1, 0b10_0001, 0, 0, 0];
        let masks = Tensor::i32(&[2, 3], &words);
        let logits = random::floats(1, 3 * V);
        let ours = run(&mut Tensor::f32(&[3, V], &logits), &[0, -1, 1], &masks).unwrap();
        for (i, (&before, after)) in logits.iter().zip(ours).enumerate() {
            let (n, v) = (i / V, i % V);
            let stays = n == 1 || n == 0 && (v == 5 || (31..65).contains(&v) || v == 69);
            assert_eq!(after, if stays { before } else { f32::NEG_INFINITY }, "row {n}, token {v}");
        }
    }

    #[test]
    fn what_stays_keeps_its_bits() {
        let nan = f32::from_bits(0xFFC1_2345);
        let masks = Tensor::i32(&[1, 1], &[0b101]);
        let ours = run(&mut Tensor::f32(&[1, 3], &[nan, nan, -0.0]), &[0], &masks).unwrap();
        let bits: Vec<u32> = ours.iter().map(|v| v.to_bits()).collect();
        assert_eq!(bits, [nan.to_bits(), f32::NEG_INFINITY.to_bits(), (-0.0f32).to_bits()]);
    }

    #[test]
    fn refusals() {
        let masks = Tensor::i32(&[1, 1], &[0]);
        for bad in [-2, 1] {
            let message = run(&mut Tensor::f32(&[2, 3], &[0.0; 6]), &[-1, bad], &masks).unwrap_err();
            assert!(message.contains(&format!("mask_index[1] is {bad}")), "{message}");
        }
    }
}
