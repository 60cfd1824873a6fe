//! A conversation with an engine.

use std::path::Path;

use anyhow::anyhow;
use deepinfer_codec::{Answer, Codec, Conversation, Message, OutputParser};
use deepinfer_engine::{
    EngineError, EngineHandle, FinishReason, Request, RequestOutput, RequestTimes, SamplingParams, StreamEvent,
};

use super::args::{AnswerArgs, ChatArgs};
use super::command::{self, Command};
use super::interrupt::Interrupts;
use super::screen::Screen;
use super::transcript::{self, AnswerNote};
use crate::failure::Failure;
use crate::terminal;

/// What was said so far, and how the next answer is to be given.
pub(crate) struct Session {
    codec: Codec,
    conversation: Conversation,
    answers: AnswerArgs,
    notes: Vec<AnswerNote>,
    model: String,
    /// Most tokens of prompt and answer.
    context: usize,
}

/// Why an answer ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// By itself, or at a stop text.
    Stop,
    /// At a limit.
    Length,
    /// By Ctrl-C.
    Interrupt,
}

/// An answer as the engine gave it.
struct Given {
    answer: Answer,
    thinking_tokens: usize,
    ended: Ended,
    output: Box<RequestOutput>,
    times: RequestTimes,
}

impl Session {
    /// A conversation without a message, which is checked as far as it can be before a model is loaded.
    ///
    /// # Errors
    /// The parameters are refused, the tokenizer lacks a marker, or the system prompt is too long.
    pub(crate) fn begin(codec: Codec, args: &ChatArgs, model: String, context: usize) -> Result<Self, Failure> {
        let answers = args.answers.clone();
        answers.params().validate().map_err(Failure::input)?;
        let system = args.system.clone().filter(|text| !text.is_empty());
        let conversation = Conversation { system, thinking: answers.thinking(), ..Conversation::default() };
        let session = Self { codec, conversation, answers, notes: Vec::new(), model, context };
        match session.codec.encode(&session.with(String::new())).map_err(Failure::input)?.len() {
            tokens if tokens < context => Ok(session),
            tokens => Err(Failure::Input(anyhow!(
                "the system prompt has {tokens} tokens with its markers, but the context holds {context}, and an answer \
                 needs one; make it shorter, or --max-model-len larger"
            ))),
        }
    }

    /// Does what a command asks for. One that cannot be done is told, and changes nothing.
    pub(crate) fn obey(&mut self, command: &Command<'_>) {
        match *command {
            Command::Help => terminal::say(&format_args!("commands:\n  {}", command::HELP.replace('\n', "\n  "))),
            Command::Reset => {
                self.conversation.messages.clear();
                self.notes.clear();
                terminal::say(&"a new conversation");
            }
            Command::System("") => {
                self.conversation.system = None;
                terminal::say(&"no system prompt any more");
            }
            Command::System(text) => {
                self.change("the system prompt is set", |session| session.conversation.system = Some(text.to_owned()));
            }
            Command::Params("") => terminal::say(&self.answers.in_words()),
            Command::Params(options) => match command::changed(&self.answers, options) {
                Ok(answers) => {
                    let words = answers.in_words();
                    self.change(&words, |session| {
                        session.conversation.thinking = answers.thinking();
                        session.answers = answers;
                    });
                }
                Err(sentence) => terminal::error(&sentence),
            },
            Command::Save("") => terminal::error(&"/save needs the name of a file"),
            Command::Save(file) => self.save(Path::new(file)),
            Command::Quit => unreachable!("the caller leaves"),
        }
    }

    /// Makes a change and tells of it, unless the tokenizer cannot express what comes of it.
    fn change(&mut self, done: &str, change: impl FnOnce(&mut Self)) {
        let before = (self.conversation.system.clone(), self.conversation.thinking, self.answers.clone());
        change(self);
        match self.codec.encode(&self.with(String::new())) {
            Ok(_) => terminal::say(&done),
            Err(error) => {
                (self.conversation.system, self.conversation.thinking, self.answers) = before;
                terminal::error(&error);
            }
        }
    }

    fn save(&self, path: &Path) {
        let transcript = transcript::of(&self.model, &self.answers.in_words(), &self.conversation, &self.notes);
        match transcript::save(path, &transcript) {
            Ok(()) => terminal::say(&format_args!("the conversation is in {}", path.display())),
            Err(error) => terminal::error(&format_args!("cannot write {}: {error}", path.display())),
        }
    }

    /// The conversation with a message more.
    fn with(&self, message: String) -> Conversation {
        let mut conversation = self.conversation.clone();
        conversation.messages.push(Message::User(message));
        conversation
    }

