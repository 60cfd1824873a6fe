//! Angular frequencies of the rotary embedding.

use std::f64::consts::PI;

use crate::config::ModelConfig;

/// Frequencies of a layer that reads only its window: base `rope_theta`, unscaled.
pub fn window_frequencies(config: &ModelConfig) -> Vec<f32> {
    frequencies(config.qk_rope_head_dim, config.rope_theta)
}

/// Frequencies of a layer that reads compressed entries: base `compress_rope_theta`, scaled by YaRN at every length.
///
/// Channels that turn more than `beta_fast` times over the original context keep their frequency, those that turn less
/// than `beta_slow` times are slowed by `factor`, and between them the two are blended linearly.
pub fn compressed_frequencies(config: &ModelConfig) -> Vec<f32> {
    let (dim, theta, scaling) = (config.qk_rope_head_dim, config.compress_rope_theta, &config.rope_scaling);
    let plain = frequencies(dim, theta);
    if scaling.original_max_position_embeddings == 0 {
        return plain;
    }
    // The channel pair that turns `turns` times over the original context.
    let pair_of = |turns: f64| {
        let original = scaling.original_max_position_embeddings as f64;
        dim as f64 * (original / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln())
    };
    let low = pair_of(scaling.beta_fast).floor().max(0.0);
    let high = pair_of(scaling.beta_slow).ceil().min(dim as f64 - 1.0);
    let width = (high - low).max(1e-3) as f32;
    let factor = scaling.factor as f32;
    plain
        .iter()
        .enumerate()
        .map(|(pair, &f)| {
            let ramp = ((pair as f32 - low as f32) / width).clamp(0.0, 1.0);
            f / factor * ramp + f * (1.0 - ramp)
        })
        .collect()
}

/// `theta^(-2i / dim)` for each pair i, with the exponent and both results rounded to F32 as in training.
fn frequencies(dim: usize, theta: f64) -> Vec<f32> {
    (0..dim / 2)
        .map(|pair| {
            let exponent = (2 * pair) as f32 / dim as f32;
            1.0 / theta.powf(f64::from(exponent)) as f32
        })
        .collect()
}
