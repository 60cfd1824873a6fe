//! Where messages come from: a line editor in a terminal, else the lines of standard input.

use std::io::{BufRead, IsTerminal, stdin};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};

use anyhow::{Context, anyhow};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use super::interrupt::{Interrupts, POLL};
use crate::failure::Failure;

/// Reads messages.
pub(crate) enum Input {
    /// The history of lines lasts as long as the program.
    Terminal(Box<DefaultEditor>),
    /// Read by a thread of their own, since a read cannot be left when Ctrl-C comes.
    Lines(Receiver<std::io::Result<String>>),
}

impl Input {
    /// Standard input. The editor draws on standard output, so both must be a terminal.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub(crate) fn open(output_is_terminal: bool) -> Result<Self, Failure> {
        if stdin().is_terminal() && output_is_terminal {
            let config = rustyline::Config::builder().auto_add_history(true).build();
            let editor =
                DefaultEditor::with_config(config).context("cannot use the terminal").map_err(Failure::Fault)?;
            return Ok(Self::Terminal(Box::new(editor)));
        }
        let (sender, lines) = sync_channel(1);
        let read = move || {
            for line in stdin().lock().lines() {
                let is_error = line.is_err();
                // Nobody listens any more when the conversation has ended.
                if sender.send(line).is_err() || is_error {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("deepinfer-input".to_owned()).spawn(read);
        thread.context("the system gives no thread for the input").map_err(Failure::Fault)?;
        Ok(Self::Lines(lines))
    }

    /// Whether lines are edited in a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// The next line, `None` when there are no more or Ctrl-C was pressed.
    ///
    /// # Errors
    /// The input cannot be read.
    pub(crate) fn next(&mut self, interrupts: &Interrupts) -> Result<Option<String>, Failure> {
        match self {
            Self::Terminal(editor) => match editor.readline("> ") {
                Ok(line) => Ok(Some(line)),
                Err(ReadlineError::Eof | ReadlineError::Interrupted) => Ok(None),
                Err(error) => Err(Failure::Fault(anyhow!("cannot read from the terminal: {error}"))),
            },
            Self::Lines(lines) => loop {
                match lines.recv_timeout(POLL) {
                    Ok(Ok(line)) => return Ok(Some(line)),
                    Ok(Err(error)) => return Err(Failure::Input(anyhow!("cannot read standard input: {error}"))),
                    Err(RecvTimeoutError::Timeout) if !interrupts.take() => {}
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(None),
                }
            },
        }
    }
}
