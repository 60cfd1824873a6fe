//! What is known of every candidate, for people and for JSON.

use std::fmt;
use std::path::{Path, PathBuf};

use deepinfer_plugin_api::abi::{DI_RF_CONTAINS_PANICS, DI_RF_IS_LAYER};
use deepinfer_plugin_api::generated::PROFILES;
use deepinfer_plugin_api::{op_by_id, op_by_name};
use serde::{Deserialize, Serialize, Serializer};

use crate::TEXT_PROFILE;
use crate::backend::{DeviceInfo, LoadedBackend, OpImpl, describe_missing, missing_ops};
use crate::decide::Tried;
use crate::find::Candidate;
use crate::layers::LayerInfo;
use crate::load::LoadError;
use crate::offer::{LinkInfo, SpaceInfo, VENDOR_OPS, VendorOp};
use crate::one_line::one_line;
use crate::select::{Choice, Runtime, Selection};

/// Links are asked for between so many devices at most: their number grows with the square.
const MOST_LINKED: usize = 16;

/// One candidate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BackendReport {
    /// File. In JSON, whose text is Unicode, bytes that are none are replaced.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// What it is.
    #[serde(flatten)]
    pub state: BackendState,
}

pub(crate) fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// What a candidate turned out to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum BackendState {
    /// Not a usable plugin.
    Refused {
        /// Why, in one sentence that names the file.
        reason: String,
    },
    /// It ended the process that tried it, or did not come to an end.
    Fatal {
        /// How, in words.
        how: String,
    },
    /// A layer; it goes over backends.
    Layer {
        /// Name.
        name: String,
    },
    /// A backend that started.
    Loaded(Box<BackendDetails>),
}

/// What a backend says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BackendDetails {
    /// Name by which it is selected.
    pub name: String,
    /// Version.
    pub version: String,
    /// Toolchain and build.
    pub build: String,
    /// What its catalogue has other than this core's, if it says which one it was built from and that is another.
    pub other_catalogue: Option<String>,
    /// `major.minor` of the plugin ABI.
    pub abi: String,
    /// Smallest minor of the core that it needs.
    pub min_core_minor: u16,
    /// Flags of the handshake: `contains_panics`, `is_layer`.
    pub flags: Vec<String>,
    /// Layers over it, outermost first.
    pub layers: Vec<LayerInfo>,
    /// Devices; empty when there is none.
    pub devices: Vec<DeviceReport>,
    /// Why there is no device.
    pub no_device: Option<String>,
    /// How its devices are connected, of each pair once in each direction; empty when it does not tell.
    pub links: Vec<LinkInfo>,
    /// Op implementations.
    pub ops: Vec<OpReport>,
    /// Ops of the profile `v41-text` that it lacks.
    pub missing_ops: Vec<String>,
    /// Profiles of the catalogue, each with the ops that it lacks.
    pub profiles: Vec<ProfileReport>,
    /// Optional tables that it gives.
    pub tables: Vec<String>,
    /// Its own ops.
    pub vendor_ops: Vec<VendorOp>,
    /// What is wrong with the description of its own ops.
    pub vendor_ops_problem: Option<String>,
}

/// A device and its memory spaces.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceReport {
    /// What it is.
    #[serde(flatten)]
    pub info: DeviceInfo,
    /// Memory spaces; empty when the backend does not tell.
    pub spaces: Vec<SpaceInfo>,
}

/// One op implementation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OpReport {
    /// Op.
    pub name: String,
    /// Version.
    pub version: u32,
    /// Name of the implementation.
    pub implementation: String,
    /// Among several implementations the largest is tried first.
    pub priority: i32,
    /// What it declares of every call: `batch_invariant`, `deterministic`, `capturable`.
    pub flags: Vec<String>,
    /// Whether it may decline a call before it is made.
    pub has_supports: bool,
    /// Whether it plans its calls.
    pub has_plan: bool,
    /// Whether the catalogue has this version of the op.
    pub in_catalogue: bool,
    /// Whether its id is one of those that belong to vendors.
    pub is_own: bool,
    /// Whether the catalogue has an op of this name, whatever its id.
    pub is_named_as_known: bool,
}

