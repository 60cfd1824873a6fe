//! The summary as text for a terminal.

use std::fmt::Write;

use super::{Architecture, Experts, ModelSummary, Totals};
use crate::checkpoint::{Group, Storage};

/// Renders `summary` as aligned tables, in sections with a heading each. Lines end with a newline.
pub fn render(summary: &ModelSummary) -> String {
    let mut text = String::new();
    section(&mut text, "Architecture", &architecture(&summary.architecture));
    section(&mut text, "Weights by part", &weights_by_part(summary));
    section(&mut text, "Weights by format", &weights_by_format(summary));
    section(&mut text, "Caches", &caches(summary));
    section(&mut text, "State of a request", &request_state(summary));
    section(&mut text, "Memory plan", &memory_plan(summary));
    section(&mut text, "Tensors", &tensors(summary));
    text
}

/// Cells of a line.
type Row = Vec<Cell>;

/// A text with its alignment in the column: numbers stand right, names and notes left.
enum Cell {
    Left(String),
    Right(String),
}

fn left(text: impl Into<String>) -> Cell {
    Cell::Left(text.into())
}

fn number(value: u64) -> Cell {
    Cell::Right(grouped(value))
}

fn architecture(model: &Architecture) -> Vec<Row> {
    let roles = &model.roles;
    let mut rows = vec![
        vec![left("vocabulary"), left(grouped(model.vocab_size as u64))],
        vec![
            left("hidden size"),
            left(format!("{} x {} copies", grouped(model.hidden_size as u64), model.stream_copies)),
        ],
        vec![left("attention"), left(format!("{} heads of {}", model.attention_heads, model.head_dim))],
        vec![left("window"), left(format!("{} tokens", grouped(model.window_tokens as u64)))],
        vec![left("context"), left(format!("{} tokens", grouped(model.max_context_tokens as u64)))],
        vec![left("layers"), left(model.layers.to_string())],
        vec![left("  window only"), left(layer_list(&roles.window))],
        vec![left("  full"), left(layer_list(&roles.full))],
        vec![left("  reindex"), left(layer_list(&roles.reindex))],
        vec![left("  reuse"), left(layer_list(&roles.reuse))],
        vec![left("  candidate source"), left(layer_list(roles.candidate_source.as_slice()))],
        vec![left("  engram"), left(layer_list(&model.engram_layers))],
        vec![left("experts"), left(experts(&model.experts))],
    ];
    rows.push(vec![
        left("drafter"),
        left(model.drafter.as_ref().map_or("none".to_owned(), |drafter| {
            let targets = layer_list(&drafter.target_layers);
            format!(
                "{} stages, blocks of {}, looks at layers {targets}; {}",
                drafter.stages,
                drafter.block_tokens,
                experts(&drafter.experts)
            )
        })),
    ]);
    rows.push(vec![
        left("vision"),
        left(model.vision.map_or("none".to_owned(), |vision| {
            let width = grouped(vision.width as u64);
            format!("{} blocks of width {width}, patches of {} pixels", vision.blocks, vision.patch_pixels)
        })),
    ]);
    rows
}

fn experts(experts: &Experts) -> String {
    let Experts { routed, per_token, shared, width } = experts;
    format!("{routed} routed, {per_token} per token, {shared} shared, width {}", grouped(*width as u64))
}

fn weights_by_part(summary: &ModelSummary) -> Vec<Row> {
    let mut rows = vec![totals_heading("part")];
    for entry in &summary.groups {
        rows.push(totals_row(group_name(entry.group), &entry.totals));
        for format in &entry.formats {
            rows.push(totals_row(&format!("  {}", format_name(format.storage)), &format.totals));
        }
    }
    rows.push(totals_row("total", &summary.total));
    rows
}

fn weights_by_format(summary: &ModelSummary) -> Vec<Row> {
    let mut rows = vec![totals_heading("format")];
    rows.extend(summary.formats.iter().map(|format| totals_row(format_name(format.storage), &format.totals)));
    rows.push(totals_row("total", &summary.total));
    rows
}

fn totals_heading(first: &str) -> Row {
    let right = |text: &str| Cell::Right(text.to_owned());
    vec![left(first), right("tensors"), right("parameters"), right("bytes")]
}

fn totals_row(name: &str, totals: &Totals) -> Row {
    vec![left(name), number(totals.tensors), number(totals.parameters), number(totals.bytes)]
}

fn caches(summary: &ModelSummary) -> Vec<Row> {
    let cache = &summary.cache;
    let page = &cache.page;
    vec![
        vec![
            left("KV bytes per token"),
            Cell::Right(grouped_fraction(cache.kv_bytes_per_token)),
            left(format!("{} with page padding", grouped_fraction(page.bytes as f64 / cache.page_tokens as f64))),
        ],
        vec![left("page"), number(page.bytes as u64), left(format!("bytes for {} tokens", cache.page_tokens))],
        vec![left("  padding"), number((page.bytes - page.used_bytes) as u64), left("bytes")],
        vec![left("window entry"), number(cache.window_entry_bytes as u64), left("bytes per layer and position")],
        vec![left("compressed entry"), number(cache.main_entry_bytes as u64), left("bytes per KV source")],
        vec![left("index key"), number(cache.index_entry_bytes as u64), left("bytes per KV source")],
    ]
}

