//! `inspect` and `backends`.

use std::fs;

use serde_json::{Value, json};

use crate::checkpoint::TinyModel;
use crate::command::{command, deepinfer, finish, repository};

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn the_released_configuration() {
    let path = repository("tests/fixtures/config.v41-flash.json");
    let path = path.to_str().unwrap();
    let text = deepinfer(&["inspect", path]);
    for part in ["KV bytes per token", "890", "Memory plan", "layers.{0..39}.attn_norm.weight"] {
        assert!(text.succeeded_quietly().contains(part), "{part}: {}", text.stdout);
    }
    let report =
        json_of(deepinfer(&["inspect", path, "--json", "--context", "32768", "--requests", "8"]).succeeded_quietly());
    assert_eq!(report["cache"]["kv_bytes_per_token"], 890.0);
    assert_eq!(report["plan"]["pages"], 8 * 32768 / 128);
    assert_eq!(report["architecture"]["layers"], 40);
    assert_eq!(report.get("check"), None);
}

#[test]
fn the_embedded_model_by_default() {
    let report = json_of(deepinfer(&["inspect", "--json", "--check"]).succeeded_quietly());
    assert_eq!(report["origin"], "the embedded model");
    assert_eq!(report["check"]["errors"], json!([]));
    assert_eq!(report["check"]["tensors"], report["total"]["tensors"]);
}

#[test]
fn a_check_names_everything_that_is_wrong() {
    let model = TinyModel::with_weights(|file| {
        file.rename("layers.0.attn_norm.weight", "layers.0.attention_norm.weight");
        *file.entry("layers.1.ffn_norm.weight", "shape") = json!([2, 64]);
        *file.entry("norm.weight", "dtype") = json!("F16");
    });
    let result = deepinfer(&["inspect", model.dir(), "--check"]);
    assert_eq!(result.code, Some(2));
    assert_eq!(result.stderr.lines().filter(|line| line.starts_with("error: ")).count(), 4, "{}", result.stderr);
    for part in [
        "`layers.0.attn_norm.weight` is missing, expected BF16 [128]",
        "`layers.1.ffn_norm.weight` has shape [2, 64]",
        "`norm.weight` has element type F16",
        "3 tensors are not as config.json implies",
        "warning: ",
        "`layers.0.attention_norm.weight` is not part of this model",
    ] {
        assert!(result.stderr.contains(part), "{part:?} is missing in: {}", result.stderr);
    }
    assert!(result.stdout.contains("3 errors, 1 warnings"), "{}", result.stdout);

    let report = json_of(&deepinfer(&["inspect", model.dir(), "--check", "--json"]).stdout);
    assert_eq!(report["check"]["errors"].as_array().unwrap().len(), 3);
    assert_eq!(report["check"]["warnings"].as_array().unwrap().len(), 1);

    // Without a check the report alone is wanted.
    deepinfer(&["inspect", model.dir()]).succeeded_quietly();
}

#[test]
fn what_cannot_be_inspected() {
    let config = repository("tests/fixtures/config.v41-flash.json");
    let config = config.to_str().unwrap();
    deepinfer(&["inspect", "/nonexistent"]).refused(&["/nonexistent", "there is no such directory"]);
    deepinfer(&["inspect", config, "--check"]).refused(&["--check", config, "directory"]);
    deepinfer(&["inspect", config, "--context", "2000000"]).refused(&["--context is 2000000", "1048576"]);
    deepinfer(&["inspect", "--requests", "0"]).refused(&["--requests", "'0'"]);
    let license = repository("LICENSE");
    deepinfer(&["inspect", license.to_str().unwrap()]).refused(&["LICENSE", "is not a JSON configuration"]);

    let model = TinyModel::with_config(|config| config["text_config"]["scoring_func"] = json!("tanh"));
    deepinfer(&["inspect", model.dir()]).refused(&["config.json", "scoring_func", "tanh"]);
}

#[test]
fn backends_and_why_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("libdeepinfer_broken.so");
    fs::write(&broken, "no library").unwrap();
    let run = |args: &[&str]| finish(command(args).env("DEEPINFER_PLUGIN_PATH", dir.path()));

    let report = json_of(run(&["backends", "--json"]).succeeded_quietly());
    assert_eq!(report["searched"][0], dir.path().to_str().unwrap());
    let backends = report["backends"].as_array().unwrap();
    let cpu = backends
        .iter()
        .find(|b| b["name"] == "cpu")
        .expect("the plugin is built: cargo build -p deepinfer-cpu-reference");
    assert_eq!(cpu["state"], "loaded");
    assert_eq!(cpu["missing_ops"], json!([]));
    assert_eq!(cpu["devices"].as_array().unwrap().len(), 1);
    let refused = backends.iter().find(|b| b["state"] == "refused").unwrap();
    assert_eq!(refused["path"], broken.to_str().unwrap());
    assert!(refused["reason"].as_str().unwrap().contains("cannot be loaded as a shared library"), "{refused}");

    let text = run(&["backends"]);
    for part in ["cpu ", "plugin ABI", "device 0: ", "gather@1", "refused: ", broken.to_str().unwrap()] {
        assert!(text.succeeded_quietly().contains(part), "{part:?} is missing in: {}", text.stdout);
    }
}
