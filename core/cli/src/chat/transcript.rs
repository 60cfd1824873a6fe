//! A conversation in a file.

use std::io::Write;
use std::path::Path;

use deepinfer_codec::{Conversation, Message};
use serde_json::{Value, json};

/// What is known of an answer besides its text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerNote {
    pub(crate) seed: Option<u64>,
    /// `stop`, `length` or `abort`.
    pub(crate) finish_reason: &'static str,
}

/// The conversation as the messages of an API request, with the notes of its answers.
pub(crate) fn of(model: &str, params: &str, conversation: &Conversation, notes: &[AnswerNote]) -> Value {
    let system = conversation.system.iter().map(|text| json!({"role": "system", "content": text}));
    let mut notes = notes.iter();
    let messages = conversation.messages.iter().map(|message| match message {
        Message::User(text) => json!({"role": "user", "content": text}),
        Message::Assistant(answer) => {
            let mut message = json!({"role": "assistant", "content": answer.content});
            if !answer.reasoning.is_empty() {
                message["reasoning_content"] = answer.reasoning.clone().into();
            }
            if let Some(AnswerNote { seed, finish_reason }) = notes.next() {
                message["finish_reason"] = (*finish_reason).into();
                message["seed"] = (*seed).into();
            }
            message
        }
    });
    let messages: Vec<Value> = system.chain(messages).collect();
    json!({"model": model, "params": params, "messages": messages})
}

/// Writes it to a file that was not there.
///
/// # Errors
/// The file is there, or cannot be written.
pub(crate) fn save(path: &Path, transcript: &Value) -> std::io::Result<()> {
    let mut file = std::fs::File::create_new(path)?;
    writeln!(file, "{transcript:#}")
}
