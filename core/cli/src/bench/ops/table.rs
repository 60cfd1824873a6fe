//! The cases: ops at the sizes of DeepSeek-V4.1-Flash, as decoding and prefill call them.

mod attention;
mod cache;
mod engram;
mod experts;
mod linear;
mod rows;
mod sample;
mod select;

use super::case::{Case, Scale};

/// Width of the stream.
const HIDDEN: usize = 5120;
/// Copies of the stream.
const COPIES: usize = 4;
/// Channels of a key or value.
const HEAD: usize = 512;
/// Attention heads.
const HEADS: usize = 64;
/// Tokens of the vocabulary.
const VOCABULARY: usize = 129_280;

/// All of them, families in the order of the catalogue.
pub(super) fn cases(scale: Scale) -> Vec<Case> {
    [
        linear::cases(scale),
        experts::cases(scale),
        attention::cases(scale),
        select::cases(scale),
        cache::cases(scale),
        rows::cases(scale),
        engram::cases(scale),
        sample::cases(scale),
    ]
    .into_iter()
    .flatten()
    .collect()
}
