//! Text to token ids and back, for the byte-level BPE tokenizers of DeepSeek models.
//!
//! Encoding is the `tokenizers` crate's. Decoding is done here from a table of the bytes that each token stands for:
//! a token of a byte-level vocabulary may end inside a UTF-8 character, and only on bytes can a stream of tokens be cut
//! into text exactly where the whole sequence would be.

#![forbid(unsafe_code)]

mod contain;
mod document;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use thiserror::Error;
use tokenizers::{Model, OffsetType, PreTokenizedString, PreTokenizer};

use self::contain::contain;

/// A loaded `tokenizer.json`.
#[derive(Debug)]
pub struct Tokenizer {
    encoder: tokenizers::Tokenizer,
    bytes: TokenBytes,
    /// Ids of added tokens: those that text is searched for before it is split.
    added: BTreeSet<u32>,
    /// Ids of special tokens.
    special: BTreeSet<u32>,
    bos_token_id: u32,
}

/// Why a tokenizer cannot be loaded or text not be encoded.
#[derive(Debug, Error)]
pub enum TokenizerError {
    /// Not a tokenizer file of the `tokenizers` library.
    #[error("tokenizer.json cannot be read: {0}; expected a complete file of the Hugging Face tokenizers library")]
    Load(tokenizers::Error),
    /// An added token would get another id than the file states.
    #[error(
        "tokenizer.json states id {stated} for the added token {content:?}, but its place in the vocabulary is \
         {assigned}; ids of added tokens must follow those of the vocabulary without a gap"
    )]
    AddedToken {
        /// Text of the token.
        content: String,
        /// Id in the file.
        stated: u64,
        /// Id that encoding would use.
        assigned: u32,
    },
    /// The file describes another kind of tokenizer, or one that would not give the same ids in every run.
    #[error("tokenizer.json: `{part}` is {found}, expected {expected}, as in the tokenizers of DeepSeek models")]
    Unsupported {
        /// Key of the part.
        part: String,
        /// What the file has there.
        found: String,
        /// What is supported.
        expected: &'static str,
    },
    /// A token's id is not one of the model's.
    #[error(
        "tokenizer.json gives the token {token:?} the id {found}, expected a whole number below {vocab_size} \
         (`vocab_size` of config.json)"
    )]
    Id {
        /// The token.
        token: String,
        /// Its id.
        found: String,
        /// Number of ids of the model.
        vocab_size: usize,
    },
    /// Two tokens have one id.
    #[error("tokenizer.json gives the id {id} to two tokens, {first:?} and {second:?}; every token needs its own")]
    SharedId {
        /// The id.
        id: u64,
        /// One token.
        first: String,
        /// The other token.
        second: String,
    },
    /// The tokens do not stand for bytes.
    #[error("tokenizer.json has {found}, expected a ByteLevel decoder as in every DeepSeek tokenizer")]
    Decoder {
        /// The decoder that the file has.
        found: String,
    },
    /// The configured BOS id has no token.
    #[error(
        "bos_token_id of config.json is {bos_token_id}, but tokenizer.json has no token with this id among its \
         {vocab_size} ids; the two files belong to different models"
    )]
    Bos {
        /// `bos_token_id` of the configuration.
        bos_token_id: u32,
        /// Number of ids of the tokenizer.
        vocab_size: usize,
    },
    /// The tokenizer's vocabulary has no tokens for some text.
    #[error("the tokenizer cannot encode this text of {bytes} bytes: {reason}")]
    Encode {
        /// Length of the text.
        bytes: usize,
        /// What the tokenizers library reports.
        reason: tokenizers::Error,
    },
}

