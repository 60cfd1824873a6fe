//! Repeatable random numbers for tests.

use deepinfer_plugin_api::numerics::gumbel::{self, Domain};

/// `count` values between -2 and 2, the same for the same seed.
pub(crate) fn floats(seed: u64, count: usize) -> Vec<f32> {
    let lanes = (0..).flat_map(|block| gumbel::lanes(seed, 0, block, Domain::TargetDraw, 0));
    lanes.take(count).map(|lane| lane as i32 as f32 / (1u32 << 30) as f32).collect()
}

/// `count` integers from 0 to `below` - 1.
pub(crate) fn indices(seed: u64, count: usize, below: u32) -> Vec<i32> {
    let lanes = (0..).flat_map(|block| gumbel::lanes(seed, 1, block, Domain::TargetDraw, 0));
    lanes.take(count).map(|lane| (lane % below) as i32).collect()
}
