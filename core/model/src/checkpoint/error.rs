//! Why a checkpoint is refused.

use std::path::PathBuf;

use super::dtype::StoredDtype;
use super::side_files::SideFileError;
use crate::config::ConfigError;

/// Why a checkpoint is refused. Messages name the file, the tensor, what was found and what was expected.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The path holds no checkpoint: give another directory.
    #[error("no checkpoint at {origin}: {reason}")]
    NotFound {
        /// The directory that was tried.
        origin: String,
        /// What is missing there.
        reason: String,
    },
    /// The operating system refused to read a file.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// `config.json` is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The file is of another kind: safetensors files begin with the length of a JSON header.
    #[error("{file} is not a safetensors file: {reason}")]
    NotSafetensors {
        /// The file.
        file: String,
        /// What was found instead.
        reason: String,
    },
    /// The file ends early: download it again.
    #[error(
        "{file} is truncated: {what} needs bytes up to {needed}, the file ends at {available}; copy or download it again"
    )]
    Truncated {
        /// The file.
        file: String,
        /// The tensor (or the header) that does not fit.
        what: String,
        /// File offset of the end of that tensor.
        needed: u64,
        /// Length of the file in bytes.
        available: u64,
    },
    /// The header as a whole cannot be understood.
    #[error("{file}: the safetensors header is damaged: {reason}")]
    DamagedHeader {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The header describes one tensor in a way that cannot be.
    #[error("{file}: the header entry of tensor `{tensor}` is damaged: {reason}")]
    DamagedTensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Two tensors of one file share bytes.
    #[error(
        "{file}: tensors `{first}` and `{second}` overlap: the first ends at data offset {first_end}, the second begins at {second_begin}"
    )]
    Overlap {
        /// The file.
        file: String,
        /// The tensor with the lower offset.
        first: String,
        /// The tensor with the higher offset.
        second: String,
        /// End of the first, counted from the end of the header.
        first_end: u64,
        /// Begin of the second, counted from the end of the header.
        second_begin: u64,
    },
    /// Bytes of a file belong to no tensor.
    #[error("{file}: data offsets {begin} to {end} belong to no tensor, expected tensors without gaps")]
    Gap {
        /// The file.
        file: String,
        /// First unclaimed byte, counted from the end of the header.
        begin: u64,
        /// End of the unclaimed bytes.
        end: u64,
    },
    /// The index file cannot be understood.
    #[error("{file} is not an index of safetensors shards: {reason}")]
    BadIndex {
        /// The index file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The index names a file that is not there.
    #[error("{index} puts tensor `{tensor}` in the shard {shard}, but there is no such file")]
    MissingShard {
        /// The index file.
        index: String,
        /// The absent file.
        shard: String,
        /// One of the tensors that it should hold.
        tensor: String,
    },
    /// The index puts a tensor in a file that does not hold it.
    #[error("{index} puts tensor `{tensor}` in the shard {shard}, but that file has no such tensor")]
    NotInShard {
        /// The index file.
        index: String,
        /// The file that was named.
        shard: String,
        /// The tensor.
        tensor: String,
    },
    /// Two files hold a tensor of one name.
    #[error("tensor `{tensor}` is both in {first} and in {second}; remove one of the files")]
    Duplicate {
        /// The tensor.
        tensor: String,
        /// One file.
        first: String,
        /// The other file.
        second: String,
    },
    /// A tensor that the configuration implies is in none of the files.
    #[error("{origin}: tensor `{tensor}` is missing, expected {dtype} {shape:?}")]
    MissingTensor {
        /// The checkpoint directory.
        origin: String,
        /// The tensor.
        tensor: String,
        /// Its released element type.
        dtype: StoredDtype,
        /// Its shape in that type.
        shape: Vec<u64>,
    },
    /// A tensor has another shape than the configuration implies.
    #[error("{file}: tensor `{tensor}` has shape {found:?} ({dtype}), expected {expected:?} by the configuration")]
    WrongShape {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its element type, which decides the expected shape of FP4 matrices.
        dtype: StoredDtype,
        /// The shape in the file.
        found: Vec<u64>,
        /// The shape that the configuration implies for this element type.
        expected: Vec<u64>,
    },
    /// A tensor has an element type that cannot be loaded.
    #[error("{file}: tensor `{tensor}` has element type {found}, expected {expected}")]
    WrongDtype {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The element type in the file.
        found: StoredDtype,
        /// The element types that would be accepted.
        expected: String,
    },
    /// A weight or scale is NaN or infinite.
    #[error(
        "{file}: tensor `{tensor}`: the {dtype} value at index {index} is NaN or infinite, expected a finite number"
    )]
    NotFinite {
        /// The file.
        file: String,
        /// Tensor.
        tensor: String,
        /// Its element type.
        dtype: StoredDtype,
        /// Place of the value, in row-major order.
        index: usize,
    },
    /// A file beside the weights is refused.
    #[error("{origin}: {source}")]
    SideFile {
        /// The checkpoint directory.
        origin: String,
        /// What is wrong, with the name of the file.
        source: SideFileError,
    },
}
