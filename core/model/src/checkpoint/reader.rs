//! Opening a checkpoint and handing out its tensors.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::dtype::StoredDtype;
use super::error::CheckpointError;
use super::header::{Entry, read_header};
use super::mapping::Bytes;
use crate::config::ModelConfig;
use crate::files::{self, without_byte_order_mark};
use crate::tokenizer::Tokenizer;

const CONFIG: &str = "config.json";
const SINGLE_FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// An opened checkpoint: its configuration, and the place of every tensor in the mapped files.
#[derive(Debug)]
pub struct Checkpoint {
    source: Source,
    config: ModelConfig,
    shards: Vec<Shard>,
    tensors: HashMap<String, Location>,
    /// Tensors that an index exists for but does not list.
    unlisted: Vec<String>,
    /// The tokenizer, once something has asked for it.
    pub(super) read_tokenizer: OnceLock<Arc<Tokenizer>>,
}

/// A tensor as it is stored.
#[derive(Debug, Clone, Copy)]
pub struct StoredTensor<'a> {
    /// Element type.
    pub dtype: StoredDtype,
    /// Shape, outermost dimension first.
    pub shape: &'a [u64],
    /// The elements in row-major order, little-endian. Not aligned in any way.
    pub bytes: &'a [u8],
}

#[derive(Debug)]
struct Shard {
    name: String,
    bytes: Bytes,
}

#[derive(Debug)]
struct Location {
    shard: usize,
    entry: Entry,
}

impl Checkpoint {
    /// Opens the checkpoint in the directory `dir`: `config.json`, and `model.safetensors.index.json` with its shards or
    /// else a single `model.safetensors`. Maps the files and reads their headers, no tensor data.
    ///
    /// The files must not be changed while the checkpoint is open: they are mapped, not copied.
    ///
    /// # Errors
    /// [`CheckpointError`] when a file is missing, unreadable or damaged, or the configuration is refused. Whether the
    /// tensors fit the configuration is the question of [`Checkpoint::verify`].
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        Self::load(Source::Directory(dir.to_owned()))
    }

    /// Opens a checkpoint whose files, as pairs of name and content, are part of the program.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_embedded(files: &[(&'static str, &'static [u8])]) -> Result<Self, CheckpointError> {
        Self::load(Source::Embedded(files.to_vec()))
    }

    fn load(source: Source) -> Result<Self, CheckpointError> {
        let config = source.config()?;
        let index = source.read(INDEX)?.map(|json| Index::parse(&source.display(INDEX), &json)).transpose()?;
        let names = match &index {
            Some(index) => index.shards(),
            None => vec![SINGLE_FILE.to_owned()],
        };
        let mut checkpoint = Self {
            source,
            config,
            shards: Vec::new(),
            tensors: HashMap::new(),
            unlisted: Vec::new(),
            read_tokenizer: OnceLock::new(),
        };
        for name in names {
            checkpoint.add_shard(name, index.as_ref())?;
        }
        if let Some(index) = &index {
            checkpoint.compare_with(index)?;
        }
        Ok(checkpoint)
    }

    fn add_shard(&mut self, name: String, index: Option<&Index>) -> Result<(), CheckpointError> {
        let file = self.source.display(&name);
        let Some(bytes) = self.source.map(&name)? else {
            return Err(match index {
                Some(index) => CheckpointError::MissingShard {
                    index: self.source.display(INDEX),
                    tensor: index.any_tensor_of(&name),
                    shard: name,
                },
                None => CheckpointError::NotFound {
                    origin: self.source.origin(),
                    reason: format!("it holds neither {SINGLE_FILE} nor {INDEX}"),
                },
            });
        };
        let shard = self.shards.len();
        for (tensor, entry) in read_header(&file, &bytes)? {
            if let Some(other) = self.tensors.get(&tensor) {
                let first = self.source.display(&self.shards[other.shard].name);
                return Err(CheckpointError::Duplicate { tensor, first, second: file });
            }
            self.tensors.insert(tensor, Location { shard, entry });
        }
        self.shards.push(Shard { name, bytes });
        Ok(())
    }

    fn compare_with(&mut self, index: &Index) -> Result<(), CheckpointError> {
        for (tensor, shard) in &index.shard_of {
            let holder = self.tensors.get(tensor).map(|location| &self.shards[location.shard].name);
            if holder != Some(shard) {
                return Err(CheckpointError::NotInShard {
                    index: self.source.display(INDEX),
                    shard: shard.clone(),
                    tensor: tensor.clone(),
                });
            }
        }
        self.unlisted = self.tensors.keys().filter(|&name| !index.shard_of.contains_key(name)).cloned().collect();
        self.unlisted.sort_unstable();
        Ok(())
    }

    /// The configuration in `config.json`.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The tensor `name` as it is stored; `None` if no file holds it.
    pub fn get(&self, name: &str) -> Option<StoredTensor<'_>> {
        let Location { shard, entry } = self.tensors.get(name)?;
        let bytes = &self.shards[*shard].bytes[entry.range.clone()];
        Some(StoredTensor { dtype: entry.dtype, shape: &entry.shape, bytes })
    }

    /// Names of all stored tensors, in no particular order.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Content of a small file beside the weights, such as `tokenizer.json`; `None` if there is none of that name.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] when the file exists and cannot be read, or is not a regular file.
    pub fn file(&self, name: &str) -> Result<Option<Cow<'_, [u8]>>, CheckpointError> {
        self.source.read(name)
    }

    /// Bytes of all stored tensors, without headers.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.values().map(|location| location.entry.range.len() as u64).sum()
    }

    /// Hints that the tensor `name` has been copied to a device and will not be read again soon, so that the operating
    /// system may drop its pages. The tensor stays readable.
    pub fn release(&self, name: &str) {
        if let Some(Location { shard, entry }) = self.tensors.get(name) {
            self.shards[*shard].bytes.release(entry.range.clone());
        }
    }

    /// Where the checkpoint came from, for messages.
    pub fn origin(&self) -> String {
        self.source.origin()
    }

    /// The file that holds the tensor `name`, for messages; `None` if no file does.
    pub(crate) fn file_of(&self, name: &str) -> Option<String> {
        let location = self.tensors.get(name)?;
        Some(self.source.display(&self.shards[location.shard].name))
    }

    pub(super) fn unlisted(&self) -> &[String] {
        &self.unlisted
    }
}

