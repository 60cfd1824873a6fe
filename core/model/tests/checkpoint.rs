//! The tensor list against the released one and real files, and the refusal of damaged checkpoints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use deepinfer_model::checkpoint::{Checkpoint, CheckpointError, CheckpointWarning, StoredDtype, tensor_specs};
use deepinfer_model::config::ModelConfig;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

const REAL_CHECKPOINTS: [&str; 3] =
    ["models/deepseek-v41-mini", "tests/fixtures/golden/tiny_model", "tests/fixtures/golden/trained_model"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn tiny_model() -> PathBuf {
    repository().join("tests/fixtures/golden/tiny_model")
}

// ---------------------------------------------------------------------------------------------------------------------
// The tensor list
// ---------------------------------------------------------------------------------------------------------------------

/// Replaces the layer, stage, block and expert numbers of a tensor name by `#`.
fn numbers_masked(name: &str) -> String {
    let masked: Vec<&str> = name.split('.').map(|part| if part.parse::<u32>().is_ok() { "#" } else { part }).collect();
    masked.join(".")
}

/// All names that a pattern of `tensors.tsv` stands for: `{a..b}` is a range, `{a,b}` a list, `{e}` an expert.
fn expand(pattern: &str, experts: usize) -> Vec<String> {
    let Some((before, rest)) = pattern.split_once('{') else { return vec![pattern.to_owned()] };
    let (choice, after) = rest.split_once('}').unwrap();
    let ids: Vec<usize> = if choice == "e" {
        (0..experts).collect()
    } else if let Some((first, last)) = choice.split_once("..") {
        (first.parse().unwrap()..=last.parse().unwrap()).collect()
    } else {
        choice.split(',').map(|id| id.parse().unwrap()).collect()
    };
    ids.iter()
        .flat_map(|id| expand(after, experts).into_iter().map(move |tail| format!("{before}{id}{tail}")))
        .collect()
}

#[test]
fn released_configuration_implies_the_released_tensors() {
    let config = ModelConfig::from_file(&repository().join("tests/fixtures/config.v41-flash.json")).unwrap();
    let table = std::fs::read_to_string(repository().join("tests/fixtures/tensors.tsv")).unwrap();
    let mut released = BTreeMap::new();
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let (experts, _) = config.moe_shape(fields[0].starts_with("mtp"));
        let names = expand(fields[0], experts);
        assert_eq!(names.len().to_string(), fields[1], "{}", fields[0]);
        let shape: Vec<u64> = fields[3].trim_matches(['[', ']']).split(',').map(|size| size.parse().unwrap()).collect();
        for name in names {
            assert!(released.insert(name, (fields[2].to_owned(), shape.clone())).is_none());
        }
    }
    let specs = tensor_specs(&config);
    let ours: BTreeMap<_, _> =
        specs.iter().map(|s| (s.name.clone(), (s.storage.dtype().to_string(), s.shape.clone()))).collect();
    assert_eq!(ours.len(), specs.len(), "a name occurs twice");
    let differing = ours.iter().find(|(name, spec)| released.get(*name) != Some(spec));
    assert_eq!(differing, None);
    assert_eq!(specs.len(), released.len());

    assert_eq!(specs.len(), 96_085);
    assert_eq!(specs.iter().map(|spec| spec.bytes()).sum::<u64>(), 510_286_023_000);
}

#[test]
fn real_files_hold_exactly_the_implied_tensors() {
    for path in REAL_CHECKPOINTS {
        let checkpoint = Checkpoint::open(&repository().join(path)).unwrap();
        let report = checkpoint.check(checkpoint.config());
        assert!(report.errors.is_empty(), "{path}: {}", report.errors[0]);
        assert_eq!(report.warnings, [], "{path}");
        let specs = tensor_specs(checkpoint.config());
        assert_eq!((report.tensors, checkpoint.tensor_names().count()), (specs.len(), specs.len()), "{path}");
        assert_eq!(report.bytes, checkpoint.total_bytes());
        // No fallback to BF16 or F32 hides a wrong format: the files are in the released formats.
        for spec in &specs {
            assert_eq!(checkpoint.get(&spec.name).unwrap().dtype, spec.storage.dtype(), "{path}: {}", spec.name);
        }
    }
}

