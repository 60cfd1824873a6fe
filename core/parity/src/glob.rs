//! Patterns for names: `*` stands for any characters, `?` for one.

/// Whether all of `text` fits `pattern`.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where to go on when the last star must swallow one character more.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                p += 1;
                retry = Some((p, t));
            }
            Some(&c) if c == '?' || c == text[t] => (p, t) = (p + 1, t + 1),
            _ => {
                let Some((after_star, swallowed)) = retry else { return false };
                (p, t) = (after_star, swallowed + 1);
                retry = Some((after_star, swallowed + 1));
            }
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, text) in [
            ("rstd", "rstd"),
            ("*", ""),
            ("*", "rstd/value/1"),
            ("rms_*", "rms_norm"),
            ("*_kv_*", "store_kv_cache"),
            ("rstd/*/1?", "rstd/value/12"),
            ("*a*b", "aabab"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in
            [("rst", "rstd"), ("rstd", "rst"), ("", "x"), ("?", ""), ("rstd/value/1", "rstd/value/12")]
        {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }
}
