//! Copies of a small checkpoint with something changed.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::command::repository;

/// Directory of a checkpoint with 512 token ids and without a tokenizer.
const TINY: &str = "tests/fixtures/golden/tiny_model";

/// A copy of the tiny checkpoint with one weight file, which may be changed. It lives as long as this.
pub(crate) struct TinyModel {
    dir: TempDir,
}

/// The weight file in parts.
pub(crate) struct WeightFile {
    /// Tensors by name.
    pub(crate) header: Map<String, Value>,
    /// What follows the header.
    pub(crate) data: Vec<u8>,
}

impl TinyModel {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["config.json", "engram_token_map.json", "engram_constants.json"] {
            fs::copy(repository(TINY).join(name), dir.path().join(name)).unwrap();
        }
        let weights = repository(TINY).join("model-00001-of-00001.safetensors");
        fs::copy(weights, dir.path().join("model.safetensors")).unwrap();
        Self { dir }
    }

    /// A copy whose weight file `change` has changed.
    pub(crate) fn with_weights(change: impl FnOnce(&mut WeightFile)) -> Self {
        let model = Self::new();
        let mut file = WeightFile::read(&model.weights());
        change(&mut file);
        file.write(&model.weights());
        model
    }

    /// A copy whose configuration `change` has changed.
    pub(crate) fn with_config(change: impl FnOnce(&mut Value)) -> Self {
        let model = Self::new();
        let path = model.path().join("config.json");
        let mut config = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut config);
        fs::write(path, config.to_string()).unwrap();
        model
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn dir(&self) -> &str {
        self.path().to_str().unwrap()
    }

    pub(crate) fn weights(&self) -> PathBuf {
        self.path().join("model.safetensors")
    }
}

impl WeightFile {
    fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap();
        let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
        Self { header: serde_json::from_slice(header).unwrap(), data: data.to_vec() }
    }

    fn write(&self, path: &Path) {
        let header = serde_json::to_vec(&self.header).unwrap();
        let length = (header.len() as u64).to_le_bytes();
        fs::write(path, [&length, header.as_slice(), &self.data].concat()).unwrap();
    }

    /// A field of a tensor's header entry.
    pub(crate) fn entry(&mut self, tensor: &str, field: &str) -> &mut Value {
        self.header.get_mut(tensor).and_then(|entry| entry.get_mut(field)).expect("the tensor exists")
    }

    /// Gives a tensor another name.
    pub(crate) fn rename(&mut self, tensor: &str, name: &str) {
        let entry = self.header.remove(tensor).expect("the tensor exists");
        self.header.insert(name.to_owned(), entry);
    }

    /// Adds a tensor of four zeros.
    pub(crate) fn add(&mut self, tensor: &str) {
        let begin = self.data.len();
        self.data.extend([0; 16]);
        let entry = json!({"dtype": "F32", "shape": [4], "data_offsets": [begin, self.data.len()]});
        self.header.insert(tensor.to_owned(), entry);
    }

    /// Where a tensor's bytes begin in the data.
    pub(crate) fn begin(&mut self, tensor: &str) -> usize {
        self.entry(tensor, "data_offsets")[0].as_u64().expect("offsets are numbers") as usize
    }
}
