//! Text of plugins and names of files, for people.

/// The text on one line: control characters, which could move the cursor or look like another message, are written out.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_out_and_others_stay() {
        assert_eq!(one_line("a\u{1b}[31m\n\u{9b}b"), "a\\u{1b}[31m\\n\\u{9b}b");
        assert_eq!(one_line("naïve \\ \"x\" 模型"), "naïve \\ \"x\" 模型");
    }
}
