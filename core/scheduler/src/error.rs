//! Refusals. Both kinds leave everything as it was.

/// A configuration that cannot work.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A number is too small.
    #[error("{name} is {value}, but must be at least {least}: {why}")]
    TooSmall {
        /// Field of [`SchedulerConfig`](crate::SchedulerConfig).
        name: &'static str,
        /// Its value.
        value: usize,
        /// Smallest value that works.
        least: usize,
        /// What it is needed for.
        why: &'static str,
    },
    /// A number is too large.
    #[error("{name} is {value}, but numbers of pages, slots and checkpoints end at {most}")]
    TooLarge {
        /// Field of [`SchedulerConfig`](crate::SchedulerConfig).
        name: &'static str,
        /// Its value.
        value: usize,
        /// Largest value that works.
        most: usize,
    },
    /// The watermark is not a part of the pages.
    #[error("watermark is {value}, but must be at least 0 and below 1: it is a part of all pages")]
    Watermark {
        /// Its value.
        value: f64,
    },
}

/// A request that is not taken. Others are not affected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// There is nothing to run.
    #[error("the prompt is empty; at least one token is needed")]
    EmptyPrompt,
    /// There is nothing to produce.
    #[error("{name} is 0; at least 1 is needed")]
    NoOutput {
        /// `max_tokens` or `n`.
        name: &'static str,
    },
    /// Prompt and output are longer than the model allows.
    #[error(
        "a prompt of {prompt} tokens and {max_tokens} output tokens exceed max_model_len = {max_model_len}; \
         with this prompt max_tokens can be {}",
        max_model_len.saturating_sub(*prompt)
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Output tokens asked for.
        max_tokens: usize,
        /// Limit of their sum.
        max_model_len: usize,
    },
    /// The request would not fit if it were alone.
    #[error(
        "a prompt of {prompt} tokens and {max_tokens} output tokens need {needed} pages, but there are {available}; \
         the longest prompt and output that fit have {longest} tokens together"
    )]
    NeverFits {
        /// Tokens of the prompt.
        prompt: usize,
        /// Output tokens asked for.
        max_tokens: usize,
        /// Pages for both.
        needed: usize,
        /// Pages of the pool.
        available: usize,
        /// Most tokens, prompt and output together, that fit in the pool.
        longest: usize,
    },
    /// Too much waits already. The same request can be accepted later.
    #[error("{waiting} {unit} wait already and this request adds {added}, but {name} is {most}; try again later")]
    QueueFull {
        /// `max_num_queued_reqs` or `max_num_queued_tokens`.
        name: &'static str,
        /// What is counted: `requests` or `tokens`.
        unit: &'static str,
        /// How many wait.
        waiting: usize,
        /// How many this request would add.
        added: usize,
        /// The limit.
        most: usize,
    },
}
