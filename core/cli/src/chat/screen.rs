//! Answers on standard output as they come.

use std::borrow::Cow;

use deepinfer_codec::Delta;

use crate::failure::Failure;
use crate::output::Output;

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Prints what the model says. Thinking stands between `<think>` and `</think>`, and is dimmed in a terminal.
pub(crate) struct Screen {
    output: Output,
    has_colours: bool,
    is_thinking: bool,
}

impl Screen {
    /// Standard output.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(crate) fn open() -> Result<Self, Failure> {
        let output = Output::stdout()?;
        // See no-color.org.
        let wants_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let has_colours = output.is_terminal() && !wants_plain;
        Ok(Self { output, has_colours, is_thinking: false })
    }

    /// Whether a person looks on.
    pub(crate) fn is_terminal(&self) -> bool {
        self.output.is_terminal()
    }

    /// Prints a piece of an answer.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub(crate) fn print(&mut self, delta: &Delta) -> Result<(), Failure> {
        let mut text = String::new();
        match (delta, self.is_thinking) {
            (Delta::Reasoning(_), false) => self.begin_thinking(&mut text),
            (Delta::Content(_), true) => self.end_thinking(&mut text),
            _ => {}
        }
        text += &if self.is_terminal() { visible(delta.text()) } else { delta.text().into() };
        self.output.write(&text)
    }

    /// Ends an answer.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        let mut text = String::new();
        if self.is_thinking {
            self.end_thinking(&mut text);
        } else {
            text.push('\n');
        }
        self.output.write(&text)
    }

    fn begin_thinking(&mut self, text: &mut String) {
        self.is_thinking = true;
        *text += if self.has_colours { DIM } else { "" };
        *text += "<think>\n";
    }

    fn end_thinking(&mut self, text: &mut String) {
        self.is_thinking = false;
        *text += "\n</think>\n";
        *text += if self.has_colours { PLAIN } else { "" };
    }
}

/// Text that cannot repaint the screen: control characters are written out, but line breaks and tabs stay.
fn visible(text: &str) -> Cow<'_, str> {
    let is_hidden = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(is_hidden) {
        return text.into();
    }
    text.chars().map(|c| if is_hidden(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_out() {
        assert_eq!(visible("a\tb\n\u{1b}[2J\u{9b}é\r"), "a\tb\n\\u{1b}[2J\\u{9b}é\\r");
        assert!(matches!(visible("plain é\n"), Cow::Borrowed(_)));
    }
}