/// Where the files of a checkpoint come from.
#[derive(Debug)]
enum Source {
    Directory(PathBuf),
    Embedded(Vec<(&'static str, &'static [u8])>),
}

impl Source {
    fn config(&self) -> Result<ModelConfig, CheckpointError> {
        if let Self::Directory(dir) = self
            && !dir.is_dir()
        {
            let reason = if dir.exists() { "it is not a directory" } else { "there is no such directory" };
            return Err(CheckpointError::NotFound { origin: self.origin(), reason: reason.to_owned() });
        }
        let Some(json) = self.read(CONFIG)? else {
            let reason = format!("it holds no {CONFIG}");
            return Err(CheckpointError::NotFound { origin: self.origin(), reason });
        };
        Ok(ModelConfig::from_json_bytes(&json, &self.display(CONFIG))?)
    }

    fn read(&self, name: &str) -> Result<Option<Cow<'_, [u8]>>, CheckpointError> {
        match self {
            Self::Directory(dir) => {
                present(dir.join(name), |path| std::fs::read(path)).map(|file| file.map(Cow::Owned))
            }
            Self::Embedded(_) => Ok(self.embedded(name).map(Cow::Borrowed)),
        }
    }

    fn map(&self, name: &str) -> Result<Option<Bytes>, CheckpointError> {
        match self {
            Self::Directory(dir) => present(dir.join(name), Bytes::map),
            Self::Embedded(_) => Ok(self.embedded(name).map(Bytes::Embedded)),
        }
    }

    fn embedded(&self, name: &str) -> Option<&'static [u8]> {
        match self {
            Self::Directory(_) => None,
            Self::Embedded(files) => files.iter().find(|(file, _)| *file == name).map(|&(_, bytes)| bytes),
        }
    }

    fn origin(&self) -> String {
        match self {
            Self::Directory(dir) => dir.display().to_string(),
            Self::Embedded(_) => "the embedded model".to_owned(),
        }
    }

    /// The file `name` as messages show it.
    fn display(&self, name: &str) -> String {
        match self {
            Self::Directory(dir) => dir.join(name).display().to_string(),
            Self::Embedded(_) => format!("{name} of the embedded model"),
        }
    }
}

/// Opens a regular file in some way; an absent file is `None`.
fn present<T>(path: PathBuf, open: impl FnOnce(&Path) -> io::Result<T>) -> Result<Option<T>, CheckpointError> {
    let opened = files::is_there(&path).and_then(|there| there.then(|| open(&path)).transpose());
    opened.map_err(|source| CheckpointError::Io { path, source })
}

/// `model.safetensors.index.json`: the shard of each tensor.
struct Index {
    shard_of: BTreeMap<String, String>,
}

impl Index {
    fn parse(file: &str, json: &[u8]) -> Result<Self, CheckpointError> {
        let bad = |reason: String| CheckpointError::BadIndex { file: file.to_owned(), reason };
        let value: Value =
            serde_json::from_slice(without_byte_order_mark(json)).map_err(|error| bad(error.to_string()))?;
        let map = value.get("weight_map").and_then(Value::as_object);
        let map = map.ok_or_else(|| bad("the object `weight_map` is missing".to_owned()))?;
        let mut shard_of = BTreeMap::new();
        for (tensor, shard) in map {
            // A shard is a file of this directory; anything else could make the reader open files elsewhere.
            let plain = |name: &&str| Path::new(name).file_name().is_some_and(|file| file == *name);
            let shard = shard.as_str().filter(plain).ok_or_else(|| {
                bad(format!("the shard of tensor `{tensor}` is {shard}, expected the name of a file beside the index"))
            })?;
            shard_of.insert(tensor.clone(), shard.to_owned());
        }
        if shard_of.is_empty() {
            return Err(bad("`weight_map` is empty".to_owned()));
        }
        Ok(Self { shard_of })
    }

    /// All shards, each once, in order of name.
    fn shards(&self) -> Vec<String> {
        let mut names: Vec<String> = self.shard_of.values().cloned().collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    fn any_tensor_of(&self, shard: &str) -> String {
        self.shard_of.iter().find(|(_, holder)| *holder == shard).map(|(tensor, _)| tensor.clone()).unwrap_or_default()
    }
}
