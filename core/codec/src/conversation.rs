//! What a conversation is.

/// Messages, and how the next answer is to be given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    /// What the model is told before the first message.
    pub system: Option<String>,
    /// Messages in their order. The next answer is to the last one; of messages of a user that follow each other, the model
    /// sees one.
    pub messages: Vec<Message>,
    /// Whether the model thinks before it answers, and how hard.
    pub thinking: Option<Effort>,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Of the user.
    User(String),
    /// Of the model.
    Assistant(Answer),
}

/// How thorough the thinking is to be. The prompt tells the model a number from 1 to 100.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// 50.
    Low,
    /// 75.
    #[default]
    High,
    /// 100.
    Max,
}

/// An answer of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// What it thought. Later prompts leave it out, as DeepSeek's own do.
    pub reasoning: String,
    /// What it said.
    pub content: String,
    /// The tokens of which it consists, where they are known to be `content` and nothing else.
    pub(crate) token_ids: Option<Vec<u32>>,
}

impl Answer {
    /// An answer of which only the text is known.
    pub fn from_text(content: impl Into<String>) -> Self {
        Self { content: content.into(), ..Self::default() }
    }
}
