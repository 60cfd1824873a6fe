//! From the tokens of an answer to its text, as they come.
//!
//! The recipe reads an asynchronous stream of chunks. Here tokens are pushed: the stream is polled after each of them, and
//! waits where it finds no more, so that it never needs to be woken.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use deepinfer_model::tokenizer::Tokenizer;
use deepseek_recipe::stream::{
    ChunkGenerator, InferenceChunk, InferenceFinishReason, OutputChunk, ParsingOptions, StreamError, StreamProcessor,
    StreamTokenizer, ThinkingInitialStage,
};
use futures_core::Stream;

use crate::conversation::Answer;
use crate::error::CodecError;

/// A piece of what the model says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Of its thinking.
    Reasoning(String),
    /// Of its answer.
    Content(String),
}

impl Delta {
    /// The text of either.
    pub fn text(&self) -> &str {
        match self {
            Self::Reasoning(text) | Self::Content(text) => text,
        }
    }
}

/// Reads an answer token by token. Text is given out whole: nothing of a character whose tokens have not all come, and
/// nothing of a marker or of what may yet become a stop text.
///
/// Line breaks at the beginning, and a character that never gets complete at the end, are left out; bytes that are no
/// character become U+FFFD.
pub struct OutputParser {
    chunks: Chunks,
    deltas: Pin<Box<dyn Stream<Item = Result<Delta, StreamError>> + Send>>,
    tokenizer: Arc<Tokenizer>,
    /// The token whose coming ends the thinking, until it comes.
    thinking_until: Option<u32>,
    /// What was given out, and the tokens that came since the thinking ended.
    answer: Answer,
    token_ids: Vec<u32>,
    thinking_tokens: usize,
    has_ended: bool,
}

impl OutputParser {
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, thinking_end: u32, thinks: bool, stop: &[String]) -> Self {
        let options = ParsingOptions {
            // There are no tools to call; without them the markup is text like any other.
            parse_tool_calls: false,
            thinking_initial_stage: thinks.then_some(ThinkingInitialStage::ReasoningStart),
            stop_sequences: stop.to_vec(),
            ..ParsingOptions::default()
        };
        let chunks = Chunks::default();
        let processor = StreamProcessor::new(Deltas, options).with_tokenizer(Decoder(Arc::clone(&tokenizer)));
        Self {
            deltas: Box::pin(processor.into_protocol_stream(chunks.clone())),
            chunks,
            tokenizer,
            thinking_until: thinks.then_some(thinking_end),
            answer: Answer::default(),
            token_ids: Vec::new(),
            thinking_tokens: 0,
            has_ended: false,
        }
    }

    /// Takes the next token; returns the text that became certain. Tokens after a stop text give nothing.
    ///
    /// # Errors
    /// [`CodecError::Output`].
    pub fn push(&mut self, token_id: u32) -> Result<Vec<Delta>, CodecError> {
        if self.has_ended {
            return Ok(Vec::new());
        }
        if self.thinking_until.is_some() {
            self.thinking_tokens += 1;
            self.thinking_until = self.thinking_until.filter(|&end| end != token_id);
        } else {
            self.token_ids.push(token_id);
        }
        self.chunks.put(InferenceChunk::Tokens { token_ids: vec![token_id], logprobs: None });
        self.take_deltas()
    }

    /// Whether a stop text has come.
    pub fn has_stopped(&self) -> bool {
        self.has_ended
    }

    /// Tokens of the thinking so far, with the marker that ends it.
    pub fn thinking_tokens(&self) -> usize {
        self.thinking_tokens
    }

    /// Ends the answer; returns the text that was held back, and the whole.
    ///
    /// # Errors
    /// [`CodecError::Output`].
    pub fn finish(mut self) -> Result<(Vec<Delta>, Answer), CodecError> {
        self.chunks.put(InferenceChunk::Finish { finish_reason: InferenceFinishReason::Stop });
        let rest = self.take_deltas()?;
        let Self { tokenizer, mut answer, token_ids, .. } = self;
        // Where the text leaves something of the tokens out, the model had better see the text again.
        let is_whole = tokenizer.decode(&token_ids).trim_start_matches('\n') == answer.content;
        answer.token_ids = is_whole.then_some(token_ids);
        Ok((rest, answer))
    }

    fn take_deltas(&mut self) -> Result<Vec<Delta>, CodecError> {
        let mut taken = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match self.deltas.as_mut().poll_next(&mut context) {
                Poll::Ready(Some(Ok(delta))) => {
                    match &delta {
                        Delta::Reasoning(text) => self.answer.reasoning.push_str(text),
                        Delta::Content(text) => self.answer.content.push_str(text),
                    }
                    taken.push(delta);
                }
                Poll::Ready(Some(Err(error))) => return Err(CodecError::Output { detail: error.to_string() }),
                Poll::Ready(None) => {
                    self.has_ended = true;
                    return Ok(taken);
                }
                Poll::Pending => return Ok(taken),
            }
        }
    }
}

impl std::fmt::Debug for OutputParser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutputParser").field("answer", &self.answer).finish_non_exhaustive()
    }
}

/// Chunks that the recipe has not read yet.
#[derive(Clone, Default)]
struct Chunks(Arc<Mutex<VecDeque<InferenceChunk>>>);

impl Chunks {
    fn put(&self, chunk: InferenceChunk) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(chunk);
    }
}

impl Stream for Chunks {
    type Item = InferenceChunk;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<InferenceChunk>> {
        let next = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        next.map_or(Poll::Pending, |chunk| Poll::Ready(Some(chunk)))
    }
}

/// Keeps the text of the recipe's chunks.
struct Deltas;

impl ChunkGenerator for Deltas {
    type Chunk = Delta;

    async fn generate(&mut self, chunk: OutputChunk) -> Vec<Delta> {
        match chunk {
            OutputChunk::Content { content, .. } => vec![Delta::Content(content)],
            OutputChunk::Reasoning { content, .. } => vec![Delta::Reasoning(content)],
            OutputChunk::Start { .. }
            | OutputChunk::Finish { .. }
            // Not without tools.
            | OutputChunk::ToolCallBegin
            | OutputChunk::ToolCallNamed { .. }
            | OutputChunk::ToolCallArgumentsDelta { .. } => Vec::new(),
        }
    }
}

/// The tokenizer in the recipe's terms.
struct Decoder(Arc<Tokenizer>);

impl StreamTokenizer for Decoder {
    fn decode_ids(&self, ids: &[u32], _skip_special_tokens: bool) -> Result<String, String> {
        Ok(self.0.decode(ids))
    }

    fn is_special_token(&self, id: u32) -> bool {
        self.0.is_added(id)
    }
}