/// What a backend lacks of a profile.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProfileReport {
    /// Profile.
    pub name: String,
    /// Ops that it requires.
    pub required: usize,
    /// Those that the backend lacks.
    pub missing: Vec<String>,
}

impl Runtime {
    /// Loads every candidate on the search path, and before them the file that `selection` names, and reports on each.
    pub fn report(&self, selection: &Selection) -> Vec<BackendReport> {
        let named = match &selection.choice {
            Choice::Path(path) => Some(BackendReport::of(&Candidate::of_path(path), &selection.options)),
            Choice::Auto | Choice::Name(_) => None,
        };
        let found = self.search().candidates();
        named.into_iter().chain(found.iter().map(|candidate| BackendReport::of(candidate, ""))).collect()
    }
}

impl BackendReport {
    /// What a backend that loads says of itself.
    pub fn details(&self) -> Option<&BackendDetails> {
        match &self.state {
            BackendState::Loaded(details) => Some(details),
            BackendState::Refused { .. } | BackendState::Fatal { .. } | BackendState::Layer { .. } => None,
        }
    }

    /// Loads a candidate and reports on it.
    pub fn of(candidate: &Candidate, options: &str) -> Self {
        let state = match candidate.load(options) {
            Ok(backend) => BackendState::Loaded(Box::new(BackendDetails::of(backend))),
            Err(LoadError::IsALayer { name, .. }) => BackendState::Layer { name },
            Err(error) => BackendState::Refused { reason: error.to_string() },
        };
        Self { path: candidate.path().to_owned(), state }
    }

    /// What the report means for a decision, see [`Runtime::decide`].
    pub fn tried(&self) -> Tried {
        match &self.state {
            BackendState::Refused { reason } => Tried::RefusedElsewhere(reason.clone()),
            BackendState::Fatal { how } => Tried::Fatal(how.clone()),
            BackendState::Layer { name } => Tried::Layer { name: name.clone() },
            BackendState::Loaded(details) => {
                let no_device = || details.no_device.clone().unwrap_or_else(|| "it found none".to_owned());
                let first = details.devices.first();
                Tried::Backend {
                    name: details.name.clone(),
                    devices: first.map(|_| details.devices.len() as u32).ok_or_else(no_device),
                    first_is_emulated: first.is_some_and(|device| device.info.is_emulated),
                    first_is_cpu: first.map(|device| device.info.is_cpu()).ok_or_else(no_device),
                    missing_ops: details.missing_ops.clone(),
                }
            }
        }
    }
}