fn request_state(summary: &ModelSummary) -> Vec<Row> {
    let state = &summary.request_state;
    vec![
        vec![
            left("window rings"),
            number(state.window_ring_bytes as u64),
            left(format!("bytes, {} entries per layer", state.ring_entries)),
        ],
        vec![left("compressor tails"), number(state.compressor_bytes as u64), left("bytes")],
        vec![left("n-gram history"), number(state.ngram_history_bytes as u64), left("bytes")],
        vec![left("slot"), number(state.total_bytes(false) as u64), left("bytes, alignment included")],
        vec![left("drafting adds"), number(state.draft_ring_bytes as u64), left("bytes of window rings")],
    ]
}

fn memory_plan(summary: &ModelSummary) -> Vec<Row> {
    let plan = &summary.plan;
    let bytes = |name: &str, bytes: u64| vec![left(name), number(bytes), left(binary_unit(bytes))];
    vec![
        vec![left("requests"), number(plan.input.requests as u64)],
        vec![left("context tokens"), number(plan.input.context_tokens as u64), left("per request")],
        bytes("text weights", plan.weight_bytes),
        bytes(&format!("{} pages", grouped(plan.pages)), plan.page_bytes),
        bytes("request state", plan.state_bytes),
        bytes("total", plan.total_bytes),
        bytes("drafting adds", plan.drafter_bytes),
        bytes("images add", plan.vision_bytes),
    ]
}

fn tensors(summary: &ModelSummary) -> Vec<Row> {
    let row = |family: &super::TensorFamily| {
        let shape: Vec<String> = family.shape.iter().map(u64::to_string).collect();
        let shape = format!("[{}]", shape.join(","));
        vec![left(&family.pattern), Cell::Right(family.count.to_string()), left(&family.dtype), left(shape)]
    };
    let heading = vec![left("name"), Cell::Right("count".to_owned()), left("dtype"), left("shape")];
    std::iter::once(heading).chain(summary.tensors.iter().map(row)).collect()
}

fn section(text: &mut String, title: &str, rows: &[Row]) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(title);
    text.push('\n');
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(Cell::width).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::from(" ");
        for (cell, &width) in row.iter().zip(&widths) {
            // Writing to a string cannot fail.
            let _ = match cell {
                Cell::Left(text) => write!(line, " {text:<width$} "),
                Cell::Right(text) => write!(line, " {text:>width$} "),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

impl Cell {
    fn width(&self) -> usize {
        let (Self::Left(text) | Self::Right(text)) = self;
        text.chars().count()
    }
}

fn group_name(group: Group) -> &'static str {
    match group {
        Group::Embedding => "embedding",
        Group::Head => "head",
        Group::Attention => "attention",
        Group::Compression => "compressor and indexer",
        Group::HyperConnection => "hyper-connections",
        Group::Router => "router",
        Group::RoutedExperts => "routed experts",
        Group::SharedExperts => "shared experts",
        Group::EngramTable => "engram tables",
        Group::Engram => "engram projection",
        Group::Draft => "drafter",
        Group::Vision => "vision",
    }
}

fn format_name(storage: Storage) -> &'static str {
    match storage {
        Storage::Fp8Tile => "FP8 tiles",
        Storage::Fp8Row => "FP8 rows",
        Storage::Fp4 => "FP4",
        Storage::Ue8m0 => "UE8M0 scales",
        Storage::Bf16 => "BF16",
        Storage::F32 => "F32",
    }
}

/// `0-1, 14, 20-23`, or `none`.
fn layer_list(layers: &[usize]) -> String {
    let runs = layers.chunk_by(|a, b| a + 1 == *b).map(|run| match (run.first(), run.last()) {
        (Some(first), Some(last)) if first < last => format!("{first}-{last}"),
        (Some(only), _) => only.to_string(),
        (None, _) => String::new(),
    });
    let text = runs.collect::<Vec<_>>().join(", ");
    if text.is_empty() { "none".to_owned() } else { text }
}

/// `1,234,567`.
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// As [`grouped`], with up to two decimals where the value has any.
fn grouped_fraction(value: f64) -> String {
    let hundredths = (value * 100.0).round() as u64;
    let (whole, decimals) = (grouped(hundredths / 100), hundredths % 100);
    match decimals {
        0 => whole,
        tenths if tenths.is_multiple_of(10) => format!("{whole}.{}", tenths / 10),
        _ => format!("{whole}.{decimals:02}"),
    }
}

/// `475.24 GiB`, in the largest unit that leaves at least one.
pub(crate) fn binary_unit(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut scaled = bytes as f64;
    let mut unit = "B";
    for larger in units {
        if scaled < 1024.0 {
            break;
        }
        scaled /= 1024.0;
        unit = larger;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{scaled:.2} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_rounded() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([890.0, 79.5, 1234.25, 1.999].map(grouped_fraction), ["890", "79.5", "1,234.25", "2"]);
        assert_eq!(grouped_fraction(3.05), "3.05");
        assert_eq!([1023, 1024, 3 << 29].map(binary_unit), ["1023 B", "1.00 KiB", "1.50 GiB"]);
    }

    #[test]
    fn consecutive_layers_are_joined() {
        assert_eq!(layer_list(&[0, 1, 14, 20, 21, 22]), "0-1, 14, 20-22");
        assert_eq!(layer_list(&[]), "none");
    }
}
