//! A report as one page: a heat map of errors against contracts, and the failures.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use crate::case::ShapeClass;
use crate::finding::Finding;
use crate::junit::escape;
use crate::outcome::Outcome;
use crate::report::{Cell, Declined, OpSummary, Report, Verdict};

/// Columns of the map; empty tensors have no errors.
const SHAPES: [ShapeClass; 4] = [ShapeClass::OneRow, ShapeClass::Aligned, ShapeClass::Ragged, ShapeClass::Wide];

/// Colours by the logarithm of an error's share of its bound, from none to wrong. Each has its own text colour, so that
/// the numbers are readable on a dark page as well as on a light one.
const STYLE: &str = "\
:root{color-scheme:light dark;--page:#fff;--text:#1b1f24;--dim:#59636e;--line:#d1d9e0}
@media(prefers-color-scheme:dark){:root{--page:#0d1117;--text:#e6edf3;--dim:#9198a1;--line:#3d444d}}
body{background:var(--page);color:var(--text);font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin-top:2.2rem}
table{border-collapse:collapse;font-size:.87rem}th,td{padding:.22rem .6rem;border:1px solid var(--line);text-align:left;vertical-align:top}
code,td.n,.formats{font-family:ui-monospace,monospace;font-size:.82rem;overflow-wrap:anywhere}
.map th[colspan]{padding-top:.9rem;border-left:0;border-right:0}
td.n{text-align:right;min-width:4.6rem}td a{color:inherit}.dim{color:var(--dim)}.scroll{overflow-x:auto}
@media(max-width:40rem){body{margin:1rem auto;padding:0 .7rem}th,td{padding:.2rem .35rem}td.n{min-width:0}
.map{table-layout:fixed;width:100%}.map th:first-child{width:38%}.formats{font-size:.75rem}
.list tr{display:block;padding:.3rem 0;border-bottom:1px solid var(--line)}.list td{display:block;border:0;text-align:left}
.list th{display:none}}
.b0{background:#e3e8ee;color:#1b1f24}.b1{background:#d4efdc;color:#0f2e18}.b2{background:#b4e2c2;color:#0f2e18}
.b3{background:#e9e6a5;color:#3a3405}.b4{background:#f6cf7d;color:#3f2a00}.b5{background:#f0a35e;color:#3d1c00}
.b6{background:#b3202c;color:#fff}
.bad{color:#b3202c;font-weight:600}@media(prefers-color-scheme:dark){.bad{color:#ff8088}}
.key span{display:inline-block;padding:.1rem .6rem;margin-right:.3rem;font-size:.82rem}
";

/// The page; it needs no other file. Bundles within `folder`, that of the page, are linked from there, others by their whole
/// path.
pub fn page(report: &Report, folder: Option<&Path>) -> String {
    let mut html = String::new();
    let id = &report.identity;
    let title = escape(&format!("Parity of {} {}", id.backend, id.version));
    // Writing to a string cannot fail, here and below.
    let _ = write!(
        html,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    let levels: Vec<String> = report.levels.iter().map(ToString::to_string).collect();
    let _ = writeln!(
        html,
        "<p class=\"dim\">{} ({}) on {}. Plugin ABI {}; tested by DeepInfer {}, ABI {}. Levels {}, seed {}, profile {}.</p>",
        escape(&id.path),
        escape(&id.build),
        escape(&id.device),
        escape(&id.backend_abi),
        escape(&id.deepinfer),
        escape(&id.abi),
        levels.join(", "),
        report.seed,
        escape(&report.profile),
    );
    settings(&mut html, &report.settings);
    let verdict = match report.verdict {
        Verdict::Conforms => "<strong>conforms</strong>",
        Verdict::Fails => "<strong class=\"bad\">fails</strong>",
    };
    let _ = writeln!(
        html,
        "<p>It {verdict}: {} cases, {} failures, {} expected failures, {} of forms that it does not support, {} not tried.</p>",
        report.cases, report.failures, report.expected_failures, report.unsupported, report.not_tried
    );
    list(&mut html, "Ops of the profile that it lacks", &report.missing_ops);
    list(&mut html, "Ops of its own, of which there are no cases", &report.own_ops);
    list(&mut html, "Expected failures that do not occur", &report.unexpected_passes);
    findings(&mut html, &report.findings);
    failures(&mut html, report);
    heat_map(&mut html, &report.ops, folder);
    summary(&mut html, &report.ops);
    declined(&mut html, &report.ops);
    list(&mut html, "Other ops that it lacks", &report.unsupported_ops);
    html.push_str("</body>\n</html>\n");
    html
}

/// Variables of the environment that may have had a say.
fn settings(html: &mut String, settings: &BTreeMap<String, String>) {
    if settings.is_empty() {
        return;
    }
    let set = |(name, value): (&String, &String)| format!("<code>{}={}</code>", escape(name), escape(value));
    let _ = writeln!(html, "<p class=\"dim\">With {}.</p>", settings.iter().map(set).collect::<Vec<_>>().join(", "));
}

/// Why cases are not supported.
fn declined(html: &mut String, ops: &[OpSummary]) {
    if ops.iter().all(|op| op.declined.is_empty()) {
        return;
    }
    html.push_str(
        "<h2>Not supported</h2>\n<div class=\"scroll\"><table class=\"list\">\n<tr><th>op</th><th>cases</th><th>why</th></tr>\n",
    );
    for op in ops {
        for Declined { reason, cases } in &op.declined {
            let [op, reason] = [&op.op, reason].map(|text| escape(text));
            let _ = writeln!(html, "<tr><td>{op}</td><td class=\"n\">{cases}</td><td>{reason}</td></tr>");
        }
    }
    html.push_str("</table></div>\n");
}

fn list(html: &mut String, title: &str, items: &[String]) {
    if items.is_empty() {
        return;
    }
    let _ = writeln!(html, "<h2>{title}</h2>\n<p>{}</p>", escape(&items.join(", ")));
}

fn findings(html: &mut String, findings: &[Finding]) {
    if findings.is_empty() {
        return;
    }
    html.push_str(
        "<h2>What was found</h2>\n<div class=\"scroll\"><table class=\"list\">\n<tr><th>kind</th><th>op</th><th>cases</th><th></th></tr>\n",
    );
    for Finding { fault, op, cases, sentence, example } in findings {
        let _ = writeln!(
            html,
            "<tr><td class=\"bad\">{fault}</td><td>{}</td><td class=\"n\">{cases}</td><td>{} <a href=\"#{2}\"><code>{2}</code></a>\
             </td></tr>",
            escape(op),
            escape(sentence),
            escape(example)
        );
    }
    html.push_str("</table></div>\n");
}

fn failures(html: &mut String, report: &Report) {
    if report.failed.is_empty() {
        return;
    }
    html.push_str("<h2>Failures</h2>\n<div class=\"scroll\"><table class=\"list\">\n<tr><th>case</th><th>what happened</th></tr>\n");
    for line in &report.failed {
        let Outcome::Failed(failure) = &line.outcome else { continue };
        let expected = line
            .expected_failure
            .as_ref()
            .map_or_else(String::new, |reason| format!("<br><span class=\"dim\">expected: {}</span>", escape(reason)));
        let _ = write!(
            html,
            "<tr id=\"{0}\"><td><code>{0}</code>{expected}</td><td>{1}",
            escape(&line.name),
            escape(&failure.to_string())
        );
        if let Some(facts) = &line.facts {
            let content = facts.content.map_or_else(String::new, |content| format!(", content {content:?}"));
            let _ = write!(html, "<br><code class=\"dim\">{}</code>", escape(&(facts.call.clone() + &content)));
        }
        let _ = writeln!(html, "<br><code>{}</code></td></tr>", escape(&line.rerun));
    }
    html.push_str("</table></div>\n");
}

fn heat_map(html: &mut String, ops: &[OpSummary], folder: Option<&Path>) {
    if ops.iter().all(|op| op.worst.is_empty()) {
        return;
    }
    html.push_str(
        "<h2>Largest error, as a share of what the contract allows</h2>\n\
         <p>1 is the bound. What the last rounding to the format of the output explains does not count. Aligned rows have a \
         multiple of 32 elements, wide ones at least 1024. A number that is underlined leads to the call that gave it, a file for \
         <code>deepinfer replay</code>.</p>\n<p class=\"key\">",
    );
    let key = ["none", "to 1e-3", "to 0.01", "to 0.1", "to 0.5", "to 1", "wrong"];
    for (bucket, text) in key.into_iter().enumerate() {
        let _ = write!(html, "<span class=\"b{bucket}\">{text}</span>");
    }
    html.push_str("</p>\n<div class=\"scroll\"><table class=\"map\">\n<tr><th>formats</th>");
    for shape in SHAPES {
        let _ = write!(html, "<th>{}</th>", shape.name());
    }
    html.push_str("</tr>\n");
    for op in ops {
        let mut formats: Vec<&str> = op.worst.iter().map(|cell| cell.formats.as_str()).collect();
        formats.dedup();
        if !formats.is_empty() {
            let _ = writeln!(html, "<tr><th colspan=\"{}\">{}</th></tr>", SHAPES.len() + 1, escape(&op.op));
        }
        for formats_of_row in &formats {
            let shown = if formats_of_row.is_empty() { "one combination" } else { formats_of_row };
            let _ = write!(html, "<tr><td class=\"formats\">{}</td>", escape(shown));
            for shape in SHAPES {
                match op.worst.iter().find(|cell| cell.formats == **formats_of_row && cell.shape == shape) {
                    Some(cell) => html.push_str(&heat(cell, folder)),
                    None => html.push_str("<td class=\"n dim\">·</td>"),
                }
            }
            html.push_str("</tr>\n");
        }
    }
    html.push_str("</table></div>\n");
}

/// One cell of the map.
fn heat(cell: &Cell, folder: Option<&Path>) -> String {
    let Cell { cases, failures, worst, is_unbounded, worst_case, bundle, .. } = cell;
    let failed = *failures > 0;
    let (bucket, text) = match worst {
        _ if *is_unbounded => (6, "≠".to_owned()),
        Some(share) => (bucket(*share), number(*share)),
        None if failed => (6, "✗".to_owned()),
        None => return format!("<td class=\"n dim\" title=\"{cases} cases, nothing compared\">–</td>"),
    };
    // A failure of another kind, as of determinism, also turns the cell red.
    let bucket = if failed { 6 } else { bucket };
    let worst = worst_case.as_ref().map_or_else(String::new, |name| format!(", worst {}", escape(name)));
    let text = match bundle {
        None => text,
        Some(path) => format!("<a href=\"{}\">{text}</a>", address(path, folder)),
    };
    format!("<td class=\"n b{bucket}\" title=\"{cases} cases, {failures} failures{worst}\">{text}</td>")
}

/// Where a link to a file points, from a page in `folder`.
fn address(path: &str, folder: Option<&Path>) -> String {
    let inner = folder.and_then(|folder| Path::new(path).strip_prefix(folder).ok()).and_then(Path::to_str);
    let mut out = String::new();
    for byte in inner.unwrap_or(path).bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => out.push(char::from(byte)),
            _ => {
                // Writing to a string cannot fail.
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

/// Class of a share, on a logarithmic scale.
fn bucket(share: f64) -> usize {
    match share {
        0.0 => 0,
        s if s <= 1e-3 => 1,
        s if s <= 1e-2 => 2,
        s if s <= 0.1 => 3,
        s if s <= 0.5 => 4,
        s if s <= 1.0 => 5,
        _ => 6,
    }
}

fn number(share: f64) -> String {
    match share {
        0.0 => "0".to_owned(),
        s if (0.01..1000.0).contains(&s) => format!("{s:.2}"),
        s => format!("{s:.0e}"),
    }
}

fn summary(html: &mut String, ops: &[OpSummary]) {
    html.push_str(
        "<h2>Cases</h2>\n<div class=\"scroll\"><table>\n<tr><th>op</th><th>cases</th><th>failures</th><th>expected</th><th>not supported</th><th>not tried</th></tr>\n",
    );
    for op in ops {
        let class = if op.failures > 0 { " bad" } else { "" };
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n{class}\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td></tr>",
            escape(&op.op),
            op.cases,
            op.failures,
            op.expected_failures,
            op.unsupported,
            op.not_tried
        );
    }
    html.push_str("</table></div>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_relative_where_they_can_be() {
        let folder = Some(Path::new("/tmp/a b"));
        assert_eq!(address("/tmp/a b/c/d\".x", folder), "c/d%22.x");
        assert_eq!(address("/tmp/a b/c", Some(Path::new("/tmp/a"))), "/tmp/a%20b/c");
        assert_eq!(address("/tmp/é", None), "/tmp/%C3%A9");
    }

    #[test]
    fn the_scale_is_logarithmic_and_the_bound_is_not_wrong() {
        assert_eq!([0.0, 1e-4, 0.005, 0.05, 0.3, 1.0, 1.01].map(bucket), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!([0.0, 2e-7, 0.25, 1.0, 2.5e6].map(number), ["0", "2e-7", "0.25", "1.00", "2e6"]);
    }
}
