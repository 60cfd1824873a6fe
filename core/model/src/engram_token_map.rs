//! The map from token ids to the compressed ids that Engram hashes (model specification, Engram).
//!
//! Tokens that spell the same word with another case, accent or surrounding blank share a compressed id, so that one
//! n-gram row serves them all. The map follows from the tokenizer alone; a checkpoint may also carry it as
//! `engram_token_map.json`, a list with one compressed id per token id.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use thiserror::Error;
use tokenizers::normalizers::StripAccents;
use tokenizers::{NormalizedString, Normalizer};

use crate::files::without_byte_order_mark;
use crate::tokenizer::Tokenizer;

/// Private-use character that the released map lets stand for a blank.
const BLANK_STAND_IN: char = '\u{E000}';

/// Compressed id of every token id.
///
/// Invariant: the compressed ids are dense, that is, each of `0..compressed_vocab_size` belongs to some token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngramTokenMap {
    compressed: Vec<u32>,
    compressed_vocab_size: usize,
}

/// Why an Engram token map cannot be read or accepted.
#[derive(Debug, Error)]
pub enum EngramTokenMapError {
    /// The file is not a JSON list of non-negative integers.
    #[error("engram_token_map.json cannot be read: {0}; delete the file to have the map derived from tokenizer.json")]
    Json(serde_json::Error),
    /// A compressed id is used by no token.
    #[error(
        "the Engram token map uses {used} distinct compressed ids, the largest of them {largest}, so at least {unused} \
         is missing; delete engram_token_map.json to have the map derived from tokenizer.json"
    )]
    NotDense {
        /// Number of distinct compressed ids.
        used: usize,
        /// Largest compressed id.
        largest: u32,
        /// Smallest compressed id without a token.
        unused: u32,
    },
    /// The map has another length than the model has tokens.
    #[error(
        "the Engram token map covers {found} token ids, but vocab_size is {expected}; \
         the tokenizer or engram_token_map.json belongs to another model"
    )]
    Length {
        /// Token ids in the map.
        found: usize,
        /// `vocab_size` of the configuration.
        expected: usize,
    },
    /// The map has another number of compressed ids than the model was trained with.
    #[error(
        "the Engram token map has {found} compressed ids, but engram_compressed_vocab_size is {expected}; \
         the tokenizer or engram_token_map.json belongs to another model"
    )]
    CompressedVocabSize {
        /// Compressed ids in the map.
        found: usize,
        /// `engram_compressed_vocab_size` of the configuration.
        expected: usize,
    },
    /// Two maps of one model disagree.
    #[error(
        "engram_token_map.json gives token {token} the compressed id {found}, but tokenizer.json determines {derived}; \
         one of the two files is not this model's: restore it, or delete engram_token_map.json if tokenizer.json is right"
    )]
    Mismatch {
        /// First token id whose compressed ids differ.
        token: usize,
        /// Compressed id of the file.
        found: u32,
        /// Derived compressed id.
        derived: u32,
    },
}

impl EngramTokenMap {
    /// Derives the map from a tokenizer: one entry per id of the tokenizer, compressed ids numbered in the order of
    /// their first appearance.
    ///
    /// An id without a token inside the tokenizer's range has empty text and shares the compressed id of that. Ids
    /// beyond the tokenizer's range get no entry: the released tokenizer covers the whole vocabulary of 129,280 ids, so
    /// there is nothing to reproduce, and [`check`](Self::check) refuses a model with more ids.
    pub fn derive(tokenizer: &Tokenizer) -> Self {
        let mut ids_by_key = HashMap::new();
        let compressed = (0..tokenizer.vocab_size() as u32)
            .map(|token| {
                let next = ids_by_key.len() as u32;
                *ids_by_key.entry(compression_key(tokenizer, token)).or_insert(next)
            })
            .collect();
        Self { compressed, compressed_vocab_size: ids_by_key.len() }
    }

