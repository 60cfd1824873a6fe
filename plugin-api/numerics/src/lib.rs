//! Number formats and exact arithmetic shared by the core and every backend.
//!
//! The crate is the written meaning of each stored format of DeepSeek-V4.1-Flash: how a value becomes bits and which
//! value the bits stand for. A kernel may compute in any way it likes as long as it produces these bits.
//!
//! | module | format | used for |
//! |---|---|---|
//! | [`bf16`] | bfloat16 | residual stream, unquantised weights |
//! | [`e4m3`] | FP8, 1-4-3 | linear inputs, dense weights, window entries |
//! | [`e2m1`], [`pack`] | FP4, 1-2-1, two per byte | expert weights, compressed KV, index keys |
//! | [`ue8m0`], [`scale`] | power-of-two scale byte and the three scale rules | every quantised tensor |
//! | [`group`] | one scale per 32 or 16 neighbours | activations, caches, expert weights |
//! | [`block`] | one scale per 32 x 32 tile | dense weights |
//! | [`philox`], [`fixed_log`], [`gumbel`] | counter-based noise with integer logarithms | drawing a token |
//! | [`fixed_exp`], [`sampling`] | integer exponentials; the whole draw, with its filters | drawing a token |
//!
//! Design choices:
//! - No dependency, no allocation, no thread, no `unsafe`: backends and tools outside this repository can link it.
//! - Each function uses integer operations and IEEE 754 binary32 operations with one rounding each, so its result is the
//!   same bits on every machine. No function contracts a product and a sum into one operation.
//! - Rounding is to nearest, ties to even, everywhere. Overflow saturates, because the formats have no infinity.
//! - Slice lengths are preconditions: a mismatch is a bug in the caller and panics with both lengths.
//!
//! ```
//! use deepinfer_numerics::group;
//!
//! let x: Vec<f32> = (0..64).map(|i| i as f32 - 31.5).collect();
//! let (mut codes, mut scales, mut back) = ([0; 64], [0; 2], [0.0; 64]);
//! group::quantize_fp8(&x, &mut codes, &mut scales);
//! group::dequantize_fp8(&codes, &scales, &mut back);
//! assert!(x.iter().zip(&back).all(|(x, y)| (x - y).abs() <= x.abs() / 16.0));
//! ```

#![forbid(unsafe_code)]

pub mod bf16;
pub mod block;
pub mod e2m1;
pub mod e4m3;
pub mod fixed_exp;
pub mod fixed_log;
pub mod group;
pub mod gumbel;
pub mod pack;
pub mod philox;
pub mod sampling;
pub mod scale;
pub mod ue8m0;

pub use bf16::Bf16;
pub use group::Fp4Scale;
pub use gumbel::Domain;
