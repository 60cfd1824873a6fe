//! A report as JUnit XML, which CI systems show.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::outcome::Outcome;
use crate::report::{OpSummary, Report};

/// The document.
pub fn document(report: &Report) -> String {
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(xml, "<testsuites name=\"deepinfer parity: {}\">", escape(&report.identity.backend));
    for op in &report.ops {
        suite(&mut xml, op, report);
    }
    problems(&mut xml, "profile", &report.missing_ops, "the backend lacks this op of the profile");
    problems(&mut xml, "expected failures", &report.unexpected_passes, "an expected failure does not occur");
    xml.push_str("</testsuites>\n");
    xml
}

fn suite(xml: &mut String, op: &OpSummary, report: &Report) {
    let OpSummary { op, cases, failures, expected_failures, unsupported, not_tried, .. } = op;
    let _ = writeln!(
        xml,
        "  <testsuite name=\"{}\" tests=\"{cases}\" failures=\"{failures}\" skipped=\"{}\">",
        escape(op),
        expected_failures + unsupported + not_tried
    );
    properties(xml, &report.settings);
    for line in report.lines.iter().filter(|line| line.op == *op) {
        let name = line.name.strip_prefix(&format!("{op}/")).unwrap_or(&line.name);
        let _ = write!(
            xml,
            "    <testcase classname=\"{}\" name=\"{}\" time=\"{:.6}\"",
            escape(op),
            escape(name),
            line.seconds
        );
        match (&line.outcome, &line.expected_failure) {
            (Outcome::Passed { .. }, _) => xml.push_str("/>\n"),
            (Outcome::Unsupported { reason }, _) => skipped(xml, &format!("not supported: {reason}")),
            (Outcome::NotTried { reason }, _) => skipped(xml, &format!("not tried: {reason}")),
            (Outcome::Failed(_), Some(reason)) => skipped(xml, &format!("expected failure: {reason}")),
            (Outcome::Failed(failure), None) => {
                let call = line.facts.as_ref().map_or("", |facts| facts.call.as_str());
                let kind = failure.fault.map_or_else(String::new, |fault| format!(" type=\"{fault}\""));
                let bundle = line.bundle.as_ref().map_or_else(String::new, |path| format!("\n{path}"));
                let _ = writeln!(
                    xml,
                    "><failure{kind} message=\"{}\">{}\n{}{}</failure></testcase>",
                    escape(&failure.to_string()),
                    escape(call),
                    escape(&line.rerun),
                    escape(&bundle)
                );
            }
        }
    }
    xml.push_str("  </testsuite>\n");
}

/// Variables of the environment, where the schema has a place for them.
fn properties(xml: &mut String, settings: &BTreeMap<String, String>) {
    if settings.is_empty() {
        return;
    }
    xml.push_str("    <properties>\n");
    for (name, value) in settings {
        let _ = writeln!(xml, "      <property name=\"{}\" value=\"{}\"/>", escape(name), escape(value));
    }
    xml.push_str("    </properties>\n");
}

fn skipped(xml: &mut String, reason: &str) {
    let _ = writeln!(xml, "><skipped message=\"{}\"/></testcase>", escape(reason));
}

/// A suite of failures that belong to no case; none when there are none.
fn problems(xml: &mut String, suite: &str, names: &[String], problem: &str) {
    if names.is_empty() {
        return;
    }
    let count = names.len();
    let _ = writeln!(xml, "  <testsuite name=\"{suite}\" tests=\"{count}\" failures=\"{count}\" skipped=\"0\">");
    for name in names {
        let name = escape(name);
        let _ = writeln!(
            xml,
            "    <testcase classname=\"{suite}\" name=\"{name}\"><failure message=\"{problem}\"/></testcase>"
        );
    }
    xml.push_str("  </testsuite>\n");
}

/// Text for element content and attributes, of XML and of HTML. Characters that XML cannot hold become U+FFFD.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() || matches!(c, '\u{FFFE}' | '\u{FFFF}') => out.push('\u{FFFD}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn nothing_of_a_text_is_markup() {
        assert_eq!(escape("a<b & \"c\" 'd'>\u{1b}[0m\n"), "a&lt;b &amp; &quot;c&quot; &#39;d&#39;&gt;\u{FFFD}[0m\n");
    }
}
