//! Failures that are known.

use crate::glob;

/// A list of cases that are known to fail, each with a reason: one `op[/case] # reason` per line, where op and case may
/// be patterns ([`crate::glob_matches`]).
#[derive(Clone, Debug, Default)]
pub struct Expectations {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    line: usize,
    text: String,
    /// Pattern of whole names, `op/check/number`.
    pattern: String,
    reason: String,
}

/// Why a list of expected failures is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, {text:?}: {problem}")]
pub struct ExpectError {
    /// Line, counted from 1.
    pub line: usize,
    /// Its text.
    pub text: String,
    /// What is wrong with it.
    pub problem: String,
}

impl Expectations {
    /// Reads a list. Empty lines and lines that begin with `#` are comments. `ops` are the names that may stand before
    /// the slash.
    ///
    /// # Errors
    /// The first line that gives no reason, or that names no op.
    pub fn parse(text: &str, ops: &[&str]) -> Result<Self, ExpectError> {
        let mut entries = Vec::new();
        for (index, whole) in text.lines().enumerate() {
            let error = |problem: String| ExpectError { line: index + 1, text: whole.to_owned(), problem };
            let (name, reason) = match whole.split_once('#') {
                _ if whole.trim().is_empty() => continue,
                Some((name, _)) if name.trim().is_empty() => continue,
                Some((name, reason)) if !reason.trim().is_empty() => (name.trim(), reason.trim()),
                _ => return Err(error("a reason is missing; write `op/case # reason`".to_owned())),
            };
            let (op, case) = name.split_once('/').unwrap_or((name, "*"));
            if !ops.iter().any(|known| glob::matches(op, known)) {
                return Err(error(format!("no op is called {op:?}")));
            }
            let (text, reason) = (name.to_owned(), reason.to_owned());
            entries.push(Entry { line: index + 1, text, pattern: format!("{op}/{case}"), reason });
        }
        Ok(Self { entries })
    }

    /// Why a case is expected to fail, if it is.
    pub fn reason(&self, name: &str) -> Option<&str> {
        self.entries.iter().find(|entry| glob::matches(&entry.pattern, name)).map(|entry| entry.reason.as_str())
    }

    /// Lines of which cases ran and none failed, as sentences. `ran` are names of cases and whether they failed.
    pub fn unexpected_passes(&self, ran: &[(&str, bool)]) -> Vec<String> {
        let mut passes = Vec::new();
        for Entry { line, text, pattern, reason } in &self.entries {
            let named = || ran.iter().filter(|(name, _)| glob::matches(pattern, name));
            let count = named().count();
            if count > 0 && named().all(|(_, failed)| !failed) {
                passes.push(format!("line {line}: {text} ({reason}): all {count} cases pass; remove the line"));
            }
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPS: [&str; 2] = ["rstd", "rms_norm"];

    #[test]
    fn a_line_names_cases_and_gives_a_reason() {
        let list = Expectations::parse("# known\n\nrstd # too coarse\nrms_*/value/1? # ragged rows\n", &OPS).unwrap();
        assert_eq!(list.reason("rstd/twice/3"), Some("too coarse"));
        assert_eq!(list.reason("rms_norm/value/12"), Some("ragged rows"));
        assert_eq!(list.reason("rms_norm/value/2"), None);
    }

    #[test]
    fn a_line_without_reason_or_op_is_refused() {
        let error = |text: &str| Expectations::parse(text, &OPS).unwrap_err();
        assert_eq!(error("\nrstd").line, 2);
        assert!(error("rstd #").to_string().contains("a reason is missing"));
        assert!(error("rsdt # typo").to_string().contains("no op is called \"rsdt\""));
    }

    #[test]
    fn a_line_passes_unexpectedly_when_none_of_its_cases_fails() {
        let list = Expectations::parse("rstd # a\nrms_norm/rows/* # b\nrms_norm/twice/* # c", &OPS).unwrap();
        let ran = [("rstd/value/0", false), ("rstd/value/1", true), ("rms_norm/rows/0", false)];
        let passes = list.unexpected_passes(&ran);
        assert_eq!(passes, ["line 2: rms_norm/rows/* (b): all 1 cases pass; remove the line"]);
    }
}
