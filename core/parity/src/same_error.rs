//! When two errors are the same one.

/// What two errors share if they are the same: the longest clause between colons, and all behind it, with numbers left out. What
/// stands before it says where an error was noticed, as in `the stream: a kernel failed: block 2 writes beyond its buffer`.
pub fn essence(error: &str) -> String {
    let clauses: Vec<String> = error.split(": ").map(without_numbers).collect();
    let lengths = clauses.iter().map(|clause| clause.chars().count());
    // The first of several that are as long.
    let longest = lengths.enumerate().fold((0, 0), |best, (at, long)| if long > best.1 { (at, long) } else { best }).0;
    clauses[longest..].join(": ")
}

/// The text with `#` for every word that begins with a digit: an address or an index is of one call.
fn without_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut in_word, mut in_number) = (false, false);
    for c in text.chars() {
        let is_of_word = c.is_alphanumeric() || c == '_';
        if is_of_word && !in_word {
            in_number = c.is_ascii_digit();
            out.extend(in_number.then_some('#'));
        }
        if !(is_of_word && in_number) {
            out.push(c);
        }
        in_word = is_of_word;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_and_the_numbers_make_no_difference() {
        let kernel = |place: &str, block: u32| {
            format!(
                "{place}: a kernel failed (507035): EF507035: rstd: block {block} writes 0x{block:x}f of out; restart it"
            )
        };
        let one = essence(&kernel("the device is lost: npu/copy: a copy", 2));
        assert_eq!(one, "block # writes # of out; restart it");
        assert_eq!(one, essence(&kernel("the stream", 17)));
        assert_ne!(
            one,
            essence("the stream: a kernel failed (507035): EF507035: rstd: block 2 reads 0x2f of out; restart it")
        );
    }

    #[test]
    fn other_words_are_another_error() {
        let signals = ["killed by signal 11 (SIGSEGV)", "killed by signal 6 (SIGABRT)"].map(essence);
        assert_eq!(signals, ["killed by signal # (SIGSEGV)", "killed by signal # (SIGABRT)"]);
        assert_eq!(essence(""), "");
        assert_eq!(essence("x1 1x a_2 3.5e7: b"), "x1 # a_2 #.#: b");
    }
}
