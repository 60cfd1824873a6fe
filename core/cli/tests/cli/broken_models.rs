//! Copies of the miniature with a file beside the weights broken: each is refused with a sentence, and none hangs, panics
//! or runs with other token ids.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::command::{Run, deepinfer, repository};

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const MAP: &str = "engram_token_map.json";
const FILES: [&str; 5] = [CONFIG, "model.safetensors", TOKENIZER, MAP, "engram_constants.json"];

/// A copy of the miniature.
struct Miniature(TempDir);

impl Miniature {
    fn new() -> Self {
        let copy = Self(tempfile::tempdir().unwrap());
        for file in FILES {
            fs::copy(repository("models/deepseek-v41-mini").join(file), copy.path(file)).unwrap();
        }
        copy
    }

    fn with(file: &str, change: impl FnOnce(&mut Value)) -> Self {
        let copy = Self::new();
        let mut json = serde_json::from_slice(&fs::read(copy.path(file)).unwrap()).unwrap();
        change(&mut json);
        fs::write(copy.path(file), json.to_string()).unwrap();
        copy
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn dir(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    fn run(&self) -> Run {
        deepinfer(&["generate", "--model", self.dir(), "--max-tokens", "2", "Once upon a time"])
    }

    /// Generating is refused with one sentence, and a check finds the same.
    #[track_caller]
    fn refused(&self, parts: &[&str]) {
        let run = self.run();
        run.refused(parts);
        assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
        let check = deepinfer(&["inspect", self.dir(), "--check"]);
        assert_eq!(check.code, Some(2), "{}", check.stderr);
        for part in parts {
            assert!(check.stderr.contains(part), "{part:?} is missing in: {}", check.stderr);
        }
    }
}

#[test]
fn a_token_map_of_another_tokenizer() {
    let model = Miniature::with(MAP, |map| map.as_array_mut().unwrap()[10..].reverse());
    model.refused(&[model.dir(), MAP, "the compressed id", "tokenizer.json determines"]);
}

#[test]
fn tokenizers_that_make_the_library_panic() {
    let text = serde_json::to_string_pretty(&json!({"decoder": {"type": "ByteLevel", "trim_offsets": true}})).unwrap();
    let model = Miniature::new();
    fs::write(model.path(TOKENIZER), &text[..text.len() / 2]).unwrap();
    model.refused(&[TOKENIZER, "at line 3"]);

    let replace = json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "x"});
    let model = Miniature::with(TOKENIZER, |file| file["normalizer"] = replace);
    model.refused(&[TOKENIZER, "`normalizer` is Replace"]);

    let prefix = json!("##########");
    let model = Miniature::with(TOKENIZER, |file| file["model"]["continuing_subword_prefix"] = prefix);
    model.refused(&[TOKENIZER, "continuing_subword_prefix", "##########"]);
}

#[test]
fn a_tokenizer_that_draws_lots() {
    let model = Miniature::with(TOKENIZER, |file| file["model"]["dropout"] = json!(0.5));
    model.refused(&[TOKENIZER, "model.dropout", "0.5"]);
}

#[test]
fn a_token_beyond_the_vocabulary() {
    let model = Miniature::with(TOKENIZER, |file| file["model"]["vocab"]["zz"] = json!(u32::MAX));
    model.refused(&[TOKENIZER, "\"zz\"", "4294967295", "4096"]);
}

#[cfg(unix)]
#[test]
fn pipes_and_dangling_links() {
    for file in FILES {
        let model = Miniature::new();
        fs::remove_file(model.path(file)).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(model.path(file)).status().unwrap().success());
        model.refused(&[file, "it is a named pipe, expected a regular file"]);

        fs::remove_file(model.path(file)).unwrap();
        std::os::unix::fs::symlink("../blobs/gone", model.path(file)).unwrap();
        model.refused(&[file, "it is a symbolic link to ../blobs/gone, which does not exist"]);
    }
}

#[test]
fn files_with_a_byte_order_mark_are_read() {
    let model = Miniature::new();
    for file in FILES.into_iter().filter(|file| file.ends_with(".json")) {
        fs::write(model.path(file), [b"\xEF\xBB\xBF", &fs::read(model.path(file)).unwrap()[..]].concat()).unwrap();
    }
    assert_eq!(
        model.run().succeeded_quietly(),
        deepinfer(&["generate", "--max-tokens", "2", "Once upon a time"]).stdout
    );
}

#[test]
fn a_configuration_of_another_model() {
    let model = Miniature::with(CONFIG, |config| config["model_type"] = json!("llama"));
    model.run().refused(&[CONFIG, "model_type", "llama", "deepseek_v41"]);
    let model = Miniature::with(CONFIG, |config| config["text_config"]["bos_token_id"] = json!(5));
    model.run().refused(&[CONFIG, "text_config.bos_token_id", "5", "must be equal"]);
}
