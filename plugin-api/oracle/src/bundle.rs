//! A call in a file, to be made again elsewhere.
//!
//! A bundle is a safetensors file, so that its tensors open with any tool: `call.NAME` holds the elements of an argument and
//! `call.NAME.scale` its scales, `call.NAME.0` and so on those of a list, `found.NAME` an output that a backend gave. FP4, of
//! which safetensors has no packed rows of odd length, is kept as bytes. Everything else is JSON in the metadata, under
//! [`KEY`]: the version of the layout, the op, its scalars, format and shape of every tensor, and what is told of the case.

mod read;
mod write;

use std::collections::BTreeMap;

use deepinfer_plugin_api::ArgError;
use serde::{Deserialize, Serialize};

use crate::call::Call;
use crate::judge::Outputs;

/// Key of the JSON in the metadata of the file.
pub const KEY: &str = "deepinfer_bundle";
/// Version of the layout.
const VERSION: u32 = 1;
/// Ending of the names of bundles.
pub const EXTENSION: &str = "dibundle.safetensors";

/// A call, and what is known of it.
#[derive(Clone)]
pub struct Bundle {
    /// The call; its outputs hold what was in their memory before.
    pub call: Call,
    /// Name of the parity case that it comes from.
    pub case: Option<String>,
    /// Seed of that case.
    pub seed: Option<u64>,
    /// What was wrong, as a sentence.
    pub problem: Option<String>,
    /// What a backend gave.
    pub found: Option<Found>,
}

/// What a backend gave for a call.
#[derive(Clone)]
pub struct Found {
    /// Name and version of the backend.
    pub backend: String,
    /// What it wrote.
    pub outputs: Outputs,
}

/// Why bytes are no bundle, or a call fits none.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// Not a safetensors file, or damaged.
    #[error("not a bundle: it cannot be read as safetensors: {0}")]
    Container(String),
    /// A safetensors file of something else.
    #[error("not a bundle: the metadata of the file has no {KEY}")]
    NoMetadata,
    /// Metadata that cannot be read.
    #[error("the metadata {KEY} cannot be read: {0}")]
    Metadata(#[from] serde_json::Error),
    /// Written by another program.
    #[error("the bundle has version {found} of the layout, but this program reads version {VERSION}")]
    Version {
        /// Its version.
        found: u32,
    },
    /// An op that this catalogue has not.
    #[error("the bundle is a call of {name} (id {id}, version {version}), but the catalogue has {here}")]
    Op {
        /// Name.
        name: String,
        /// Id.
        id: u32,
        /// Version.
        version: u32,
        /// What the catalogue has in its place.
        here: String,
    },
    /// An argument, or a tensor of the file, is not what the op or the metadata say.
    #[error("{argument} {problem}")]
    Argument {
        /// Argument, or name of a tensor in the file.
        argument: String,
        /// What it has and what it needs.
        problem: String,
    },
    /// Formats, ranks or extents break the rules of the catalogue.
    #[error("{0}")]
    Malformed(#[from] ArgError),
}

impl Bundle {
    /// A bundle of a call of which nothing else is known.
    pub fn new(call: Call) -> Self {
        Self { call, case: None, seed: None, problem: None, found: None }
    }
}

/// The JSON of a bundle.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    op: Named,
    arguments: BTreeMap<String, Argument>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    case: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    found: Option<FoundBy>,
}

/// The version alone, which every layout has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct Named {
    name: String,
    id: u32,
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct FoundBy {
    backend: String,
    /// Names of the outputs that are there; format and shape are those of the argument.
    outputs: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Argument {
    Tensor(Tensor),
    List(Vec<Tensor>),
    U32(u32),
    I32(i32),
    /// In decimal, with as many digits as lead back to the same F32; JSON has no infinities.
    F32(String),
    Absent,
}

#[derive(Serialize, Deserialize)]
struct Tensor {
    format: String,
    shape: Vec<usize>,
}
