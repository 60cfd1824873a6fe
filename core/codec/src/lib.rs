//! Conversations in, tokens out, and back.
//!
//! What a model of the DeepSeek-V4.1 family takes for a conversation is defined by DeepSeek's own crates `deepseek-recipe`,
//! which this crate is a shell around: their types end here, so that a new version of them changes this crate alone.
//!
//! ```
//! use std::sync::Arc;
//!
//! use deepinfer_codec::{Codec, CodecError, Conversation, Message};
//! use deepinfer_model::tokenizer::Tokenizer;
//!
//! fn say(
//!     tokenizer: Arc<Tokenizer>,
//!     conversation: &mut Conversation,
//!     message: &str,
//!     model: impl FnOnce(&[u32]) -> Vec<u32>,
//! ) -> Result<(), CodecError> {
//!     let codec = Codec::new(tokenizer)?;
//!     conversation.messages.push(Message::User(message.to_owned()));
//!     let prompt = codec.encode(conversation)?;
//!     let mut parser = codec.parser(conversation.thinking, &[]);
//!     for token in model(&prompt) {
//!         for delta in parser.push(token)? {
//!             print!("{}", delta.text());
//!         }
//!     }
//!     let (rest, answer) = parser.finish()?;
//!     rest.iter().for_each(|delta| print!("{}", delta.text()));
//!     conversation.messages.push(Message::Assistant(answer));
//!     Ok(())
//! }
//! ```
//!
//! Text of a user is mere text here: a marker spelt out in it does not become the marker's token and cannot end a turn.
//! Conversations hold text; tools and images are not there yet.

#![forbid(unsafe_code)]

mod codec;
mod conversation;
mod error;
mod parser;
mod recommended;

pub use codec::Codec;
pub use conversation::{Answer, Conversation, Effort, Message};
pub use error::CodecError;
pub use parser::{Delta, OutputParser};
pub use recommended::Recommended;
