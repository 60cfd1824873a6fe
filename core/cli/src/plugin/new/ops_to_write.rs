//! The list of ops that a new project has still to write, as comments in its language: meaning, arguments and contract,
//! from the catalogue of this program.

use std::fmt::Write;

use deepinfer_parity::{identity_of, required_ops};

use crate::args::Language;

/// The catalogue as a document, which code generation keeps fresh.
const OPS: &str = include_str!("../../../../../plugin-api/OPS.md");
/// Columns of a line, without its comment mark.
const WIDTH: usize = 112;
/// Begin of the sections that are of no op.
const INTRODUCTION: [&str; 3] = ["Shapes name", "Formats:", "Contracts"];

/// The list for the ops of a profile, without those that are written.
///
/// # Panics
/// If the catalogue has no such profile.
pub(crate) fn listing(lang: Language, profile: &str, written: &[&str]) -> String {
    let required = required_ops(profile).unwrap_or_else(|| panic!("the catalogue has no profile {profile}"));
    let ops: Vec<&str> = required.iter().copied().filter(|op| !written.contains(op)).collect();
    let mut text = format!(
        "The {} ops of the profile {profile} that are not written yet: signature, meaning, arguments, contract. Take one \
         out when it is.\n",
        ops.len()
    );
    let introduction = OPS.lines().filter(|line| INTRODUCTION.iter().any(|begin| line.starts_with(begin)));
    introduction.for_each(|line| add(&mut text, &format!("\n{line}")));
    for op in ops {
        add(&mut text, &format!("\n---- {op} ----\n\n{}\n\n{}", signature(lang, op), section(op)));
    }
    let mut comments = String::new();
    for line in text.lines().flat_map(|line| wrap(line, WIDTH)) {
        comments.push_str(format!("// {line}").trim_end());
        comments.push('\n');
    }
    comments
}

// Writing to a string cannot fail.
fn add(text: &mut String, line: &str) {
    let _ = writeln!(text, "{line}");
}

/// What the kernel of an op is declared as.
fn signature(lang: Language, op: &str) -> String {
    let (_, version) = identity_of(op).unwrap_or_else(|| panic!("the catalogue has no op {op}"));
    let camel: String = op.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect();
    match lang {
        Language::Rust => format!("fn {op}(cx: &Cx<'_>, mut a: {camel}Args<'_>) -> Result<(), Fault>"),
        Language::C => {
            format!("DiError *{op}(DiBackend *, DiPlan *, DiStream *, const DiOpHeader *);\nDiArgs{camel}V{version}")
        }
        Language::Cpp => format!("void {op}(const deepinfer::Call<DiArgs{camel}V{version}> &);"),
    }
}

/// The section of an op, its table of arguments as lines.
fn section(op: &str) -> String {
    let title = format!("\n## {op}\n");
    let (_, rest) = OPS.split_once(&title).unwrap_or_else(|| panic!("the document of the ops has no {op}"));
    let body = rest.split_once("\n## ").map_or(rest, |(body, _)| body);
    let mut text = String::new();
    for line in body.trim().lines() {
        match line {
            _ if line.starts_with("```") || line.starts_with("|---") || line.starts_with("| argument |") => {}
            _ if line.starts_with('|') => add(&mut text, &argument(line)),
            _ if line.starts_with("- ") => add(&mut text, &line.replace('`', "")),
            _ => add(&mut text, line),
        }
    }
    text.trim_end().to_owned()
}

/// A row of the table: name, role, shape, formats, meaning.
fn argument(row: &str) -> String {
    let plain = row.replace('`', "");
    let cells: Vec<&str> = plain.trim_matches('|').split('|').map(str::trim).collect();
    let [name, role, shape, formats, meaning] = cells[..] else { return row.to_owned() };
    let place = [role, shape, formats].into_iter().filter(|cell| !cell.is_empty()).collect::<Vec<_>>().join(" ");
    format!("  {name}: {place}. {meaning}")
}

/// Breaks a line between words; what follows is indented as the line is.
fn wrap(line: &str, width: usize) -> Vec<String> {
    let indent = &line[..line.len() - line.trim_start().len()];
    let mut lines = Vec::new();
    let mut current = indent.to_owned();
    for word in line.split_whitespace() {
        if current.trim().is_empty() {
            current.push_str(word);
        } else if current.chars().count() + 1 + word.chars().count() <= width {
            current.push(' ');
            current.push_str(word);
        } else {
            lines.push(std::mem::replace(&mut current, format!("{indent}{word}")));
        }
    }
    lines.push(current);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        assert_eq!(wrap("  ab cd ef", 7), ["  ab cd", "  ef"]);
        assert_eq!(wrap("", 7), [""]);
        assert_eq!(wrap("longer_than_that x", 7), ["longer_than_that", "x"]);
    }

    #[test]
    fn rows_become_lines() {
        assert_eq!(argument("| `x` | in | [T, N] | F32, BF16 | Rows. |"), "  x: in [T, N] F32, BF16. Rows.");
        assert_eq!(argument("| `eps` | scalar |  | f32 | Added. |"), "  eps: scalar f32. Added.");
        assert_eq!(argument("| `out` | out | [T] | as `x` | Sums. |"), "  out: out [T] as x. Sums.");
    }

    /// Every op of the profile is listed with its meaning and contract, and every line is a comment.
    #[test]
    fn all_of_the_profile_is_listed() {
        for (lang, signature) in [
            (Language::Rust, "// fn rms_norm(cx: &Cx<'_>, mut a: RmsNormArgs<'_>)"),
            (Language::C, "// DiError *rms_norm(DiBackend *"),
            (Language::Cpp, "// void rms_norm(const deepinfer::Call<DiArgsRmsNormV1> &);"),
        ] {
            let text = listing(lang, "v41-text", &["gather"]);
            assert!(text.lines().all(|line| line.starts_with("//")), "{text}");
            assert!(text.contains(signature), "{text}");
            for op in required_ops("v41-text").unwrap() {
                assert_eq!(text.matches(&format!("// ---- {op} ----\n")).count(), usize::from(*op != "gather"), "{op}");
            }
            assert_eq!(text.matches("// Contract: ").count(), required_ops("v41-text").unwrap().len() - 1);
            assert_eq!(text.matches("// ---- ").count(), text.matches("\n// Contract: ").count());
            assert_eq!(text.matches("// ---- ").count(), text.matches("\n// Refused:").count());
            assert!(text.contains("// - experts: K above E\n"), "{text}");
        }
    }
}
