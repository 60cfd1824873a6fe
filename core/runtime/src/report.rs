//! What is known of every candidate, for people and for JSON.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use crate::TEXT_PROFILE;
use crate::backend::{DeviceInfo, LoadedBackend, describe_missing, missing_ops};
use crate::load::load;
use crate::one_line::one_line;
use crate::select::{Choice, Runtime, SelectError, Selection};

/// One candidate.
#[derive(Clone, Debug, Serialize)]
pub struct BackendReport {
    /// File. In JSON, whose text is Unicode, bytes that are none are replaced.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// What it is.
    #[serde(flatten)]
    pub state: BackendState,
}

fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// What a candidate turned out to be.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum BackendState {
    /// Not a usable plugin.
    Refused {
        /// Why, in one sentence that names the file.
        reason: String,
    },
    /// A backend that started.
    Loaded {
        /// Name by which it is selected.
        name: String,
        /// Version.
        version: String,
        /// Toolchain and build.
        build: String,
        /// `major.minor` of the plugin ABI.
        abi: String,
        /// Devices; empty when there is none.
        devices: Vec<DeviceInfo>,
        /// Why there is no device.
        no_device: Option<String>,
        /// Op implementations.
        ops: Vec<OpReport>,
        /// Ops of the profile `v41-text` that it lacks.
        missing_ops: Vec<String>,
    },
}

/// One op implementation.
#[derive(Clone, Debug, Serialize)]
pub struct OpReport {
    /// Op.
    pub name: String,
    /// Version.
    pub version: u32,
    /// Name of the implementation.
    pub implementation: String,
}

impl Runtime {
    /// Loads every candidate on the search path, and the file that `selection` names, and reports on it.
    pub fn report(&self, selection: &Selection) -> Vec<BackendReport> {
        let named = match &selection.choice {
            Choice::Path(path) => Some((path.clone(), selection.options.as_str())),
            _ => None,
        };
        let state = |path: &PathBuf, options: &str| match load(path, options) {
            Ok(backend) => describe(backend),
            Err(error) => BackendState::Refused { reason: error.to_string() },
        };
        let found = self.search().candidates().into_iter().map(|path| (path, ""));
        named
            .into_iter()
            .chain(found)
            .map(|(path, options)| BackendReport { state: state(&path, options), path })
            .collect()
    }

    /// What [`Runtime::open`] would do with a selection, as a sentence; opens nothing.
    pub fn outcome(&self, selection: &Selection) -> Result<String, SelectError> {
        let (backend, device) = self.select(selection)?;
        let missing = missing_ops(backend, TEXT_PROFILE);
        if missing.is_empty() {
            return Ok(format!("device {device} of {} ({})", backend.name(), backend.path().display()));
        }
        Err(SelectError::MissingOps {
            name: backend.name().to_owned(),
            path: backend.path().to_owned(),
            ops: missing.into_iter().map(str::to_owned).collect(),
        })
    }
}

fn describe(backend: &LoadedBackend) -> BackendState {
    let (devices, no_device) = match backend.device_infos() {
        Ok(devices) if devices.is_empty() => (devices, Some("it found none".to_owned())),
        Ok(devices) => (devices, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let op = |op: &crate::OpImpl| OpReport {
        name: op.name().to_owned(),
        version: op.version(),
        implementation: op.impl_name().to_owned(),
    };
    let (major, minor) = backend.abi();
    BackendState::Loaded {
        name: backend.name().to_owned(),
        version: backend.version().to_owned(),
        build: backend.build().to_owned(),
        abi: format!("{major}.{minor}"),
        devices,
        no_device,
        ops: backend.ops().iter().map(op).collect(),
        missing_ops: missing_ops(backend, TEXT_PROFILE).into_iter().map(str::to_owned).collect(),
    }
}

impl fmt::Display for BackendReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, version, abi, devices, no_device, ops, missing) = match &self.state {
            BackendState::Refused { reason } => return writeln!(f, "refused: {}", one_line(reason)),
            BackendState::Loaded { name, version, abi, devices, no_device, ops, missing_ops, .. } => {
                (name, version, abi, devices, no_device, ops, missing_ops)
            }
        };
        let (version, path) = (one_line(version), one_line(&self.path.display().to_string()));
        writeln!(f, "{name} {version} (plugin ABI {abi}, {path})")?;
        if let Some(reason) = no_device {
            writeln!(f, "  no device: {}", one_line(reason))?;
        }
        for device in devices {
            let gib = device.memory_bytes as f64 / f64::from(1 << 30);
            let (name, arch) = (one_line(&device.name), one_line(&device.arch));
            writeln!(f, "  device {}: {name} ({arch}, {gib:.1} GiB)", device.index)?;
        }
        let list: Vec<String> = ops.iter().map(|op| format!("{}@{}", one_line(&op.name), op.version)).collect();
        writeln!(f, "  {} op implementations{}{}", ops.len(), if ops.is_empty() { "" } else { ": " }, list.join(", "))?;
        if !missing.is_empty() {
            writeln!(f, "  does not implement {}", describe_missing(missing, TEXT_PROFILE))?;
        }
        Ok(())
    }
}