impl BackendDetails {
    /// Asks a backend for all that it tells of itself; opens no device.
    pub fn of(backend: &LoadedBackend) -> Self {
        let (devices, no_device) = match backend.device_infos() {
            Ok(devices) if devices.is_empty() => (devices, Some("it found none".to_owned())),
            Ok(devices) => (devices, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let spaces = |device: &DeviceInfo| backend.spaces(device.index).unwrap_or_default();
        let (vendor_ops, vendor_ops_problem) = match backend.vendor_ops() {
            Ok(ops) => (ops, None),
            Err(problem) => (Vec::new(), Some(problem)),
        };
        let profile = |&(name, required): &(&str, &[&str])| ProfileReport {
            name: name.to_owned(),
            required: required.len(),
            missing: owned(missing_ops(backend, name)),
        };
        let (major, minor) = backend.abi();
        Self {
            name: backend.name().to_owned(),
            version: backend.version().to_owned(),
            build: backend.build().to_owned(),
            other_catalogue: backend.other_catalogue(),
            abi: format!("{major}.{minor}"),
            min_core_minor: backend.min_core_minor,
            flags: words(&[
                (backend.reply_flags & DI_RF_CONTAINS_PANICS != 0, "contains_panics"),
                (backend.reply_flags & DI_RF_IS_LAYER != 0, "is_layer"),
            ]),
            layers: backend.layers().to_vec(),
            links: links(backend, devices.len()),
            devices: devices.into_iter().map(|info| DeviceReport { spaces: spaces(&info), info }).collect(),
            no_device,
            ops: backend.ops().iter().map(OpReport::of).collect(),
            missing_ops: owned(missing_ops(backend, TEXT_PROFILE)),
            profiles: PROFILES.iter().map(profile).collect(),
            tables: owned(backend.optional_tables()),
            vendor_ops,
            vendor_ops_problem,
        }
    }
}

fn links(backend: &LoadedBackend, devices: usize) -> Vec<LinkInfo> {
    let devices = 0..devices.min(MOST_LINKED) as u32;
    let pairs = devices.clone().flat_map(|from| devices.clone().map(move |to| (from, to)));
    let between = pairs.filter(|(from, to)| from != to);
    between.filter_map(|(from, to)| backend.link(from, to).ok().flatten()).collect()
}

impl OpReport {
    fn of(op: &OpImpl) -> Self {
        Self {
            name: op.name().to_owned(),
            version: op.version(),
            implementation: op.impl_name().to_owned(),
            priority: op.priority(),
            flags: words(&[
                (op.is_batch_invariant(), "batch_invariant"),
                (op.is_deterministic(), "deterministic"),
                (op.is_capturable(), "capturable"),
                (op.is_concurrent(), "concurrent"),
            ]),
            has_supports: op.entry.supports.is_some(),
            has_plan: op.entry.plan.is_some(),
            in_catalogue: op_by_id(op.op_id()).is_some_and(|known| known.version == op.version()),
            is_own: op.op_id() >= VENDOR_OPS,
            is_named_as_known: op_by_name(op.name()).is_some(),
        }
    }
}

fn words(flags: &[(bool, &str)]) -> Vec<String> {
    flags.iter().filter(|(is_set, _)| *is_set).map(|(_, word)| (*word).to_owned()).collect()
}

fn owned(list: Vec<&str>) -> Vec<String> {
    list.into_iter().map(str::to_owned).collect()
}

impl fmt::Display for BackendReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = one_line(&self.path.display().to_string());
        match &self.state {
            BackendState::Refused { reason } => writeln!(f, "refused: {}", one_line(reason)),
            BackendState::Fatal { how } => writeln!(f, "refused: {path}: {}", one_line(how)),
            BackendState::Layer { name } => writeln!(f, "{} is a layer ({path})", one_line(name)),
            BackendState::Loaded(details) => details.summary(f, &path),
        }
    }
}

/// Memory of a device for a person: unknown if it is 0, as a backend says that does not know it.
pub fn memory_in_words(bytes: u64) -> String {
    match bytes {
        0 => "memory unknown".to_owned(),
        bytes => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

impl BackendDetails {
    /// As [`LoadedBackend::title`].
    pub fn title(&self) -> String {
        let layers: String = self.layers.iter().rev().map(|layer| format!(" + {}", layer.name)).collect();
        format!("{}{layers}", self.name)
    }

    fn summary(&self, f: &mut fmt::Formatter<'_>, path: &str) -> fmt::Result {
        let (title, version) = (one_line(&self.title()), one_line(&self.version));
        writeln!(f, "{title} {version} (plugin ABI {}, {path})", self.abi)?;
        if let Some(reason) = &self.no_device {
            writeln!(f, "  no device: {}", one_line(reason))?;
        }
        for DeviceReport { info, .. } in &self.devices {
            let memory = memory_in_words(info.memory_bytes);
            let (name, arch) = (one_line(&info.name), one_line(&info.arch));
            let emulated = if info.is_emulated { ", emulated on this processor" } else { "" };
            writeln!(f, "  device {}: {name} ({arch}, {memory}{emulated})", info.index)?;
        }
        let list: Vec<String> = self.ops.iter().map(|op| format!("{}@{}", one_line(&op.name), op.version)).collect();
        let colon = if list.is_empty() { "" } else { ": " };
        writeln!(f, "  {} op implementations{colon}{}", list.len(), list.join(", "))?;
        if !self.missing_ops.is_empty() {
            writeln!(f, "  does not implement {}", describe_missing(&self.missing_ops, TEXT_PROFILE))?;
        }
        Ok(())
    }
}
