//! Parameters that DeepSeek recommends.

use deepseek_recipe::request::{
    DEFAULT_MAX_EFFORT_MAX_TOKENS, DEFAULT_NON_THINKING_MAX_TOKENS, DEFAULT_THINKING_MAX_TOKENS, ModelVersion,
};

use crate::conversation::Effort;

/// Parameters of an answer for which nobody asked for others, as DeepSeek's own API resolves them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recommended {
    /// Temperature of the draws.
    pub temperature: f32,
    /// Probability mass of the tokens that are drawn from.
    pub top_p: f32,
    /// Most tokens of the answer, thinking included.
    pub max_tokens: usize,
}

impl Recommended {
    /// Parameters for answers with or without thinking.
    pub fn of(thinking: Option<Effort>) -> Self {
        let max_tokens = match thinking {
            None => DEFAULT_NON_THINKING_MAX_TOKENS,
            Some(Effort::Low | Effort::High) => DEFAULT_THINKING_MAX_TOKENS,
            Some(Effort::Max) => DEFAULT_MAX_EFFORT_MAX_TOKENS,
        };
        Self {
            // The recipe's only other temperature is one that a request without thinking asks for.
            temperature: 1.0,
            top_p: ModelVersion::DeepseekV41Flash.resolve_top_p(None, thinking.is_some(), false),
            max_tokens: max_tokens as usize,
        }
    }
}