impl Tokenizer {
    /// Loads a tokenizer from the bytes of `tokenizer.json`, with or without a byte order mark; `bos_token_id` and
    /// `vocab_size` are those of the model's configuration.
    ///
    /// Truncation and padding that the file may ask for are left out: they belong to training pipelines, and here would
    /// silently alter prompts.
    ///
    /// # Errors
    /// Every [`TokenizerError`] but [`TokenizerError::Encode`].
    pub fn from_bytes(json: &[u8], bos_token_id: u32, vocab_size: usize) -> Result<Self, TokenizerError> {
        let document = document::parse(json, vocab_size)?;
        let added_tokens = document["added_tokens"].clone();
        let encoder: tokenizers::Tokenizer = contain(|| serde_json::from_value(document))
            .map_err(|panic| TokenizerError::Load(panic.into()))?
            .map_err(|error| TokenizerError::Load(error.into()))?;
        check_added_tokens(&added_tokens, &encoder)?;
        if encoder.id_to_token(bos_token_id).is_none() {
            let vocab_size = encoder.get_vocab_size(true);
            return Err(TokenizerError::Bos { bos_token_id, vocab_size });
        }
        let bytes = TokenBytes::new(&encoder);
        let tokens = encoder.get_added_tokens_decoder();
        let added = tokens.keys().copied().collect();
        let special = tokens.iter().filter(|(_, token)| token.special).map(|(&id, _)| id).collect();
        Ok(Self { encoder, bytes, added, special, bos_token_id })
    }

    /// Token ids of a prompt: special tokens spelt out in the text become their ids, and the BOS token is put in front
    /// unless the text begins with it. Empty text gives the BOS token alone.
    ///
    /// The ids are those of the Python `tokenizers` package, which is the same library with the same regular expressions.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`]; a byte-level vocabulary that lacks none of the 256 bytes encodes any text.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        // Special tokens that a post-processor would add are left out: the BOS rule below is the engine's own.
        let encoding = contain(|| self.encoder.encode_fast(text, false)).unwrap_or_else(|panic| Err(panic.into()));
        let encoding = encoding.map_err(|reason| TokenizerError::Encode { bytes: text.len(), reason })?;
        let mut ids = encoding.get_ids().to_vec();
        if ids.first() != Some(&self.bos_token_id) {
            ids.insert(0, self.bos_token_id);
        }
        Ok(ids)
    }

    /// Token ids of text that is nothing but text: markers spelt out in it do not become their tokens, and no token is put
    /// in front. Text from outside is encoded so where it must not be able to end a turn of a conversation.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_prompt`].
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        // The steps of the library without its search for added tokens; there is no normaliser (see `document`).
        let encode = || -> tokenizers::Result<Vec<u32>> {
            let mut pieces = PreTokenizedString::from(text);
            if let Some(splits) = self.encoder.get_pre_tokenizer() {
                splits.pre_tokenize(&mut pieces)?;
            }
            self.encoder.get_model().tokenize_in_pretokenized(&mut pieces, None)?;
            Ok(pieces.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec())
        };
        let ids = contain(encode).unwrap_or_else(|panic| Err(panic.into()));
        ids.map_err(|reason| TokenizerError::Encode { bytes: text.len(), reason })
    }

    /// Text of token ids, special tokens included. Bytes that form no UTF-8 character become U+FFFD, as does an
    /// incomplete character at the end; ids without a token give no text.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A decoder that takes ids one by one and gives text as soon as it is certain.
    pub fn detokenize_stream(self: &Arc<Self>) -> DetokenizeStream {
        DetokenizeStream { tokenizer: Arc::clone(self), undecided: Vec::new() }
    }

    /// The bytes that a token stands for; empty for an id without a token.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id)
    }

    /// How the tokenizer's file spells a token: byte-level characters, or the text of an added token. `None` for an id
    /// without a token.
    pub fn spelling(&self, id: u32) -> Option<String> {
        self.encoder.id_to_token(id)
    }

    /// The added token that is spelt so, such as a marker of a conversation. The file need not call it special.
    pub fn added_token(&self, spelling: &str) -> Option<u32> {
        self.encoder.get_added_vocabulary().get_vocab().get(spelling).copied()
    }

    /// Whether a token is an added one, which [`Tokenizer::encode_text`] never gives.
    pub fn is_added(&self, id: u32) -> bool {
        self.added.contains(&id)
    }

    /// Whether a token is a marker rather than text, such as the begin token: one that the file calls special.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// One more than the largest token id.
    pub fn vocab_size(&self) -> usize {
        self.bytes.vocab_size()
    }

    /// The token that begins every text.
    pub fn bos_token_id(&self) -> u32 {
        self.bos_token_id
    }
}

/// Incremental decoding: the texts given by [`push`](Self::push) and [`finish`](Self::finish) together equal
/// [`Tokenizer::decode`] of all ids.
#[derive(Debug)]
pub struct DetokenizeStream {
    tokenizer: Arc<Tokenizer>,
    /// The beginning of a character whose end has not come, at most three bytes between calls.
    undecided: Vec<u8>,
}