#[test]
fn the_miniature_has_the_parameters_of_its_model_card() {
    let config = ModelConfig::from_file(&repository().join("models/deepseek-v41-mini/config.json")).unwrap();
    assert_eq!(tensor_specs(&config).iter().map(|spec| spec.parameters()).sum::<u64>(), 14_787_644);
}

#[test]
fn vision_and_draft_tensors_exist_only_with_their_configuration() {
    let text = std::fs::read_to_string(tiny_model().join("config.json")).unwrap();
    let mut json: Value = serde_json::from_str(&text).unwrap();
    let names = |json: &Value| -> Vec<String> {
        let config = ModelConfig::from_json_str(&json.to_string()).unwrap();
        tensor_specs(&config).into_iter().map(|spec| numbers_masked(&spec.name)).collect()
    };
    let of_vision = |name: &String| {
        name.starts_with("vision.")
            || name.starts_with("aligner.")
            || name.starts_with("image_")
            || name.ends_with("bias_vl")
    };
    assert!(names(&json).iter().any(of_vision));
    json.as_object_mut().unwrap().remove("vision_config");
    assert!(!names(&json).iter().any(of_vision));
    assert!(names(&json).iter().any(|name| name.starts_with("mtp.")));
    json["text_config"]["dspark_block_size"] = json!(0);
    assert!(!names(&json).iter().any(|name| name.starts_with("mtp.")));
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn tensors_and_side_files_are_handed_out_as_stored() {
    let checkpoint = Checkpoint::open(&tiny_model()).unwrap();
    let tensor = checkpoint.get("layers.0.ffn.experts.0.w1.weight").unwrap();
    assert_eq!((tensor.dtype, tensor.shape, tensor.bytes.len()), (StoredDtype::I8, &[64, 64][..], 64 * 64));
    let before = tensor.bytes.to_vec();
    checkpoint.release("layers.0.ffn.experts.0.w1.weight");
    assert_eq!(checkpoint.get("layers.0.ffn.experts.0.w1.weight").unwrap().bytes, before);
    checkpoint.release("no such tensor");
    assert!(checkpoint.get("no such tensor").is_none());
    assert!(checkpoint.file("engram_constants.json").unwrap().unwrap().starts_with(b"{"));
    assert!(checkpoint.file("tokenizer.json").unwrap().is_none());
}

#[test]
fn embedded_files_read_like_a_directory() {
    let directory = repository().join("models/deepseek-v41-mini");
    let leaked = |name: &str| -> &'static [u8] { Box::leak(std::fs::read(directory.join(name)).unwrap().into()) };
    let files = ["config.json", "model.safetensors", "tokenizer.json"].map(|name| (name, leaked(name)));
    let embedded = Checkpoint::from_embedded(&files).unwrap();
    let mapped = Checkpoint::open(&directory).unwrap();
    assert!(embedded.verify(embedded.config()).unwrap().warnings.is_empty());
    assert_eq!((embedded.config(), embedded.total_bytes()), (mapped.config(), mapped.total_bytes()));
    for name in mapped.tensor_names() {
        assert_eq!(embedded.get(name).unwrap().bytes, mapped.get(name).unwrap().bytes, "{name}");
    }
    embedded.release("embed.weight");
    assert_eq!(embedded.file("tokenizer.json").unwrap().unwrap(), files[2].1);

    let error = Checkpoint::from_embedded(&files[..1]).unwrap_err();
    assert_message(&error, &["embedded model", "model.safetensors"]);
}

#[test]
fn nan_scales_are_refused_with_their_place() {
    let scale = "layers.0.attn.wq_a.scale";
    let mut draft = Draft::new();
    let begin = draft.header[scale]["data_offsets"][0].as_u64().unwrap() as usize;
    draft.data[begin + 1..][..2].fill(255);
    let (_directory, checkpoint) = draft.open();
    let checkpoint = checkpoint.unwrap();
    assert_message(
        &checkpoint.reject_non_finite(scale).unwrap_err(),
        &["model.safetensors: tensor", scale, "index 1", "NaN"],
    );
    assert!(checkpoint.reject_non_finite("layers.0.attn.wq_a.weight").is_ok());
}

// ---------------------------------------------------------------------------------------------------------------------
// Bad input
// ---------------------------------------------------------------------------------------------------------------------

/// A copy of the tiny model, taken apart so that a test can change it, and written as one file.
struct Draft {
    header: Map<String, Value>,
    data: Vec<u8>,
}

impl Draft {
    fn new() -> Self {
        let bytes = std::fs::read(tiny_model().join("model-00001-of-00001.safetensors")).unwrap();
        let header_end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = serde_json::from_slice(&bytes[8..header_end]).unwrap();
        Self { header, data: bytes[header_end..].to_vec() }
    }

    fn bytes(&self) -> Vec<u8> {
        file_bytes(&Value::from(self.header.clone()).to_string(), &self.data)
    }

    /// Writes the copy and opens it.
    fn open(&self) -> (TempDir, Result<Checkpoint, CheckpointError>) {
        let directory = directory_with(&self.bytes());
        let checkpoint = Checkpoint::open(directory.path());
        (directory, checkpoint)
    }

    #[track_caller]
    fn refused_at_opening(&self, words: &[&str]) {
        let (_directory, checkpoint) = self.open();
        assert_message(&checkpoint.expect_err("was opened"), words);
    }

    #[track_caller]
    fn refused_by_verification(&self, words: &[&str]) {
        let (_directory, checkpoint) = self.open();
        let checkpoint = checkpoint.unwrap();
        assert_message(&checkpoint.verify(checkpoint.config()).expect_err("was verified"), words);
    }

    fn warnings(&self) -> Vec<CheckpointWarning> {
        let (_directory, checkpoint) = self.open();
        let checkpoint = checkpoint.unwrap();
        checkpoint.verify(checkpoint.config()).unwrap().warnings
    }

    /// Replaces the content of a tensor; the old bytes are taken out so that the file stays without gaps.
    fn store(&mut self, name: &str, dtype: &str, shape: &[u64], content: &[u8]) {
        self.remove(name);
        let begin = self.data.len();
        self.data.extend_from_slice(content);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, self.data.len()]});
        self.header.insert(name.to_owned(), entry);
    }

    fn remove(&mut self, name: &str) {
        let Some(entry) = self.header.remove(name) else { return };
        let [begin, end] = [0, 1].map(|side| entry["data_offsets"][side].as_u64().unwrap());
        self.data.drain(begin as usize..end as usize);
        for (_, other) in self.header.iter_mut().filter(|(name, _)| *name != "__metadata__") {
            for offset in other["data_offsets"].as_array_mut().unwrap() {
                let value = offset.as_u64().unwrap();
                *offset = json!(if value >= end { value - (end - begin) } else { value });
            }
        }
    }
}

