//! Text of plugins and names of files, for people.

/// The text on one line: control characters, which could move the cursor or look like another message, and those that change
/// the order of what is read, are written out.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if is_treacherous(c) { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

/// Whether a character makes a text look like another: control characters, separators of lines and paragraphs, and those that
/// set the direction of writing (Unicode Standard Annex 9, explicit formatting characters and marks).
pub(crate) fn is_treacherous(c: char) -> bool {
    let sets_direction =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || sets_direction || matches!(c, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_out_and_others_stay() {
        assert_eq!(one_line("a\u{1b}[31m\n\u{9b}b"), "a\\u{1b}[31m\\n\\u{9b}b");
        assert_eq!(one_line("npu\u{202e}x\u{2067}\u{200f}\u{2028}"), "npu\\u{202e}x\\u{2067}\\u{200f}\\u{2028}");
        assert_eq!(one_line("naïve \\ \"x\" 模型 אב"), "naïve \\ \"x\" 模型 אב");
    }
}
