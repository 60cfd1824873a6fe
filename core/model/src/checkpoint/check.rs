//! Comparing a checkpoint with the tensors that its configuration implies, without reading tensor data.

use std::collections::HashSet;
use std::fmt;

use super::dtype::StoredDtype;
use super::error::CheckpointError;
use super::layout::{Storage, TensorSpec, tensor_specs};
use super::reader::{Checkpoint, StoredTensor};
use crate::config::ModelConfig;

/// Everything that a check found.
#[derive(Debug)]
pub struct CheckReport {
    /// Tensors that are missing or of the wrong shape or element type, in layout order; then files beside the weights that
    /// are refused.
    pub errors: Vec<CheckpointError>,
    /// Tensors that loading ignores.
    pub warnings: Vec<CheckpointWarning>,
    /// Expected tensors that were found and fit.
    pub tensors: usize,
    /// Bytes of those tensors.
    pub bytes: u64,
}

/// The result of a check without errors.
#[derive(Debug)]
pub struct Verified {
    /// Tensors that loading ignores.
    pub warnings: Vec<CheckpointWarning>,
}

/// Something in a checkpoint that is unusual and does no harm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckpointWarning {
    /// A tensor that the configuration does not imply.
    Extra {
        /// The file that holds it.
        file: String,
        /// Its name.
        tensor: String,
    },
    /// A scale whose weight is stored in BF16 or F32 and so has none.
    UnusedScale {
        /// The file that holds it.
        file: String,
        /// Its name.
        tensor: String,
    },
    /// A tensor that is in a shard and not in the index. It is loaded all the same.
    Unlisted {
        /// The file that holds it.
        file: String,
        /// Its name.
        tensor: String,
    },
}

impl fmt::Display for CheckpointWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Extra { file, tensor } => {
                write!(f, "{file}: tensor `{tensor}` is not part of this model and is ignored")
            }
            Self::UnusedScale { file, tensor } => {
                write!(f, "{file}: tensor `{tensor}` is ignored because its weight is not stored in a quantised format")
            }
            Self::Unlisted { file, tensor } => write!(f, "{file}: tensor `{tensor}` is not listed in the index"),
        }
    }
}

impl Checkpoint {
    /// Compares the names, shapes and element types of all tensors with those that `config` implies, and returns the first
    /// error in layout order. Reads no tensor data.
    ///
    /// Every weight may be stored in BF16 or F32 instead of its released format; a matrix that is quantised in the
    /// released checkpoint then has its dense shape and no scale.
    ///
    /// # Errors
    /// [`CheckpointError::MissingTensor`], [`CheckpointError::WrongShape`] or [`CheckpointError::WrongDtype`].
    pub fn verify(&self, config: &ModelConfig) -> Result<Verified, CheckpointError> {
        let report = self.check_tensors(config);
        match report.errors.into_iter().next() {
            Some(error) => Err(error),
            None => Ok(Verified { warnings: report.warnings }),
        }
    }

    /// As [`Checkpoint::verify`], but goes on after an error and reports all of them; also reads the tokenizer and the
    /// Engram files as [`Checkpoint::tokenizer`] and [`Checkpoint::engram_hashing`] do.
    pub fn check(&self, config: &ModelConfig) -> CheckReport {
        let mut report = self.check_tensors(config);
        let side_files = self.tokenizer().and_then(|_| self.engram_hashing(config));
        report.errors.extend(side_files.err());
        report
    }

    fn check_tensors(&self, config: &ModelConfig) -> CheckReport {
        let specs = tensor_specs(config);
        let mut report = CheckReport { errors: Vec::new(), warnings: Vec::new(), tensors: 0, bytes: 0 };
        for spec in &specs {
            let stored = self.get(&spec.name);
            if self.has_dense_weight(spec) {
                if let Some(file) = self.file_of(&spec.name) {
                    report.warnings.push(CheckpointWarning::UnusedScale { file, tensor: spec.name.clone() });
                }
                continue;
            }
            match self.compare(spec, stored) {
                Ok(bytes) => {
                    report.tensors += 1;
                    report.bytes += bytes;
                }
                Err(error) => report.errors.push(error),
            }
        }
        let expected: HashSet<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        let mut extra: Vec<&str> = self.tensor_names().filter(|name| !expected.contains(name)).collect();
        extra.sort_unstable();
        let placed = |name: &str| (self.file_of(name).unwrap_or_default(), name.to_owned());
        let extra = extra.into_iter().map(placed).map(|(file, tensor)| CheckpointWarning::Extra { file, tensor });
        report.warnings.extend(extra);
        let unlisted = self.unlisted().iter().map(|name| placed(name));
        report.warnings.extend(unlisted.map(|(file, tensor)| CheckpointWarning::Unlisted { file, tensor }));
        report
    }

    /// Whether `spec` is a scale whose weight is stored without one.
    fn has_dense_weight(&self, spec: &TensorSpec) -> bool {
        let weight = spec.scaled_weight().and_then(|weight| self.get(&weight));
        weight.is_some_and(|weight| is_dense(weight.dtype))
    }

    /// Bytes of the tensor if it is what `spec` asks for.
    fn compare(&self, spec: &TensorSpec, stored: Option<StoredTensor<'_>>) -> Result<u64, CheckpointError> {
        let (Some(stored), Some(file)) = (stored, self.file_of(&spec.name)) else {
            return Err(CheckpointError::MissingTensor {
                origin: self.origin(),
                tensor: spec.name.clone(),
                dtype: spec.storage.dtype(),
                shape: spec.shape.clone(),
            });
        };
        let released = spec.storage.dtype();
        let expected = if stored.dtype == released {
            spec.shape.clone()
        } else if spec.storage != Storage::Ue8m0 && is_dense(stored.dtype) {
            spec.dense_shape()
        } else {
            return Err(CheckpointError::WrongDtype {
                file,
                tensor: spec.name.clone(),
                found: stored.dtype,
                expected: accepted(spec.storage),
            });
        };
        if stored.shape != expected {
            return Err(CheckpointError::WrongShape {
                file,
                tensor: spec.name.clone(),
                dtype: stored.dtype,
                found: stored.shape.to_vec(),
                expected,
            });
        }
        Ok(stored.bytes.len() as u64)
    }
}

fn is_dense(dtype: StoredDtype) -> bool {
    matches!(dtype, StoredDtype::Bf16 | StoredDtype::F32)
}

fn accepted(storage: Storage) -> String {
    match storage {
        Storage::Ue8m0 => storage.dtype().to_string(),
        Storage::Bf16 | Storage::F32 => "BF16 or F32".to_owned(),
        quantised => format!("{}, BF16 or F32", quantised.dtype()),
    }
}