fn file_bytes(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

fn directory_with(safetensors: &[u8]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::copy(tiny_model().join("config.json"), directory.path().join("config.json")).unwrap();
    std::fs::write(directory.path().join("model.safetensors"), safetensors).unwrap();
    directory
}

#[track_caller]
fn assert_message(error: &CheckpointError, words: &[&str]) {
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

#[track_caller]
fn refused_bytes(safetensors: &[u8], words: &[&str]) {
    let directory = directory_with(safetensors);
    assert_message(&Checkpoint::open(directory.path()).expect_err("was opened"), words);
}

#[test]
fn missing_files_are_named() {
    assert_message(&Checkpoint::open(Path::new("/nonexistent/model")).unwrap_err(), &["/nonexistent/model", "no such"]);
    let directory = tempfile::tempdir().unwrap();
    assert_message(&Checkpoint::open(directory.path()).unwrap_err(), &["config.json"]);
    std::fs::copy(tiny_model().join("config.json"), directory.path().join("config.json")).unwrap();
    assert_message(
        &Checkpoint::open(directory.path()).unwrap_err(),
        &["model.safetensors", "model.safetensors.index.json"],
    );
    let file = directory.path().join("config.json");
    assert_message(&Checkpoint::open(&file).unwrap_err(), &["not a directory"]);
    std::fs::write(&file, "{\"text_config\": {\"scoring_func\": \"tanh\"}}").unwrap();
    assert_message(&Checkpoint::open(directory.path()).unwrap_err(), &["config.json", "scoring_func", "tanh"]);
}

#[test]
fn truncated_files_are_refused() {
    let bytes = Draft::new().bytes();
    refused_bytes(&bytes[..bytes.len() - 1], &["model.safetensors", "truncated", &bytes.len().to_string()]);
    refused_bytes(&bytes[..bytes.len() / 2], &["truncated", "tensor `"]);
    refused_bytes(&bytes[..1000], &["truncated", "header", "1000"]);
    refused_bytes(&bytes[..5], &["not a safetensors file", "5 bytes"]);
    refused_bytes(&[], &["not a safetensors file"]);
}

#[test]
fn other_kinds_of_files_are_refused() {
    refused_bytes(b"GGUF\x03\0\0\0 and more", &["model.safetensors", "not a safetensors file", "100000000"]);
    refused_bytes(b"PK\x03\x04PK\x03\x04 a zip archive", &["not a safetensors file", "100000000"]);
    refused_bytes(&file_bytes("[1, 2]", &[]), &["not a safetensors file", "0x5b"]);
    refused_bytes(&file_bytes("{\"a\": ", &[]), &["header is damaged"]);
    refused_bytes(&[&[4, 0, 0, 0, 0, 0, 0, 0][..], b"{\"\xff\xfe"].concat(), &["header is damaged"]);
    refused_bytes(&u64::MAX.to_le_bytes(), &["18446744073709551615"]);
}

#[test]
fn impossible_entries_are_refused() {
    let refused = |entry: &str, data: usize, words: &[&str]| {
        let header = format!("{{\"norm.weight\": {entry}}}");
        refused_bytes(&file_bytes(&header, &vec![0; data]), &[&["model.safetensors", "norm.weight"], words].concat());
    };
    refused(r#"{"dtype": "BF16", "shape": [2], "data_offsets": [0, 6]}"#, 6, &["6 bytes", "expected 4"]);
    refused(r#"{"dtype": "BF16", "shape": [2], "data_offsets": [4, 0]}"#, 4, &["backwards"]);
    refused(r#"{"dtype": "BF17", "shape": [2], "data_offsets": [0, 4]}"#, 4, &["BF17", "unknown"]);
    refused(r#"{"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}"#, 1, &["whole number of bytes"]);
    refused(r#"{"dtype": "BF16", "shape": [4294967296, 4294967296], "data_offsets": [0, 4]}"#, 4, &["4294967296"]);
    refused(r#"{"dtype": "BF16", "shape": [-2], "data_offsets": [0, 4]}"#, 4, &["`shape`", "-2"]);
    refused(r#"{"dtype": "BF16", "shape": [2], "data_offsets": [0]}"#, 4, &["1 items"]);
    refused(r#"{"dtype": "BF16", "shape": [2]}"#, 4, &["`data_offsets` is missing"]);
    refused("7", 4, &["`dtype` is missing"]);
    let end = u64::MAX;
    refused(
        &format!(r#"{{"dtype": "I8", "shape": [{end}], "data_offsets": [0, {end}]}}"#),
        4,
        &[&end.to_string(), "larger than any file can hold"],
    );
    // A dimension of 0 makes no tensor of the others.
    let huge = 1_u64 << 63;
    for shape in [[huge, huge, 0], [0, huge, huge], [huge, 0, 2]] {
        refused(
            &format!(r#"{{"dtype": "I8", "shape": {shape:?}, "data_offsets": [0, 0]}}"#),
            0,
            &[&format!("{shape:?}"), "larger than any file can hold"],
        );
    }
    refused(r#"{"dtype": "BF16", "shape": [3, 0], "data_offsets": [0, 4]}"#, 4, &["cover 4 bytes", "expected 0"]);
    let entry = r#"{"dtype": "I8", "shape": [1], "data_offsets": [0, 1]}"#;
    refused_bytes(&file_bytes(&format!("{{\"a\": {entry}, \"a\": {entry}}}"), &[0]), &["`a` is listed twice"]);
}

#[test]
fn overlaps_and_gaps_are_refused_with_both_offsets() {
    let two = |second: [u64; 2]| {
        let header = json!({
            "a": {"dtype": "I8", "shape": [8], "data_offsets": [0, 8]},
            "b": {"dtype": "I8", "shape": [8], "data_offsets": second},
        });
        file_bytes(&header.to_string(), &[0; 20])
    };
    refused_bytes(&two([4, 12]), &["`a` and `b` overlap", "at data offset 8", "at 4"]);
    refused_bytes(&two([0, 8]), &["overlap"]);
    refused_bytes(&two([10, 18]), &["8 to 10", "no tensor"]);
    refused_bytes(&two([8, 16]), &["16 to 20", "no tensor"]);
}

#[test]
fn absent_and_misshapen_tensors_are_refused() {
    let mut draft = Draft::new();
    draft.remove("layers.3.attn.wq_a.weight");
    draft.refused_by_verification(&["layers.3.attn.wq_a.weight", "missing", "F8_E4M3", "[64, 128]"]);

    let mut draft = Draft::new();
    draft.remove("layers.3.attn.wq_a.scale");
    draft.refused_by_verification(&["layers.3.attn.wq_a.scale", "missing", "F8_E8M0", "[2, 4]"]);

    let mut draft = Draft::new();
    draft.header["embed.weight"]["shape"] = json!([128, 512]);
    draft.refused_by_verification(&["model.safetensors", "embed.weight", "[128, 512]", "expected [512, 128]"]);

    let mut draft = Draft::new();
    draft.store("norm.weight", "F16", &[128], &[0; 256]);
    draft.refused_by_verification(&["model.safetensors", "norm.weight", "F16", "expected BF16 or F32"]);

    let mut draft = Draft::new();
    draft.store("layers.0.ffn.experts.0.w1.weight", "U8", &[64, 64], &[0; 64 * 64]);
    draft.refused_by_verification(&["experts.0.w1.weight", "U8", "expected I8, BF16 or F32"]);

    let mut draft = Draft::new();
    draft.header["layers.3.attn.wq_a.weight"]["data_offsets"] = json!([0, 1]);
    draft.refused_at_opening(&["layers.3.attn.wq_a.weight", "cover 1 bytes"]);
}

#[test]
fn all_errors_are_reported_together() {
    let mut draft = Draft::new();
    draft.remove("embed.weight");
    draft.remove("head.weight");
    let (_directory, checkpoint) = draft.open();
    let checkpoint = checkpoint.unwrap();
    let report = checkpoint.check(checkpoint.config());
    let messages: Vec<String> = report.errors.iter().map(ToString::to_string).collect();
    assert!(messages.len() == 3 && messages[0].contains("embed") && messages[1].contains("head"), "{messages:?}");
    assert!(messages[2].contains("holds neither engram_token_map.json nor tokenizer.json"), "{messages:?}");
    assert_eq!(report.tensors, tensor_specs(checkpoint.config()).len() - 2);
}

#[test]
fn dense_weights_replace_quantised_ones() {
    let mut draft = Draft::new();
    draft.store("layers.0.ffn.experts.0.w1.weight", "BF16", &[64, 128], &[0; 64 * 128 * 2]);
    draft.store("layers.0.attn.wq_a.weight", "F32", &[64, 128], &[0; 64 * 128 * 4]);
    draft.remove("layers.0.attn.wq_a.scale");
    draft.store("norm.weight", "F32", &[128], &[0; 128 * 4]);
    draft.store("layers.0.attn.attn_sink", "BF16", &[4], &[0; 8]);
    // The expert's scale is still there and now useless.
    let warnings = draft.warnings();
    assert!(
        matches!(&warnings[..], [CheckpointWarning::UnusedScale { tensor, .. }] if tensor == "layers.0.ffn.experts.0.w1.scale"),
        "{warnings:?}"
    );

    // A dense FP4 matrix has its full width.
    draft.store("layers.0.ffn.experts.0.w1.weight", "BF16", &[64, 64], &[0; 64 * 64 * 2]);
    draft.refused_by_verification(&["experts.0.w1.weight", "[64, 64]", "expected [64, 128]"]);
}

#[test]
fn extra_tensors_are_warnings() {
    let mut draft = Draft::new();
    draft.store("rotary.inv_freq", "F64", &[2], &[0; 16]);
    let warnings = draft.warnings();
    assert!(
        matches!(&warnings[..], [CheckpointWarning::Extra { tensor, .. }] if tensor == "rotary.inv_freq"),
        "{warnings:?}"
    );
    assert!(
        warnings[0].to_string().contains("model.safetensors") && warnings[0].to_string().contains("rotary.inv_freq")
    );
}

// ---------------------------------------------------------------------------------------------------------------------
// Shards
// ---------------------------------------------------------------------------------------------------------------------

/// Two one-tensor shards and an index over them.
struct Shards {
    directory: TempDir,
    index: Value,
}

impl Shards {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::copy(tiny_model().join("config.json"), directory.path().join("config.json")).unwrap();
        let shards = Self { directory, index: json!({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}) };
        shards.write("1.safetensors", "a");
        shards.write("2.safetensors", "b");
        shards
    }

    fn write(&self, file: &str, tensor: &str) {
        let header = json!({ tensor: {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]} });
        std::fs::write(self.directory.path().join(file), file_bytes(&header.to_string(), &[7])).unwrap();
    }

    fn open(&self) -> Result<Checkpoint, CheckpointError> {
        std::fs::write(self.directory.path().join("model.safetensors.index.json"), self.index.to_string()).unwrap();
        Checkpoint::open(self.directory.path())
    }
}

#[test]
fn shards_are_joined_by_the_index() {
    let checkpoint = Shards::new().open().unwrap();
    assert_eq!(checkpoint.get("a").unwrap().bytes, [7]);
    assert_eq!((checkpoint.tensor_names().count(), checkpoint.total_bytes()), (2, 2));
}

#[test]
fn an_index_that_disagrees_with_its_shards_is_refused() {
    let shards = Shards::new();
    std::fs::remove_file(shards.directory.path().join("2.safetensors")).unwrap();
    assert_message(
        &shards.open().unwrap_err(),
        &["model.safetensors.index.json", "`b`", "2.safetensors", "no such file"],
    );

    let mut shards = Shards::new();
    shards.index["weight_map"]["c"] = json!("1.safetensors");
    assert_message(&shards.open().unwrap_err(), &["`c`", "1.safetensors", "no such tensor"]);

    let mut shards = Shards::new();
    shards.index["weight_map"]["a"] = json!("2.safetensors");
    shards.index["weight_map"]["b"] = json!("1.safetensors");
    assert_message(&shards.open().unwrap_err(), &["`a`", "2.safetensors", "no such tensor"]);

    let shards = Shards::new();
    shards.write("2.safetensors", "a");
    assert_message(&shards.open().unwrap_err(), &["`a`", "1.safetensors", "2.safetensors", "both"]);
}

#[test]
fn a_tensor_outside_the_index_is_a_warning() {
    let mut shards = Shards::new();
    shards.index = json!({"weight_map": {"a": "1.safetensors"}});
    assert_eq!(shards.open().unwrap().tensor_names().count(), 1, "a file that the index does not name is not read");
    let header = json!({
        "a": {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "I8", "shape": [1], "data_offsets": [1, 2]},
    });
    let file = shards.directory.path().join("1.safetensors");
    std::fs::write(file, file_bytes(&header.to_string(), &[7, 8])).unwrap();
    let checkpoint = shards.open().unwrap();
    let report = checkpoint.check(checkpoint.config());
    assert!(report.warnings.iter().any(|w| matches!(w, CheckpointWarning::Unlisted { tensor, .. } if tensor == "b")));
}

#[test]
fn a_malformed_index_is_refused() {
    for index in [
        json!([]),
        json!({"weight_map": []}),
        json!({"weight_map": {}}),
        json!({"weight_map": {"a": 3}}),
        json!({"weight_map": {"a": "../1.safetensors"}}),
        json!({"weight_map": {"a": "/etc/passwd"}}),
        json!({"weight_map": {"a": ""}}),
    ] {
        let mut shards = Shards::new();
        shards.index = index;
        assert_message(&shards.open().unwrap_err(), &["model.safetensors.index.json"]);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Files beside the weights
// ---------------------------------------------------------------------------------------------------------------------

const MAP: &str = "engram_token_map.json";
const CONSTANTS: &str = "engram_constants.json";
const TOKENIZER: &str = "tokenizer.json";

/// A copy of the miniature.
struct Copy(TempDir);

impl Copy {
    fn new() -> Self {
        let copy = Self(tempfile::tempdir().unwrap());
        for file in ["config.json", "model.safetensors", MAP, CONSTANTS, TOKENIZER] {
            std::fs::copy(repository().join("models/deepseek-v41-mini").join(file), copy.path(file)).unwrap();
        }
        copy
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn without(self, file: &str) -> Self {
        std::fs::remove_file(self.path(file)).unwrap();
        self
    }

    fn with(self, file: &str, change: impl FnOnce(&mut Value)) -> Self {
        let mut json = serde_json::from_slice(&std::fs::read(self.path(file)).unwrap()).unwrap();
        change(&mut json);
        std::fs::write(self.path(file), json.to_string()).unwrap();
        self
    }

    /// The one error of a check, which must also be that of the Engram files.
    #[track_caller]
    fn refused(&self, words: &[&str]) {
        let checkpoint = Checkpoint::open(self.0.path()).unwrap();
        let error = checkpoint.engram_hashing(checkpoint.config()).expect_err("was accepted");
        let origin = self.0.path().display().to_string();
        assert_message(&error, &[&[origin.as_str()], words].concat());
        let report = checkpoint.check(checkpoint.config());
        let errors: Vec<String> = report.errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors, [error.to_string()]);
    }

    #[track_caller]
    fn accepted(&self) {
        let checkpoint = Checkpoint::open(self.0.path()).unwrap();
        assert!(checkpoint.engram_hashing(checkpoint.config()).unwrap().is_some());
        assert!(checkpoint.check(checkpoint.config()).errors.is_empty());
    }
}

fn swap(list: &mut Value, first: usize, second: usize) {
    list.as_array_mut().unwrap().swap(first, second);
}

#[test]
fn engram_files_are_compared_with_what_the_tokenizer_determines() {
    Copy::new().accepted();
    Copy::new().without(MAP).without(CONSTANTS).accepted();
    Copy::new().without(TOKENIZER).accepted();
    Copy::new().without(TOKENIZER).without(MAP).refused(&["neither engram_token_map.json nor tokenizer.json"]);

    // The same compressed ids for other tokens: no count tells the difference.
    Copy::new().with(MAP, |map| swap(map, 300, 301)).refused(&[MAP, "token 300", "tokenizer.json determines"]);
    let swapped = Copy::new().with(TOKENIZER, |file| {
        let vocabulary = file["model"]["vocab"].as_object_mut().unwrap();
        let token_of = |id: u64| vocabulary.iter().find(|(_, v)| v.as_u64() == Some(id)).unwrap().0.clone();
        let (first, second) = (token_of(300), token_of(301));
        vocabulary.insert(first, json!(301));
        vocabulary.insert(second, json!(300));
    });
    swapped.refused(&[MAP, "token 300", TOKENIZER]);

    Copy::new().with(CONSTANTS, |file| file["multipliers"][0][2] = json!(7)).refused(&[CONSTANTS, "multipliers[0][2]"]);
    let small = Copy::new().with("config.json", |file| file["text_config"]["engram_num_embeddings"][1] = json!(5));
    let checkpoint = Checkpoint::open(small.0.path()).unwrap();
    let error = checkpoint.engram_hashing(checkpoint.config()).unwrap_err();
    assert_message(&error, &["5 rows", "engram_num_embeddings", "its hashes address"]);
}

#[test]
fn a_check_reads_the_tokenizer() {
    let copy = Copy::new().with(TOKENIZER, |file| file["model"]["dropout"] = json!(0.5));
    copy.refused(&[TOKENIZER, "model.dropout", "0.5"]);
}

#[test]
fn a_tokenizer_is_read_once() {
    let checkpoint = Checkpoint::open(&repository().join("models/deepseek-v41-mini")).unwrap();
    let (first, second) = (checkpoint.tokenizer().unwrap().unwrap(), checkpoint.tokenizer().unwrap().unwrap());
    assert!(std::sync::Arc::ptr_eq(&first, &second));
    assert!(Checkpoint::open(&tiny_model()).unwrap().tokenizer().unwrap().is_none());
}

#[test]
fn byte_order_marks_are_no_part_of_files() {
    let copy = Copy::new();
    for file in ["config.json", MAP, CONSTANTS, TOKENIZER] {
        let marked = [b"\xEF\xBB\xBF", &std::fs::read(copy.path(file)).unwrap()[..]].concat();
        std::fs::write(copy.path(file), marked).unwrap();
    }
    copy.accepted();
    let shards = Shards::new();
    shards.open().unwrap();
    let index = shards.directory.path().join("model.safetensors.index.json");
    std::fs::write(&index, format!("\u{FEFF}{}", shards.index)).unwrap();
    assert!(Checkpoint::open(shards.directory.path()).is_ok());
}

/// Opening a named pipe would wait for somebody to write.
#[cfg(unix)]
#[test]
fn only_regular_files_are_opened() {
    let reading = |copy: &Copy| -> Result<(), CheckpointError> {
        let checkpoint = Checkpoint::open(copy.0.path())?;
        checkpoint.engram_hashing(checkpoint.config()).map(drop)
    };
    for file in ["config.json", "model.safetensors", MAP, CONSTANTS, TOKENIZER] {
        let refused = |copy: &Copy, words: &[&str]| {
            let error = reading(copy).expect_err(file);
            assert_message(&error, &[&[file], words].concat());
        };
        let copy = Copy::new().without(file);
        std::fs::create_dir(copy.path(file)).unwrap();
        refused(&copy, &["it is a directory, expected a regular file"]);

        let copy = Copy::new().without(file);
        std::os::unix::fs::symlink("/nonexistent/blob", copy.path(file)).unwrap();
        refused(&copy, &["it is a symbolic link to /nonexistent/blob, which does not exist"]);

        let copy = Copy::new().without(file);
        std::os::unix::fs::symlink("/dev/zero", copy.path(file)).unwrap();
        refused(&copy, &["it is a device, expected a regular file"]);

        let copy = Copy::new().without(file);
        assert!(std::process::Command::new("mkfifo").arg(copy.path(file)).status().unwrap().success());
        refused(&copy, &["it is a named pipe, expected a regular file"]);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Hostile files
// ---------------------------------------------------------------------------------------------------------------------

/// A valid file of three small tensors.
fn small_file() -> Vec<u8> {
    let header = json!({
        "__metadata__": {"format": "pt"},
        "embed.weight": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
        "norm.weight": {"dtype": "F32", "shape": [2], "data_offsets": [12, 20]},
        "layers.0.attn.wq_a.scale": {"dtype": "F8_E8M0", "shape": [0], "data_offsets": [20, 20]},
    });
    file_bytes(&header.to_string(), &[1; 20])
}

/// Opens `safetensors` and, if that works, touches everything. Only a panic fails.
fn exercise(safetensors: &[u8]) {
    let config: &[u8] = include_bytes!("../../../tests/fixtures/golden/tiny_model/config.json");
    let leaked: &'static [u8] = Box::leak(safetensors.to_vec().into());
    if let Ok(checkpoint) = Checkpoint::from_embedded(&[("config.json", config), ("model.safetensors", leaked)]) {
        let report = checkpoint.check(checkpoint.config());
        assert!(!report.errors.is_empty());
        for name in checkpoint.tensor_names() {
            let tensor = checkpoint.get(name).unwrap();
            let elements: u64 = tensor.shape.iter().product();
            assert_eq!(tensor.bytes.len() as u64 * 8, elements * tensor.dtype.bits());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn corrupted_bytes_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut bytes = small_file();
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        exercise(&bytes);
    }

    #[test]
    fn cut_and_spliced_files_never_panic(
        cut in any::<prop::sample::Index>(),
        insert in prop::collection::vec(any::<u8>(), 0..12),
        drop in 0_usize..8,
    ) {
        let mut bytes = small_file();
        let cut = cut.index(bytes.len());
        let end = (cut + drop).min(bytes.len());
        bytes.splice(cut..end, insert);
        exercise(&bytes);
    }

    /// Numbers at the edges of every integer width in the places where a header has numbers.
    #[test]
    fn extreme_numbers_never_panic(
        numbers in prop::collection::vec(
            prop::sample::select(vec!["0", "1", "20", "-1", "1e300", "4294967296", "9223372036854775807", "18446744073709551615", "18446744073709551616"]),
            4,
        ),
        dtype in prop::sample::select(vec!["F4", "BF16", "F32", "C64", "F6_E2M3", "BOOL", "?"]),
    ) {
        let header = format!(
            r#"{{"norm.weight": {{"dtype": "{dtype}", "shape": [{}, {}], "data_offsets": [{}, {}]}}}}"#,
            numbers[0], numbers[1], numbers[2], numbers[3],
        );
        exercise(&file_bytes(&header, &[0; 20]));
    }
}
