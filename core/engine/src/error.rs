//! Errors, by what the caller can do.

use deepinfer_ops::OpError;

/// A request that is refused before anything runs. Others are not affected.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// There is nothing to run.
    #[error("the prompt is empty; at least one token is needed")]
    EmptyPrompt,
    /// A token id is not in the vocabulary.
    #[error("{what}[{index}] is {id}, but token ids must be below {vocab_size}")]
    TokenOutOfRange {
        /// List that holds it: `prompt_token_ids`, `golden_token_ids` or `stop_token_ids`.
        what: &'static str,
        /// Place in the list.
        index: usize,
        /// The id.
        id: i64,
        /// Vocabulary.
        vocab_size: usize,
    },
    /// The prompt leaves no room for an output.
    #[error("the prompt has {tokens} tokens, but a context of {context} holds prompts of at most {}", context - 1)]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// `max_position_embeddings`.
        context: usize,
    },
    /// A parameter is outside its range.
    #[error("{name} is {value}, but must be {wanted}")]
    InvalidParameter {
        /// Parameter.
        name: &'static str,
        /// What it is.
        value: String,
        /// What it may be.
        wanted: &'static str,
    },
    /// Prompt and output need more pages than there are.
    #[error(
        "a prompt of {tokens} tokens and {max_tokens} output tokens need {needed} pages, but there are {available}; \
         prompt and output can have {longest} tokens together"
    )]
    DoesNotFit {
        /// Tokens of the prompt.
        tokens: usize,
        /// Output tokens asked for.
        max_tokens: usize,
        /// Pages for both.
        needed: usize,
        /// Pages of the engine.
        available: usize,
        /// Most tokens of prompt and output.
        longest: usize,
    },
    /// Too much waits already. The same request can be accepted later.
    #[error("{waiting} {unit} wait already and this request adds {added}, but {name} is {most}; try again later")]
    QueueFull {
        /// Limit: `max_num_queued_reqs` or `max_num_queued_tokens`.
        name: &'static str,
        /// What it counts: `requests` or `tokens`.
        unit: &'static str,
        /// How many wait.
        waiting: usize,
        /// How many the request would add.
        added: usize,
        /// The limit.
        most: usize,
    },
    /// There are neither parameters for all inputs nor for each.
    #[error("there are {params} values of parameters for {inputs} inputs; give one for all, or one for each")]
    ParamsMismatch {
        /// Inputs.
        inputs: usize,
        /// Values of parameters.
        params: usize,
    },
    /// Stop strings without a tokenizer.
    #[error("the model has no tokenizer.json, so stop strings cannot be found; use stop_token_ids")]
    NoTextToStop,
    /// A text prompt without a tokenizer.
    #[error("the model has no tokenizer.json, so only prompt_token_ids work")]
    NoTokenizer,
    /// The tokenizer refuses the text.
    #[error("the prompt cannot be tokenized: {0}")]
    Tokenizer(String),
    /// A line of a batch file is not a request.
    #[error("{0}")]
    InvalidLine(String),
}

impl RequestError {
    /// A short stable name, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            RequestError::EmptyPrompt => "empty_prompt",
            RequestError::TokenOutOfRange { .. } => "token_out_of_range",
            RequestError::PromptTooLong { .. } => "prompt_too_long",
            RequestError::InvalidParameter { .. } => "invalid_parameter",
            RequestError::ParamsMismatch { .. } => "params_mismatch",
            RequestError::DoesNotFit { .. } => "does_not_fit",
            RequestError::QueueFull { .. } => "queue_full",
            RequestError::NoTokenizer | RequestError::NoTextToStop => "no_tokenizer",
            RequestError::Tokenizer(_) => "tokenizer",
            RequestError::InvalidLine(_) => "invalid_line",
        }
    }
}

/// A request that failed while it ran, or before.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// The request is at fault.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The device is at fault.
    #[error(transparent)]
    Device(#[from] OpError),
    /// The backend drew a token that does not exist: a fault of its `fused_sample`.
    #[error("the backend drew token {token} for position {position}, but the vocabulary has {vocab_size} tokens")]
    BadToken {
        /// What was drawn.
        token: i32,
        /// Position whose token was drawn.
        position: usize,
        /// Vocabulary.
        vocab_size: usize,
    },
    /// The logits hold NaN or infinity, or every token is banned: nothing can be drawn from them.
    #[error("the logits of position {position} hold NaN or +infinity, or leave no token to draw")]
    BadLogits {
        /// Position whose token was to be drawn.
        position: usize,
    },
}

impl EngineError {
    /// A short stable name, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            EngineError::Request(e) => e.code(),
            EngineError::Device(_) => "device_error",
            EngineError::BadToken { .. } => "bad_token",
            EngineError::BadLogits { .. } => "bad_logits",
        }
    }
}