    /// Says something to the model and prints its answer. A message that gets no answer is not part of the conversation.
    ///
    /// # Errors
    /// Standard output cannot be written, or a fault ends the engine.
    pub(crate) fn say(
        &mut self,
        message: &str,
        engine: &EngineHandle,
        interrupts: &Interrupts,
        screen: &mut Screen,
    ) -> Result<(), Failure> {
        let conversation = self.with(message.to_owned());
        let prompt = match self.codec.encode(&conversation) {
            Ok(prompt) => prompt,
            Err(error) => {
                terminal::error(&error);
                return Ok(());
            }
        };
        let (tokens, context) = (prompt.len(), self.context);
        if tokens >= context {
            terminal::error(&format_args!(
                "the conversation would have {tokens} tokens with this message, but the context holds {context}, and an \
                 answer needs one; /reset begins a new one, or make the message shorter"
            ));
            return Ok(());
        }
        let params = SamplingParams { stop_token_ids: self.codec.stop_token_ids(), ..self.answers.params() };
        let request = Request { id: String::new(), prompt_token_ids: prompt, params };
        let parser = self.codec.parser(conversation.thinking, &self.answers.stop);
        let given = listen(engine, request, parser, interrupts, screen)?;
        screen.end()?;

        if let Some(error) = given.output.outputs.iter().find_map(|completion| completion.error.clone()) {
            return match error {
                EngineError::Request(_) | EngineError::BadLogits { .. } => {
                    terminal::error(&error);
                    Ok(())
                }
                _ => Err(Failure::fault(error)),
            };
        }
        terminal::say(&self.figures(&given));
        let Given { answer, ended, output, .. } = given;
        if answer.content.is_empty() {
            terminal::say(&"there was no answer, so your message is not part of the conversation");
            return Ok(());
        }
        let finish_reason = match ended {
            Ended::Stop => "stop",
            Ended::Length => "length",
            Ended::Interrupt => "abort",
        };
        self.notes.push(AnswerNote { seed: output.seed, finish_reason });
        self.conversation = conversation;
        self.conversation.messages.push(Message::Assistant(answer));
        Ok(())
    }

    /// `40 tokens (12 of thinking), 80.1 tokens/s, first after 0.03 s; 212 tokens of prompt, 128 of them cached; seed 7`,
    /// and what cut the answer.
    fn figures(&self, given: &Given) -> String {
        let Given { thinking_tokens, ended, output, times, .. } = given;
        let tokens: usize = output.outputs.iter().map(|completion| completion.steps.len()).sum();
        let prompt = output.prompt_token_ids.len();
        let mut figures = format!("{tokens} token{}", if tokens == 1 { "" } else { "s" });
        if self.conversation.thinking.is_some() {
            figures += &format!(" ({thinking_tokens} of thinking)");
        }
        if let Some(first) = times.first_token {
            if tokens > 1 {
                let seconds = (times.finished - first).as_secs_f64();
                figures += &format!(", {:.1} tokens/s", (tokens - 1) as f64 / seconds.max(f64::MIN_POSITIVE));
            }
            figures += &format!(", first after {:.2} s", first.as_secs_f64());
        }
        figures += &format!("; {prompt} tokens of prompt, {} of them cached", output.cached_tokens);
        if let Some(seed) = output.seed {
            figures += &format!("; seed {seed}");
        }
        match ended {
            Ended::Stop => {}
            Ended::Interrupt => figures += "; stopped by Ctrl-C",
            Ended::Length if prompt + tokens >= self.context => {
                figures += &format!("; cut off, since the context holds {} tokens", self.context);
            }
            Ended::Length => figures += "; cut off by --max-tokens",
        }
        figures
    }
}

/// Runs a request and prints what comes.
fn listen(
    engine: &EngineHandle,
    request: Request,
    mut parser: OutputParser,
    interrupts: &Interrupts,
    screen: &mut Screen,
) -> Result<Given, Failure> {
    // What was pressed before is not meant for this answer.
    interrupts.take();
    let mut ended = None;
    let mut stream = engine.submit(request);
    let (output, times) = loop {
        let Some(event) = interrupts.wait(stream.next()) else {
            ended.get_or_insert(Ended::Interrupt);
            stream.abort();
            continue;
        };
        match event {
            None => return Err(Failure::Fault(anyhow!("the engine has ended"))),
            Some(StreamEvent::Finished(output, times)) => break (output, times),
            // Of an answer that has ended, tokens may still be on their way.
            Some(StreamEvent::Token(_)) if ended.is_some() => {}
            Some(StreamEvent::Token(token)) => {
                // The token that ends an answer is not part of it.
                if token.finish_reason != Some(FinishReason::Stop) {
                    for delta in parser.push(token.step.token_id).map_err(Failure::fault)? {
                        screen.print(&delta)?;
                    }
                }
                if parser.has_stopped() {
                    ended = Some(Ended::Stop);
                    stream.abort();
                }
            }
        }
    };
    let ended = ended.unwrap_or_else(|| match output.outputs.first().map(|completion| completion.finish_reason) {
        Some(FinishReason::Length) => Ended::Length,
        _ => Ended::Stop,
    });
    let thinking_tokens = parser.thinking_tokens();
    let (rest, answer) = parser.finish().map_err(Failure::fault)?;
    for delta in &rest {
        screen.print(delta)?;
    }
    Ok(Given { answer, thinking_tokens, ended, output, times })
}
