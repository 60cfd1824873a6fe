//! Errors.

use deepinfer_model::tokenizer::TokenizerError;

/// Why a conversation cannot be encoded, or an output not be read.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The tokenizer was not made for conversations, or for other ones.
    #[error(
        "tokenizer.json has no token for {markers}, which {needed_by}; use a model whose tokenizer is that of \
         DeepSeek-V4.1"
    )]
    MissingMarkers {
        /// The markers as they would be spelt.
        markers: String,
        /// What needs them.
        needed_by: &'static str,
    },
    /// A message cannot be encoded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The recipe's reader of outputs gave up.
    #[error("the output of the model cannot be read: {detail}")]
    Output {
        /// What it says.
        detail: String,
    },
}
