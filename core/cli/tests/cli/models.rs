//! Models that must be refused, and one that must not.

use std::fs::{self, OpenOptions};

use serde_json::json;

use crate::checkpoint::TinyModel;
use crate::command::{Run, deepinfer_reading, json_lines, repository};

const NORM: &str = "layers.0.attn_norm.weight";
const OTHER_NORM: &str = "layers.0.ffn_norm.weight";

/// Runs a request on a model.
fn run(dir: &str) -> Run {
    let line = br#"{"id": "a", "prompt_token_ids": [5, 6, 7], "max_tokens": 2}"#;
    deepinfer_reading(&["generate", "--model", dir, "--prompts", "-"], line)
}

#[track_caller]
fn refused(model: &TinyModel, parts: &[&str]) {
    run(model.dir()).refused(parts);
}

#[test]
fn the_unchanged_model_runs() {
    let result = run(TinyModel::new().dir());
    assert_eq!(result.lines()[0]["token_ids"].as_array().unwrap().len(), 2);
    assert_eq!(result.stderr, "");
}

#[test]
fn missing_directories() {
    run("/nonexistent/model").refused(&["/nonexistent/model", "there is no such directory"]);
    let empty = tempfile::tempdir().unwrap();
    run(empty.path().to_str().unwrap()).refused(&["config.json", empty.path().to_str().unwrap()]);
    let file = repository("LICENSE");
    run(file.to_str().unwrap()).refused(&["LICENSE", "it is not a directory"]);
}

#[test]
fn missing_files() {
    let model = TinyModel::new();
    fs::remove_file(model.weights()).unwrap();
    refused(&model, &[model.dir(), "model.safetensors"]);

    let index = json!({"weight_map": {NORM: "model-00002-of-00002.safetensors"}});
    fs::write(model.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    refused(&model, &["model.safetensors.index.json", "model-00002-of-00002.safetensors", NORM]);
}

#[test]
fn a_truncated_file() {
    let model = TinyModel::new();
    let file = OpenOptions::new().write(true).open(model.weights()).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length - 100).unwrap();
    refused(&model, &["model.safetensors is truncated", "tensor `", &length.to_string(), &(length - 100).to_string()]);

    // Within the header, then within its length.
    file.set_len(1000).unwrap();
    refused(&model, &["model.safetensors is truncated", "the header", "1000"]);
    file.set_len(5).unwrap();
    refused(&model, &["model.safetensors", "it is 5 bytes long"]);
}

#[test]
fn files_of_another_kind() {
    let model = TinyModel::new();
    for content in [&b"PK\x03\x04 an archive, not tensors"[..], b"\x10\0\0\0\0\0\0\0<html></html>   "] {
        fs::write(model.weights(), content).unwrap();
        refused(&model, &["model.safetensors is not a safetensors file", "expected"]);
    }
    fs::write(model.path().join("config.json"), "vocab_size = 512").unwrap();
    refused(&model, &["config.json is not a JSON configuration"]);
}

#[test]
fn overlapping_tensors() {
    let model = TinyModel::with_weights(|file| {
        let offsets = file.entry(NORM, "data_offsets").clone();
        *file.entry(OTHER_NORM, "data_offsets") = offsets;
    });
    refused(&model, &["model.safetensors", NORM, OTHER_NORM, "overlap"]);
}

#[test]
fn a_missing_tensor() {
    let model = TinyModel::with_weights(|file| file.rename(NORM, "layers.0.attention_norm.weight"));
    refused(&model, &[model.dir(), NORM, "is missing", "expected BF16 [128]"]);
}

#[test]
fn a_tensor_of_another_shape() {
    let model = TinyModel::with_weights(|file| *file.entry(NORM, "shape") = json!([64, 2]));
    refused(&model, &["model.safetensors", NORM, "[64, 2]", "expected [128]"]);
}

#[test]
fn a_tensor_of_another_type() {
    let model = TinyModel::with_weights(|file| *file.entry(NORM, "dtype") = json!("F16"));
    refused(&model, &["model.safetensors", NORM, "element type F16", "expected BF16 or F32"]);

    let model = TinyModel::with_weights(|file| *file.entry(NORM, "dtype") = json!("Q4_K"));
    refused(&model, &["model.safetensors", NORM, "Q4_K"]);
}

#[test]
fn a_scale_that_is_nan() {
    let scale = "layers.0.attn.wq_a.scale";
    let model = TinyModel::with_weights(|file| {
        let begin = file.begin(scale);
        file.data[begin + 3] = 0xFF;
    });
    refused(&model, &[scale, "index 3", "NaN"]);
}

#[test]
fn an_extra_tensor_is_a_warning() {
    let model = TinyModel::with_weights(|file| file.add("layers.0.surprise"));
    let result = run(model.dir());
    assert_eq!(result.lines()[0]["finish_reason"], "length");
    assert_eq!(result.stderr.lines().count(), 1);
    for part in ["warning: ", "model.safetensors", "layers.0.surprise", "is ignored"] {
        assert!(result.stderr.contains(part), "{part}: {}", result.stderr);
    }
}

#[test]
fn many_extra_tensors_are_counted() {
    let model = TinyModel::with_weights(|file| (0..30).for_each(|i| file.add(&format!("extra.{i}"))));
    let result = run(model.dir());
    assert!(result.succeeded().contains("\"length\""));
    assert_eq!(result.stderr.lines().count(), 11);
    assert!(result.stderr.contains("warning: 20 more such tensors"), "{}", result.stderr);
}

#[test]
fn configurations() {
    let model = TinyModel::with_config(|config| config["text_config"]["scoring_func"] = json!("tanh"));
    refused(&model, &["config.json", "scoring_func", "tanh", "sqrtsoftplus"]);

    let model = TinyModel::with_config(|config| {
        config["text_config"].as_object_mut().unwrap().remove("hidden_size");
    });
    refused(&model, &["config.json", "hidden_size", "is missing"]);

    let model = TinyModel::with_config(|config| config["text_config"]["hidden_size"] = json!("wide"));
    refused(&model, &["config.json", "hidden_size", "wide"]);
}

#[test]
fn a_tokenizer_that_is_none() {
    let model = TinyModel::new();
    fs::write(model.path().join("tokenizer.json"), "{}").unwrap();
    refused(&model, &["tokenizer", model.dir(), "tokenizer.json cannot be read"]);
}

#[test]
fn a_model_that_computes_nan_is_a_fault_of_the_run() {
    let model = TinyModel::with_weights(|file| {
        let begin = file.begin("norm.weight");
        // The largest numbers of BF16, so that their products overflow; weights that are infinite are refused.
        file.data[begin..begin + 256].as_chunks_mut::<2>().0.fill([0x7F, 0x7F]);
    });
    let result = run(model.dir());
    assert_eq!(result.code, Some(1), "{}", result.stderr);
    let line = &json_lines(&result.stdout)[0];
    assert_eq!((&line["id"], &line["error"]["code"]), (&json!("a"), &json!("bad_logits")), "{line}");
    assert_eq!((&line["finish_reason"], &line["token_ids"]), (&json!("error"), &json!([])), "{line}");
    let sentence = "error: 1 of 1 requests failed while running, the first of them \"a\": the logits of position 3";
    assert!(result.stderr.starts_with(sentence), "{}", result.stderr);
}
