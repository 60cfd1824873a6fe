//! What the person at the terminal sees besides results: messages, progress bars and figures, all on standard error.

use std::fmt::Display;
use std::io::{IsTerminal, Write, stderr};

use deepinfer_runtime::one_line;
use indicatif::{ProgressBar, ProgressStyle};

/// A report that is safe to print: control characters of file names, tensors and plugins, which could repaint the screen,
/// are written out, except the ends of lines.
pub(crate) fn printable(report: &str) -> String {
    report.split('\n').map(one_line).collect::<Vec<_>>().join("\n")
}

/// The same for a message, whose further lines are indented: a name with a line feed in it must not look like another
/// message.
fn sentence(message: &str) -> String {
    message.split("\n  ").map(one_line).collect::<Vec<_>>().join("\n  ")
}

/// Prints an error.
pub(crate) fn error(message: &dyn Display) {
    line(&sentence(&format!("error: {message}")));
}

/// Prints a warning.
pub(crate) fn warning(message: &dyn Display) {
    line(&sentence(&format!("warning: {message}")));
}

/// Prints what the person must know even when standard error goes to a file.
pub(crate) fn say(message: &dyn Display) {
    line(&sentence(&message.to_string()));
}

/// Prints figures that are of several lines, where standard output is for something else.
pub(crate) fn figures(text: &str) {
    line(&printable(text));
}

/// Prints figures about a run, dimmed; nothing when standard error is not a terminal.
pub(crate) fn note(message: impl FnOnce() -> String) {
    if !stderr().is_terminal() {
        return;
    }
    let message = sentence(&message());
    if stderr_has_colours() {
        line(&format!("\x1b[2m{message}\x1b[0m"));
    } else {
        line(&message);
    }
}

/// Whether standard error is a terminal whose user did not ask for plain text (`NO_COLOR`, see no-color.org).
fn stderr_has_colours() -> bool {
    stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A bar of bytes, from none to all. Bars are invisible when standard error is not a terminal.
pub(crate) fn bytes_bar(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::no_length().with_message(what);
    bar.with_style(style("{msg} {bar:30} {binary_bytes}/{binary_total_bytes}"))
}

/// A bar of requests; without a total, when the requests are still being written, a count.
pub(crate) fn requests_bar(total: Option<u64>) -> ProgressBar {
    match total {
        Some(total) => ProgressBar::new(total).with_style(style("{bar:30} {pos}/{len} requests, {msg} ({elapsed})")),
        None => ProgressBar::no_length().with_style(style("{spinner} {pos} requests, {msg} ({elapsed})")),
    }
}

/// A bar of rows.
pub(crate) fn rows_bar(total: u64) -> ProgressBar {
    ProgressBar::new(total).with_style(style("{bar:30} {human_pos}/{human_len} rows ({elapsed})"))
}

/// A bar of cases, with the name of the present one.
pub(crate) fn cases_bar(total: u64) -> ProgressBar {
    ProgressBar::new(total).with_style(style("{bar:30} {pos}/{len} cases, {msg} ({elapsed})"))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates of this file are valid")
}

/// Unlike `eprintln!`, a closed standard error is no reason to panic: there is nobody left to tell.
fn line(text: &str) {
    let _ = writeln!(stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_out() {
        assert_eq!(printable("a\u{1b}[31m\r\n\u{9b}2J\u{7f}\n"), "a\\u{1b}[31m\\r\n\\u{9b}2J\\u{7f}\n");
        assert_eq!(sentence("tried\n  a\nerror: b\n  c\t"), "tried\n  a\\nerror: b\n  c\\t");
        assert_eq!(sentence("naïve \\ 'x' 模型"), "naïve \\ 'x' 模型");
    }
}
