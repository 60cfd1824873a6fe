//! The numerical authority: one plain function per op, on the host's processor.
//!
//! - `ops`: one file per op, named after it; the meaning of each op is `plugin-api/OPS.md`.
//! - `sum`: the order in which every sum of this backend is taken; `matmul`: products of matrices in that order; `blend`:
//!   weighted sums of rows, channel by channel.
//! - `simd`: one loop for several vector widths; `parallel`: work over independent rows.
//! - `cache`, `weights`: the stored formats of cache entries and weights, decoded to F32.
//! - `float`: F32 and BF16 as a type parameter; `scalar`: the sigmoid and its kin in F64; `exp`: the exponential of
//!   attention.
//! - `arguments`, `requests`: checks that shapes cannot make.
//! - `cpu`, `stream`, `memory`: the device.
//!
//! What every kernel promises:
//! - Sums are taken in F64, in an order that the length alone decides. A product of two F32 values is exact in F64, so
//!   a sum of products has the error of the F64 additions only, and the same bits with or without fused multiply-add.
//! - A result is rounded to F32 and then, if the output is BF16, to BF16.
//! - A row depends on its own inputs: not on other rows, on the number of threads or on the processor's vector width.
//! - Arguments are checked before anything is written: a call that fails has changed nothing.

#![deny(unsafe_code)]

mod arguments;
mod blend;
mod cache;
mod cpu;
mod exp;
mod filters;
mod float;
#[cfg(test)]
mod golden;
mod matmul;
mod memory;
mod ops;
mod order;
mod parallel;
#[cfg(test)]
mod random;
mod requests;
mod scalar;
mod simd;
mod stream;
mod sum;
#[cfg(test)]
mod testing;
mod weights;

pub use cpu::{Cpu, CpuReference};
pub use stream::Stream;

deepinfer_plugin_api::export_backend!(CpuReference, profile = "v41-text");
