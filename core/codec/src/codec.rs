//! From a conversation to the tokens of a prompt.

use std::ops::Range;
use std::sync::Arc;

use deepinfer_model::tokenizer::Tokenizer;
use deepseek_recipe_core::conversation::{Conversation as RecipeConversation, ReasoningEffort};
use deepseek_recipe_core::messages::InputMessage;
use deepseek_recipe_core::prompt::Prompt;
use deepseek_recipe_core::special_tokens::SpecialToken;
use deepseek_recipe_encoding::dsv41::DeepseekV41Encoding;
use deepseek_recipe_encoding::{PromptEncoding, RenderedPrompt};

use crate::conversation::{Answer, Conversation, Effort, Message};
use crate::error::CodecError;
use crate::parser::OutputParser;

/// Markers without which there is no conversation.
const EVERY_TURN: [SpecialToken; 5] =
    [SpecialToken::Bos, SpecialToken::User, SpecialToken::Assistant, SpecialToken::ThinkingEnd, SpecialToken::Eos];
/// Markers that begin a message. A model that goes on to one of them has ended its answer.
const MESSAGES: [SpecialToken; 4] =
    [SpecialToken::System, SpecialToken::User, SpecialToken::Assistant, SpecialToken::LatestReminder];

/// Encodes conversations for one tokenizer, and reads what the model answers.
#[derive(Clone)]
pub struct Codec {
    tokenizer: Arc<Tokenizer>,
    encoding: DeepseekV41Encoding,
    /// The token that ends the thinking.
    thinking_end: u32,
}

impl Codec {
    /// A codec for the tokenizer of a model.
    ///
    /// # Errors
    /// [`CodecError::MissingMarkers`] if the tokenizer lacks a marker that every conversation needs.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Result<Self, CodecError> {
        let is_missing = |marker: &SpecialToken| tokenizer.added_token(marker.default_str()).is_none();
        let missing: Vec<_> = EVERY_TURN.iter().filter(|marker| is_missing(marker)).map(|m| m.default_str()).collect();
        match tokenizer.added_token(SpecialToken::ThinkingEnd.default_str()) {
            Some(thinking_end) if missing.is_empty() => {
                Ok(Self { tokenizer, encoding: DeepseekV41Encoding::new(), thinking_end })
            }
            _ => {
                let needed_by = "every conversation needs";
                Err(CodecError::MissingMarkers { markers: missing.join(", "), needed_by })
            }
        }
    }

    /// The prompt as text, with its markers spelt out. It cannot be encoded from this text: markers in it and the same
    /// letters in a message look alike.
    pub fn render(&self, conversation: &Conversation) -> String {
        self.rendered(conversation).prompt
    }

    /// Tokens of the prompt for the next answer.
    ///
    /// An answer that an [`OutputParser`] of this tokenizer gave is put back as the tokens that the model produced, which are
    /// not always those that its text would be encoded to. So, without thinking, the prompt begins with the last prompt and
    /// the tokens of the answer to it, and a cache of prefixes has them.
    ///
    /// # Errors
    /// The tokenizer lacks a marker that this conversation needs, or cannot encode a text.
    pub fn encode(&self, conversation: &Conversation) -> Result<Vec<u32>, CodecError> {
        let RenderedPrompt { prompt, special_ranges, .. } = self.rendered(conversation);
        let mut answers = conversation.messages.iter().filter_map(|message| match message {
            Message::Assistant(answer) => Some(answer),
            Message::User(_) => None,
        });
        let mut ids = Vec::new();
        let mut end = 0;
        let mut markers = special_ranges.iter().peekable();
        let mut previous = "";
        let mut is_in_answer = false;
        while let Some(range) = markers.next() {
            let marker = &prompt[range.clone()];
            let token = match self.tokenizer.added_token(marker) {
                Some(token) => token,
                // An answer may spell markers of image regions; to a tokenizer that has none they are mere text.
                None if is_in_answer => continue,
                None => return Err(missing(marker)),
            };
            ids.extend(self.tokenizer.encode_text(&prompt[end..range.start])?);
            ids.push(token);
            end = range.end;
            // After these two, and nowhere else, there is an answer, up to its end marker.
            let follows_assistant = std::mem::replace(&mut previous, marker) == SpecialToken::Assistant.default_str();
            let begins_answer = follows_assistant && marker == SpecialToken::ThinkingEnd.default_str();
            is_in_answer = begins_answer || (is_in_answer && marker != SpecialToken::Eos.default_str());
            if let Some(token_ids) = begins_answer.then(|| answers.next()?.token_ids.as_ref()).flatten() {
                ids.extend(token_ids);
                let is_inside = |range: &&Range<usize>| prompt[(*range).clone()] != *SpecialToken::Eos.default_str();
                while markers.next_if(is_inside).is_some() {}
                end = markers.peek().map_or(prompt.len(), |range| range.start);
            }
        }
        ids.extend(self.tokenizer.encode_text(&prompt[end..])?);
        Ok(ids)
    }

    /// A reader of the answer. Of `stop`, texts that end the answer, the first that comes ends it and is not part of it;
    /// thinking does not end so.
    pub fn parser(&self, thinking: Option<Effort>, stop: &[String]) -> OutputParser {
        OutputParser::new(Arc::clone(&self.tokenizer), self.thinking_end, thinking.is_some(), stop)
    }

    /// Tokens that end an answer besides the end token of the model: markers that begin another message. Neither they nor
    /// the end token are for [`OutputParser::push`].
    pub fn stop_token_ids(&self) -> Vec<u32> {
        MESSAGES.iter().filter_map(|marker| self.tokenizer.added_token(marker.default_str())).collect()
    }

    fn rendered(&self, conversation: &Conversation) -> RenderedPrompt {
        self.encoding.render_conversation(&to_recipe(conversation))
    }
}

impl std::fmt::Debug for Codec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Codec").field("thinking_end", &self.thinking_end).finish_non_exhaustive()
    }
}

/// The tokenizer lacks a marker that not every conversation has.
fn missing(marker: &str) -> CodecError {
    CodecError::MissingMarkers { markers: marker.to_owned(), needed_by: "system prompts and thinking need" }
}

/// The same conversation in the recipe's terms.
fn to_recipe(conversation: &Conversation) -> RecipeConversation {
    let system = conversation.system.iter().map(|text| InputMessage::System {
        content: Prompt::plain(text),
        image_sources: Vec::new(),
        tools: None,
    });
    let messages = conversation.messages.iter().map(|message| match message {
        Message::User(text) => InputMessage::User { content: Prompt::plain(text), image_sources: Vec::new() },
        Message::Assistant(Answer { reasoning, content, .. }) => InputMessage::Assistant {
            content: content.clone(),
            reasoning_content: conversation.thinking.map(|_| reasoning.clone()),
            tool_calls: None,
            prefix: false,
        },
    });
    RecipeConversation {
        messages: system.chain(messages).collect(),
        thinking_mode: conversation.thinking.is_some(),
        reasoning_effort: conversation.thinking.map(|effort| match effort {
            Effort::Low => ReasoningEffort::Low,
            Effort::High => ReasoningEffort::High,
            Effort::Max => ReasoningEffort::Max,
        }),
        ..RecipeConversation::default()
    }
}