impl DetokenizeStream {
    /// Takes the next id; returns the text that became certain, `None` if there is none.
    pub fn push(&mut self, id: u32) -> Option<String> {
        let mut text = String::new();
        self.push_to(id, &mut text);
        (!text.is_empty()).then_some(text)
    }

    /// As [`push`](Self::push), for one who collects the text.
    pub fn push_to(&mut self, id: u32, text: &mut String) {
        let bytes = self.tokenizer.token_bytes(id);
        // Most tokens are whole characters.
        if self.undecided.is_empty()
            && let Ok(whole) = std::str::from_utf8(bytes)
        {
            text.push_str(whole);
            return;
        }
        self.undecided.extend_from_slice(bytes);
        let decided = self.undecided.len() - incomplete_tail(&self.undecided);
        text.push_str(&String::from_utf8_lossy(&self.undecided[..decided]));
        self.undecided.drain(..decided);
    }

    /// Ends the text: an incomplete last character becomes U+FFFD.
    pub fn finish(self) -> Option<String> {
        (!self.undecided.is_empty()).then(|| String::from_utf8_lossy(&self.undecided).into_owned())
    }
}

/// The library numbers added tokens itself and only logs a difference from the file; a wrong id would be silent
/// nonsense in every prompt.
fn check_added_tokens(added_tokens: &Value, encoder: &tokenizers::Tokenizer) -> Result<(), TokenizerError> {
    for token in added_tokens.as_array().map_or(&[][..], Vec::as_slice) {
        let (Some(content), Some(stated)) = (token["content"].as_str(), token["id"].as_u64()) else { continue };
        // Empty added tokens have no id: they match nothing.
        if let Some(assigned) = encoder.token_to_id(content).filter(|&assigned| u64::from(assigned) != stated) {
            return Err(TokenizerError::AddedToken { content: content.to_owned(), stated, assigned });
        }
    }
    Ok(())
}

/// The bytes of every token, end to end.
#[derive(Debug)]
struct TokenBytes {
    bytes: Vec<u8>,
    /// `ends[id]` is where the token's bytes end; they start where those of the id before end.
    ends: Vec<usize>,
}

impl TokenBytes {
    fn new(encoder: &tokenizers::Tokenizer) -> Self {
        let largest = encoder.get_vocab(true).into_values().max();
        let alphabet = ByteAlphabet::new();
        let mut bytes = Vec::new();
        let ids = largest.into_iter().flat_map(|largest| 0..=largest);
        let ends = ids
            .map(|id| {
                if let Some(spelling) = encoder.id_to_token(id) {
                    bytes.extend(alphabet.bytes_of(&spelling).unwrap_or_else(|| spelling.into_bytes()));
                }
                bytes.len()
            })
            .collect();
        Self { bytes, ends }
    }

    fn vocab_size(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..end]
    }
}

/// The 256 characters by which byte-level vocabularies (since GPT-2) spell bytes: printable Latin-1 characters spell
/// their own code, and the other bytes take the characters from U+0100 on, in order.
struct ByteAlphabet {
    /// Indexed by character code; `None` for the Latin-1 characters that the alphabet leaves out.
    bytes: [Option<u8>; 256 + Self::UNPRINTABLE],
}

impl ByteAlphabet {
    const UNPRINTABLE: usize = 68;

    fn new() -> Self {
        let mut bytes = [None; 256 + Self::UNPRINTABLE];
        let mut substitute = 256;
        for byte in 0..=u8::MAX {
            if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
                bytes[usize::from(byte)] = Some(byte);
            } else {
                bytes[substitute] = Some(byte);
                substitute += 1;
            }
        }
        Self { bytes }
    }

    /// The bytes that a spelling stands for; `None` when it has characters outside the alphabet, as most special tokens
    /// have: such a token stands for its own UTF-8 text.
    fn bytes_of(&self, spelling: &str) -> Option<Vec<u8>> {
        spelling.chars().map(|c| self.bytes.get(c as usize).copied().flatten()).collect()
    }
}

/// Length of a character cut short at the end of `bytes`, 0 to 3.
fn incomplete_tail(bytes: &[u8]) -> usize {
    let tail = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    match std::str::from_utf8(tail) {
        // No error length means that more bytes could still complete the character.
        Err(error) if error.error_len().is_none() => tail.len(),
        _ => 0,
    }
}
