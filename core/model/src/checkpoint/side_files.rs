//! The files beside the weights: the tokenizer, and the Engram token map and hash constants.
//!
//! Map and constants follow from the tokenizer and the configuration. A checkpoint may carry them all the same; then they
//! must be the derived ones, because a wrong map or constant is no error anywhere later, just worse text.

use std::sync::Arc;

use thiserror::Error;

use super::error::CheckpointError;
use super::reader::Checkpoint;
use crate::config::ModelConfig;
use crate::engram_constants::{EngramConstants, EngramConstantsError, EngramParams};
use crate::engram_token_map::{EngramTokenMap, EngramTokenMapError};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// What the hash of n-grams is made of.
#[derive(Debug)]
pub struct EngramHashing {
    /// Compressed id of every token.
    pub token_map: EngramTokenMap,
    /// Multipliers, primes and offsets.
    pub constants: EngramConstants,
}

/// Why a file beside the weights is refused.
#[derive(Debug, Error)]
pub enum SideFileError {
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The map from token ids to compressed ids.
    #[error(transparent)]
    TokenMap(#[from] EngramTokenMapError),
    /// The constants of the hash.
    #[error(transparent)]
    Constants(#[from] EngramConstantsError),
    /// Nothing tells the compressed ids.
    #[error("it holds neither engram_token_map.json nor tokenizer.json; Engram layers need one of them")]
    NoTokenMap,
    /// A table is too small for its hash.
    #[error(
        "the Engram table of layer {layer} has {rows} rows (`engram_num_embeddings` of config.json), but its hashes \
         address {addressed}"
    )]
    TableRows {
        /// The layer.
        layer: usize,
        /// Rows of the table.
        rows: usize,
        /// Rows that the hash can address.
        addressed: i64,
    },
}

impl Checkpoint {
    /// The tokenizer in `tokenizer.json`, read once; `None` if there is no such file.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] when the file cannot be read, [`CheckpointError::SideFile`] when it is refused.
    pub fn tokenizer(&self) -> Result<Option<Arc<Tokenizer>>, CheckpointError> {
        if let Some(read) = self.read_tokenizer.get() {
            return Ok(Some(Arc::clone(read)));
        }
        let Some(json) = self.file("tokenizer.json")? else { return Ok(None) };
        let config = self.config();
        let tokenizer = Tokenizer::from_bytes(&json, config.bos_token_id, config.vocab_size);
        let tokenizer = tokenizer.map_err(|error| self.side_file(error))?;
        Ok(Some(Arc::clone(self.read_tokenizer.get_or_init(|| Arc::new(tokenizer)))))
    }

    /// The Engram token map and constants: derived from the tokenizer and `config`, and compared with the files that
    /// state them. Without a tokenizer the file of the map is believed. `None` for a model without Engram layers.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] when a file cannot be read, [`CheckpointError::SideFile`] when one is refused or
    /// contradicts another.
    pub fn engram_hashing(&self, config: &ModelConfig) -> Result<Option<EngramHashing>, CheckpointError> {
        if config.engram_layer_ids.is_empty() {
            return Ok(None);
        }
        let token_map = self.token_map(config)?;
        let constants = EngramConstants::derive(&EngramParams {
            layer_ids: config.engram_layer_ids.clone(),
            max_ngram_size: config.engram_max_ngram_size,
            vocab_size: config.engram_vocab_size,
            n_heads: config.engram_n_heads,
            compressed_vocab_size: config.engram_compressed_vocab_size,
            pad_compressed_id: token_map.get(config.engram_pad_token_id).unwrap_or(0),
        })
        .map_err(|error| self.side_file(error))?;
        if let Some(json) = self.file("engram_constants.json")? {
            let stored = EngramConstants::from_json(&json);
            let fits = stored.and_then(|stored| stored.check_against(&constants));
            fits.map_err(|error| self.side_file(error))?;
        }
        let tables = config.engram_num_embeddings.iter().zip(constants.table_rows());
        for ((&rows, addressed), &layer) in tables.zip(&config.engram_layer_ids) {
            if (rows as i64) < addressed {
                return Err(self.side_file(SideFileError::TableRows { layer, rows, addressed }));
            }
        }
        Ok(Some(EngramHashing { token_map, constants }))
    }

    fn token_map(&self, config: &ModelConfig) -> Result<EngramTokenMap, CheckpointError> {
        let derived = self.tokenizer()?.map(|tokenizer| EngramTokenMap::derive(&tokenizer));
        let stored = self.file("engram_token_map.json")?.map(|json| EngramTokenMap::from_json(&json)).transpose();
        let stored = stored.map_err(|error| self.side_file(error))?;
        for map in stored.iter().chain(&derived) {
            let fits = map.check(config.vocab_size, config.engram_compressed_vocab_size);
            fits.map_err(|error| self.side_file(error))?;
        }
        if let (Some(stored), Some(derived)) = (&stored, &derived) {
            stored.check_against(derived).map_err(|error| self.side_file(error))?;
        }
        stored.or(derived).ok_or_else(|| self.side_file(SideFileError::NoTokenMap))
    }

    fn side_file(&self, error: impl Into<SideFileError>) -> CheckpointError {
        CheckpointError::SideFile { origin: self.origin(), source: error.into() }
    }
}
