//! An op in words: what `OPS.md` and the documentation of the generated Rust types have in common.

use super::catalogue::{Arg, Contract, Kind, Op, Refusal, Role};

/// `EXACT`, `ULP(2)`, `BOUND(K, 2)` or `BOUND(N+2, 1) + ULP(1)`.
pub(crate) fn class_of(c: &Contract) -> String {
    let ulps = c.ulps.map(|ulps| format!("ULP({ulps})"));
    match (&c.terms, c.factor, ulps) {
        (Some(terms), Some(factor), None) => format!("BOUND({terms}, {factor})"),
        (Some(terms), Some(factor), Some(ulps)) => format!("BOUND({terms}, {factor}) + {ulps}"),
        (_, _, Some(ulps)) => ulps,
        _ => c.class.clone(),
    }
}

/// The class and every policy, in one sentence.
pub(crate) fn contract(c: &Contract) -> String {
    let mut out = format!("Contract: {}", class_of(c));
    for (label, text) in [
        ("bound", &c.bound),
        ("accumulator", &c.accumulator),
        ("rounding", &c.rounding),
        ("denormals", &c.denormals),
        ("NaN", &c.nan),
        ("duplicates", &c.duplicates),
    ] {
        if !text.is_empty() {
            out += &format!("; {label}: {text}");
        }
    }
    out + "."
}

/// The wrong values as items of a list, under a heading; only the heading where there are none.
pub(crate) fn refusals(op: &Op) -> String {
    if op.refuses.is_empty() {
        return "Refused: no value beyond formats, ranks and extents.\n".to_owned();
    }
    let mut out = "Refused:\n\n".to_owned();
    for Refusal { args, when } in &op.refuses {
        let args: Vec<String> = args.iter().map(|arg| format!("`{arg}`")).collect();
        out += &format!("- {}: {when}\n", args.join(", "));
    }
    out
}

/// `scalar`, `in`, `out` or `inout`.
pub(crate) fn role(arg: &Arg) -> &'static str {
    match arg.role {
        None => "scalar",
        Some(Role::In) => "in",
        Some(Role::Out) => "out",
        Some(Role::Inout) => "inout",
    }
}

/// Formats of a tensor, type of a scalar.
pub(crate) fn formats(arg: &Arg) -> String {
    match arg.kind {
        Kind::U32 => "u32".to_owned(),
        Kind::I32 => "i32".to_owned(),
        Kind::F32 => "f32".to_owned(),
        Kind::Tensor | Kind::TensorList => match &arg.like {
            Some(like) => format!("as `{like}`"),
            None => arg.dtypes.join(", "),
        },
    }
}

/// `[T, N]`, `E x [O, K]`, or nothing of a scalar.
pub(crate) fn shape(arg: &Arg) -> String {
    let extents: Vec<String> = arg.shape.iter().map(ToString::to_string).collect();
    match (&arg.len, arg.is_tensor()) {
        (Some(len), _) => format!("{len} x [{}]", extents.join(", ")),
        (None, true) => format!("[{}]", extents.join(", ")),
        (None, false) => String::new(),
    }
}

/// What the argument means, and that it may be absent.
pub(crate) fn meaning(arg: &Arg) -> String {
    match (arg.optional, arg.since) {
        (false, _) => arg.doc.clone(),
        (true, 0) => format!("{} Optional.", arg.doc),
        (true, minor) => format!("{} Optional; since minor {minor} of the ABI.", arg.doc),
    }
}

/// Documentation of a field that holds the argument.
pub(crate) fn field_doc(arg: &Arg) -> String {
    match arg.is_tensor() {
        true => format!("/// `{}` {}, {}. {}\n", shape(arg), role(arg), formats(arg), meaning(arg)),
        false => format!("/// {}\n", arg.doc),
    }
}

/// Documentation of the type that stands for the op: meaning, arguments, contract and refusals.
pub(crate) fn op_doc(op: &Op) -> String {
    let mut text = format!(
        "{}\n\nVersion {}, id {}, profiles: {}.\n\n```text\n{}\n```\n\n",
        op.summary,
        op.version,
        op.id,
        op.profiles.join(", "),
        op.semantics.trim()
    );
    text += "| argument | role | shape | formats | meaning |\n|---|---|---|---|---|\n";
    for arg in &op.args {
        let shape = shape(arg);
        let shape = if shape.is_empty() { shape } else { format!("`{shape}`") };
        text += &format!("| `{}` | {} | {shape} | {} | {} |\n", arg.name, role(arg), formats(arg), meaning(arg));
    }
    // As they stand: brackets are indices here, and no links.
    text += &format!("\n```text\n{}\n```\n\n{}", contract(&op.contract), escaped(&refusals(op)));
    let lines = text.lines().map(|line| format!("/// {line}").trim_end().to_owned() + "\n");
    lines.collect()
}

/// Brackets as characters.
fn escaped(text: &str) -> String {
    text.replace('[', "\\[").replace(']', "\\]")
}
