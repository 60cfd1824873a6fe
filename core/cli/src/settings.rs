//! Variables of the environment that begin with `DEEPINFER_`: those that this program reads, and others, which are a plugin's
//! affair or nobody's.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

use deepinfer_runtime::one_line;

/// What all of them begin with.
const PREFIX: &str = "DEEPINFER_";

/// Those that the program reads, sorted; README.md says what each does.
pub(crate) const KNOWN: [&str; 9] = [
    "DEEPINFER_ACCELERATOR",
    "DEEPINFER_BATCH_INVARIANT",
    "DEEPINFER_FLIGHT_RECORDER",
    "DEEPINFER_GRAPHS",
    "DEEPINFER_HF_MODEL_DIR",
    "DEEPINFER_LAYERS",
    "DEEPINFER_OP_IMPL",
    "DEEPINFER_PLUGIN_PATH",
    "DEEPINFER_ZERO_OVERHEAD_SCHEDULING",
];

/// Those that are set, by name, each with its value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings(BTreeMap<OsString, OsString>);

impl Settings {
    /// Those of this process.
    pub(crate) fn of_environment() -> Self {
        Self(std::env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(PREFIX.as_bytes())).collect())
    }

    /// The same without some.
    pub(crate) fn without(mut self, names: &[&str]) -> Self {
        self.0.retain(|name, _| !names.iter().any(|other| name == other));
        self
    }

    /// Names, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &OsStr> {
        self.0.keys().map(OsString::as_os_str)
    }

    /// Names and values for a report, whose text is Unicode: bytes that are none are replaced.
    pub(crate) fn for_report(&self) -> BTreeMap<String, String> {
        let text = |bytes: &OsString| bytes.to_string_lossy().into_owned();
        self.0.iter().map(|(name, value)| (text(name), text(value))).collect()
    }

    /// What sets them for one command of a shell: `NAME=VALUE` and a blank for each. A shell cannot set those of which the
    /// name is no word of letters, digits and `_`.
    pub(crate) fn for_a_shell(&self) -> String {
        let is_settable = |name: &OsStr| name.as_bytes().iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_');
        let set = self.0.iter().filter(|(name, _)| is_settable(name));
        set.map(|(name, value)| format!("{}={} ", name.display(), quoted(value))).collect()
    }
}

/// A word for a shell, on one line whatever it is made of.
pub(crate) fn quoted(word: impl AsRef<OsStr>) -> String {
    let word = word.as_ref();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,+".contains(c);
    match word.to_str() {
        Some("") => "''".to_owned(),
        Some(text) if text.chars().all(is_plain) => text.to_owned(),
        Some(text) if one_line(text) == text => format!("'{}'", text.replace('\'', "'\\''")),
        // What cannot be printed, in the notation of POSIX.1-2024. A shell that does not know it must not see an end of the quotes.
        _ => {
            let mut out = "$'".to_owned();
            for &byte in word.as_bytes() {
                // Writing to a string cannot fail.
                let _ = match byte {
                    b' '..=b'~' if !matches!(byte, b'\'' | b'\\') => write!(out, "{}", char::from(byte)),
                    _ => write!(out, "\\x{byte:02x}"),
                };
            }
            out + "'"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_shell() {
        assert_eq!(quoted("./lib_x.so:0"), "./lib_x.so:0");
        assert_eq!(quoted("leaked threads"), "'leaked threads'");
        assert_eq!(quoted("x?a=1&b='"), "'x?a=1&b='\\'''");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("a\n'\u{202e}"), "$'a\\x0a\\x27\\xe2\\x80\\xae'");
        assert_eq!(quoted(OsStr::from_bytes(b"a\xffb c")), "$'a\\xffb c'");
    }

    #[test]
    fn a_shell_gets_what_it_can_set() {
        let pairs = [("DEEPINFER_B", "1 2"), ("DEEPINFER_A", ""), ("DEEPINFER_X-Y", "3"), ("DEEPINFER_C", "0")];
        let settings = Settings(pairs.iter().map(|(name, value)| (name.into(), value.into())).collect());
        assert_eq!(settings.clone().without(&["DEEPINFER_C"]).for_a_shell(), "DEEPINFER_A='' DEEPINFER_B='1 2' ");
        assert_eq!(settings.for_report()["DEEPINFER_X-Y"], "3");
    }

    #[test]
    fn the_known_ones_are_those_of_the_readme() {
        let readme = include_str!("../../../README.md");
        let rows = readme.lines().filter_map(|line| line.strip_prefix("| `DEEPINFER_"));
        let mut named: Vec<String> =
            rows.map(|row| format!("{PREFIX}{}", row.split('`').next().unwrap_or_default())).collect();
        named.sort();
        assert_eq!(named, KNOWN);
    }
}