    /// Reads `engram_token_map.json`.
    ///
    /// # Errors
    /// [`EngramTokenMapError::Json`] when it is not a list of ids, [`EngramTokenMapError::NotDense`] when an id is
    /// skipped.
    pub fn from_json(json: &[u8]) -> Result<Self, EngramTokenMapError> {
        let compressed: Vec<u32> =
            serde_json::from_slice(without_byte_order_mark(json)).map_err(EngramTokenMapError::Json)?;
        let mut distinct = compressed.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if let Some(unused) = distinct.iter().zip(0..).find_map(|(&id, rank)| (id != rank).then_some(rank)) {
            let largest = distinct[distinct.len() - 1];
            return Err(EngramTokenMapError::NotDense { used: distinct.len(), largest, unused });
        }
        Ok(Self { compressed, compressed_vocab_size: distinct.len() })
    }

    /// Checks the map against the configuration's `vocab_size` and `engram_compressed_vocab_size`.
    ///
    /// # Errors
    /// [`EngramTokenMapError::Length`] or [`EngramTokenMapError::CompressedVocabSize`].
    pub fn check(&self, vocab_size: usize, compressed_vocab_size: usize) -> Result<(), EngramTokenMapError> {
        if self.compressed.len() != vocab_size {
            return Err(EngramTokenMapError::Length { found: self.compressed.len(), expected: vocab_size });
        }
        if self.compressed_vocab_size != compressed_vocab_size {
            let (found, expected) = (self.compressed_vocab_size, compressed_vocab_size);
            return Err(EngramTokenMapError::CompressedVocabSize { found, expected });
        }
        Ok(())
    }

    /// Compares a map that was read with the derived one.
    ///
    /// # Errors
    /// [`EngramTokenMapError::Length`] when they cover different numbers of tokens (the derived one is the expectation),
    /// [`EngramTokenMapError::Mismatch`] naming the first token that differs.
    pub fn check_against(&self, derived: &Self) -> Result<(), EngramTokenMapError> {
        let (found, expected) = (self.compressed.len(), derived.compressed.len());
        if found != expected {
            return Err(EngramTokenMapError::Length { found, expected });
        }
        let pairs = self.compressed.iter().zip(&derived.compressed).enumerate();
        for (token, (&found, &derived)) in pairs {
            if found != derived {
                return Err(EngramTokenMapError::Mismatch { token, found, derived });
            }
        }
        Ok(())
    }

    /// Compressed id of a token, `None` beyond the map.
    pub fn get(&self, token: u32) -> Option<u32> {
        self.compressed.get(token as usize).copied()
    }

    /// Compressed ids of all tokens, indexed by token id.
    pub fn as_slice(&self) -> &[u32] {
        &self.compressed
    }

    /// Number of compressed ids.
    pub fn compressed_vocab_size(&self) -> usize {
        self.compressed_vocab_size
    }
}

/// Tokens with equal keys share a compressed id.
///
/// A token that is no valid text by itself (a part of a character) keeps its spelling in the tokenizer's file as its
/// key, and so does text that normalises to nothing.
fn compression_key(tokenizer: &Tokenizer, token: u32) -> String {
    let text = tokenizer.decode(&[token]);
    if text.contains(char::REPLACEMENT_CHARACTER) {
        return tokenizer.spelling(token).unwrap_or_default();
    }
    let normal = normalise(&text);
    if normal.is_empty() { text } else { normal }
}

/// Case, accents, compatibility forms and surrounding white space removed; only white space of one blank stays one.
///
/// The Unicode steps are those of the `tokenizers` crate, whose tables the released map was made with.
fn normalise(text: &str) -> String {
    let mut normalized = NormalizedString::from(text);
    normalized.nfkc().nfd();
    StripAccents.normalize(&mut normalized).expect("removing characters cannot fail");
    normalized.lowercase();
    let collapsed = collapse_blanks(normalized.get());
    if collapsed == " " { collapsed } else { collapsed.trim().replace(BLANK_STAND_IN, " ") }
}

/// Every run of blanks, tabs and line ends becomes one blank; other white space stays.
fn collapse_blanks(text: &str) -> String {
    let mut collapsed = String::with_capacity(text.len());
    for c in text.chars() {
        let blank = matches!(c, ' ' | '\t' | '\r' | '\n');
        if !blank {
            collapsed.push(c);
        } else if !collapsed.ends_with(' ') {
            collapsed.push(' ');
        }
    }
    collapsed
}
